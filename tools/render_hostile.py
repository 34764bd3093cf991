"""Write docs/hostile-files.md from the results of `make hostile` and `make fuzz`."""

import json
import sys
from pathlib import Path
from typing import Any

from pylucebox.measure.report import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results/hostile"
PAGE = ROOT / "docs/hostile-files.md"
HEAD = """# Hostile files

A model file or a checkpoint comes from somebody else. Whatever it says, lucebox refuses it in one line
that names the file, the field and the remedy, with the exit code of the [commands](commands.md), in little
memory, and leaves nothing half written. `make hostile` shows this with every file of `tests/hostile`, each a
sound file with one thing wrong; `make fuzz` with random changes to the files of `tests/fuzz/corpus`.
"""
TAKEN = """Taken: the reader has nothing to object to. A header may be sound where tensors or data are not,
which the loader finds. With what it took the loader also decoded a batch of tokens, under the sanitizers.
"""


def machine(data: dict[str, Any]) -> str:
    return f"{data['date']}, {data['machine']['cpu']}, {data['machine']['os']}, `{data['command']}`"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """Return a Markdown table; all columns but the first two are numbers."""
    lines = [head, tuple("---" if i < 2 else "---:" for i in range(len(head))), *rows]
    return "\n".join(
        "| " + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in row) + " |" for row in lines
    )


def files(data: dict[str, Any]) -> str:
    """The table of malformed files."""
    rows: list[tuple[object, ...]] = [
        (r["reader"], r["group"], r["tried"], r["named"], r["taken"], len(r["wrong"]), len(r["crashed"]))
        for r in data["rows"]
    ]
    sums = [sum(int(str(row[i])) for row in rows) for i in range(2, 7)]
    largest = data["largest_resident_kib"]
    python, loader = (largest[name] >> 10 for name in ("python", "loader"))
    memory = f"Largest resident set: {python} MiB in Python, {loader} MiB in the loader."
    head = ("reader", "what is wrong", "tried", "refused by name", "taken", "wrong line", "crashes")
    shown = table(head, [*rows, ("all", "", *sums)])
    how = f"{machine(data)}; the loader with `{data['checks']}`."
    return f"## Malformed files\n\n{how}\n\n{shown}\n\n{TAKEN}{memory}\n"


def fuzzed(data: dict[str, Any]) -> str:
    """The table of fuzzing."""
    rows: list[tuple[object, ...]] = [
        (t["target"], f"`{t['command']}`", t["executions"], t["seconds"], t["crashes"])
        for t in data["targets"]
    ]
    head = ("target", "command", "executions", "seconds", "crashes")
    return f"## Fuzzing\n\n{machine(data)}.\n\n{table(head, rows)}\n"


def render() -> None:
    """Write the page from the results that are there."""
    parts = [HEAD]
    for name, part in (("files.json", files), ("fuzz.json", fuzzed)):
        if (RESULTS / name).is_file():
            parts.append(part(json.loads((RESULTS / name).read_text(encoding="utf-8"))))
    write_text(PAGE, "\n".join(parts))


if __name__ == "__main__":
    sys.exit(render())
