"""Serve the embedded tiny model with its drafter, ask it a word problem, check the answer: `make demo`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from pylucebox.runtime.client import Client, DraftCounters, Reply

LUCEBOX = str(Path(sys.executable).with_name("lucebox"))
TARGET = "cpu"
QUESTION = (
    "At the bakery, Peter pays $24 for each of 9 pillows and $18 for each of 4 kites. "
    "Peter and Laura split the cost equally. How many dollars does each person pay?"
)
RIGHT_ANSWER = 144
STOP_TIMEOUT_S = 30
# Threads of OpenMP spin while they wait: beside other work that makes this model many times slower.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
NOTE = (
    "This was a tiny test model of 24 million parameters that knows little else.\n"
    "Its speed says nothing about DeepSeek-V4-Flash."
)


def final_number(text: str) -> int | None:
    """Return the number after the last ####, the form in which the model was taught to answer."""
    found = re.findall(r"#### (-?\d+)", text)
    return int(found[-1]) if found else None


def by_position(counters: DraftCounters) -> str:
    """Return "12/12 11/12 …": drafts accepted at each position of the cycles."""
    return " ".join(f"{n}/{counters.cycles}" for n in counters.accepted_by_position)


def ask(client: Client) -> tuple[Reply, DraftCounters]:
    """Ask the question; return the answer and what speculation did for it."""
    before = client.draft_counters()
    reply = client.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=256)
    return reply, client.draft_counters().since(before)


def report(reply: Reply, counters: DraftCounters) -> list[str]:
    """Print the answer and its figures; return what is wrong with it."""
    timings, number = reply.timings, final_number(reply.text)
    print(f"\n{QUESTION}\n")
    print("\n".join(f"    {line}" for line in reply.text.splitlines()))
    print(f"\nanswer     {number}, expected {RIGHT_ANSWER}")
    print(f"tokens     {timings.predicted_tokens}, {timings.tokens_per_second:.1f} a second")
    print(f"drafts     {counters.accepted} of {counters.drafted} accepted")
    print(f"positions  {by_position(counters)} accepted of cycles\n")
    print(NOTE)
    findings = []
    if number != RIGHT_ANSWER:
        findings.append(f"the answer is {number}, not {RIGHT_ANSWER}")
    if not counters.accepted:
        findings.append("no draft was accepted: the drafter is not at work")
    return findings


def served(launcher: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for the one JSON object that `lucebox run` prints once it serves; its card goes to our stderr."""
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    body = json.loads(line) if line else {"ok": False, "error": {"message": "lucebox run ended early"}}
    if not body["ok"]:
        sys.exit(f"demo: {body['error']['message']}")
    result: dict[str, Any] = body["result"]
    return result


def main() -> int:
    subprocess.run([LUCEBOX, "build", "--target", TARGET], check=True, stdout=subprocess.DEVNULL)
    argv = [LUCEBOX, "run", "--json", "--port", "0", "--target", TARGET, "--spec", "on"]
    environment = {**ENVIRONMENT, **os.environ}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
        try:
            findings = report(*ask(Client(served(launcher)["url"])))
        finally:
            launcher.terminate()
            launcher.wait(STOP_TIMEOUT_S)
    for finding in findings:
        print(f"demo: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
