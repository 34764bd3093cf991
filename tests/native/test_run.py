"""lucebox run with the real server and the embedded model: form served, requests at once, no orphan."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pylucebox.core.errors import ServerError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.measure.fidelity import Prompt, load_prompts
from pylucebox.runtime.client import Client
from pylucebox.runtime.server import check_address

LUCEBOX = Path(sys.executable).with_name("lucebox")
REFERENCES = Path(__file__).parent.parent / "vectors/tiny-ds4/prompts"
BOUND_S = 30.0


@dataclass(frozen=True)
class Running:
    launcher: "subprocess.Popen[str]"
    facts: dict[str, Any]

    @property
    def client(self) -> Client:
        return Client(self.facts["url"], timeout_s=120)


def launch(home: Path, *words: str) -> Running:
    """Start `lucebox run` and wait for the object that says it serves."""
    argv = [LUCEBOX, "run", "--json", "--port", "0", "--target", "cpu", "--no-card", *words, "--", "-t", "1"]
    launcher = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "LUCEBOX_HOME": str(home)}
    )
    assert launcher.stdout is not None
    body = json.loads(launcher.stdout.readline())
    assert body["ok"], body
    return Running(launcher, body["result"])


def make_home(folder: Path, layout: Layout) -> Path:
    """Return an empty LUCEBOX_HOME; an installed wheel keeps its builds there, so they are linked."""
    if not layout.is_checkout:
        (folder / "build").symlink_to(layout.build_root)
        (folder / "vendor").symlink_to(layout.work_dir)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, layout: Layout) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), layout)


@pytest.fixture(scope="module")
def running(build: BuildReceipt, home: Path) -> Iterator[Running]:
    started = launch(home, "--spec", "on")
    yield started
    started.launcher.terminate()
    assert started.launcher.wait(BOUND_S) == 0


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts(REFERENCES)


def test_what_is_said_is_what_is_served(running: Running, build: BuildReceipt) -> None:
    assert running.facts["build"] == {"target": "cpu", "receipt": build.id}
    assert running.facts["context_tokens"] == running.client.context_tokens() == 2048
    assert running.facts["speculation"]["draft_tokens"] == 5
    assert running.facts["thinking"] is False
    assert running.client.speculates()


def test_the_embedded_model_answers_in_its_trained_form(running: Running, prompts: list[Prompt]) -> None:
    question = {
        "role": "user",
        "content": "A park has 13 boxes with 19 erasers in each box. How many erasers are there?",
    }
    assert running.client.rendered_prompt([question]) == prompts[0].text
    before = running.client.draft_counters()
    reply = running.client.chat([question], temperature=0)
    assert reply.text == prompts[0].output
    now = running.client.draft_counters().since(before)
    assert now.accepted == reply.timings.accepted > 0
    assert sum(now.accepted_by_position) == now.accepted and now.drafted == reply.timings.drafted


@pytest.mark.parametrize("count", [2, 4, 8])
def test_requests_at_once_are_served_or_queued(running: Running, prompts: list[Prompt], count: int) -> None:
    """Unequal lengths, more than there are slots, and one client that hangs up."""
    chosen = [prompts[i * 7] for i in range(count)]
    assert len({p.tokens for p in chosen}) > 1

    def right(prompt: Prompt) -> bool:
        text = running.client.complete(prompt.text, temperature=0, n_predict=128).text
        return text.rpartition("####")[2].strip() == prompt.answer

    def hang_up() -> None:
        with pytest.raises(ServerError):
            Client(running.facts["url"], timeout_s=0.05).complete(
                chosen[0].text, ignore_eos=True, n_predict=400
            )

    with ThreadPoolExecutor(count + 1) as pool:
        gone = pool.submit(hang_up)
        answers = list(pool.map(right, chosen))
        gone.result()
    assert answers == [True] * count
    assert running.client.is_ready()


def is_free(port: int) -> bool:
    try:
        check_address("127.0.0.1", port)
    except ServerError:
        return False
    return True


def test_no_orphan_after_kill_9_of_the_launcher(build: BuildReceipt, home: Path) -> None:
    started = launch(home, "--spec", "off")
    started.launcher.kill()
    started.launcher.wait()
    port = int(started.facts["url"].rpartition(":")[2])
    deadline = time.monotonic() + BOUND_S
    while not is_free(port) and time.monotonic() < deadline:  # freed with its last thread
        time.sleep(0.05)
    assert is_free(port)
    assert started.launcher.stdout is not None
    started.launcher.stdout.close()


def test_ctrl_c_stops_the_server(build: BuildReceipt, home: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        started = launch(home, "--spec", "off")
    finally:
        signal.signal(signal.SIGINT, before)
    started.launcher.send_signal(signal.SIGINT)
    assert started.launcher.wait(BOUND_S) == 130
    assert not Path(f"/proc/{started.facts['pid']}").exists()


def test_a_damaged_model_fails_with_the_servers_own_words(
    build: BuildReceipt, running: Running, home: Path, tmp_path: Path
) -> None:
    """The header is sound and the values mean nothing, so only the server can find out."""
    damaged = tmp_path / "damaged.gguf"
    content = Path(running.facts["model"]["path"]).read_bytes()
    damaged.write_bytes(content.replace(b"deepseek4", b"deepseek9"))
    argv = [LUCEBOX, "run", damaged, "--port", "0", "--target", "cpu", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LUCEBOX_HOME": str(home)})
    assert done.returncode == 6
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "server" and "before it was ready" in error["message"]
    assert "deepseek9" in Path(error["log"]).read_text()
