"""Show every hostile file to every reader: `python tools/hostile_files.py [--quick]`.

The files are those of tests/hostile: one field or value of a sound file wrong in each. GGUF files meet the
readers in Python (inspection and memory plan, as `run` and `quantize` begin) and the loader in C++, built
with address and undefined-behaviour checks, which goes on to decode a batch where it takes a file.
Checkpoints meet the reader of safetensors headers and the converter. Without --quick the whole table is made
and written to docs/results/hostile/files.json; --quick takes every few dozenth file, in Python alone.
"""

import argparse
import json
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from build_sanitized import CHECKS, PROGRAMS, build  # noqa: E402
from hostile import checkpoint_cases, gguf_cases  # noqa: E402
from render_hostile import render  # noqa: E402

from pylucebox.core import processes  # noqa: E402
from pylucebox.core.errors import LuceboxError  # noqa: E402
from pylucebox.core.paths import find_layout  # noqa: E402
from pylucebox.formats.convert import convert  # noqa: E402
from pylucebox.formats.inspect import inspect  # noqa: E402
from pylucebox.formats.memory_plan import predict  # noqa: E402
from pylucebox.formats.safetensors_reader import read_safetensors_header  # noqa: E402
from pylucebox.measure.machine import describe_machine  # noqa: E402
from pylucebox.measure.report import write_text  # noqa: E402

OUT = ROOT / "docs/results/hostile/files.json"
QUICK_STEP = 37  # no divisor of how many values a field is tried with
BATCH = 32  # files a process of the loader


@dataclass
class Row:
    """One group of files at one reader. named: refused by a line that names file, field and remedy.

    taken: the reader found nothing wrong; the loader then decoded a batch. wrong, crashed: names of files.
    """

    reader: str
    group: str
    tried: int = 0
    named: int = 0
    taken: int = 0
    wrong: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)


class Table:
    """Rows in the order in which their groups first appear."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def row(self, reader: str, group: str) -> Row:
        row = self.rows.setdefault((reader, group), Row(reader, group))
        row.tried += 1
        return row

    def judge(self, reader: str, case: gguf_cases.Case, read: Callable[[], object], path: Path) -> None:
        """Try one file in this process."""
        row = self.row(reader, case.group)
        try:
            read()
        except LuceboxError as refused:
            right = refused.message.startswith(str(path)) and refused.hint and "\n" not in refused.message
            if right and (not case.says or any(word in refused.message for word in case.says)):
                row.named += 1
            else:
                row.wrong.append(f"{case.name}: {refused.message}"[:200])
        except Exception as crash:  # a traceback where there should be a line
            row.crashed.append(f"{case.name}: {crash!r}"[:200])
        else:
            row.taken += 1


def python_readers(table: Table, cases: Iterable[gguf_cases.Case], folder: Path) -> None:
    path = folder / "case.gguf"
    for case in cases:
        path.write_bytes(case.make())
        table.judge("inspect, memory plan", case, lambda: predict(inspect(path), context_tokens=4096), path)


def checkpoints(table: Table, folder: Path, step: int) -> None:
    """Safetensors headers one by one, then whole checkpoints; a failed conversion leaves nothing behind."""
    path = folder / "case.safetensors"
    for case in list(checkpoint_cases.file_cases())[::step]:
        path.write_bytes(case.data)
        table.judge("safetensors header", case, lambda: read_safetensors_header(path), path)
    for number, case in enumerate(list(checkpoint_cases.folder_cases())[::step]):
        place = folder / f"checkpoint-{number}"
        source = case.make(place / "c")
        table.judge("convert", case, lambda s=source, p=place: convert(s, "exact", p / "out.gguf"), source)
        left = [p.name for p in place.iterdir() if p.name != "c"]
        if left and left != ["out.gguf"]:
            table.row("convert", case.group).crashed.append(f"{case.name}: left {left}")


class Loader:
    """The sanitized loader. largest_kib: the largest resident set of any process."""

    def __init__(self, table: Table, program: processes.Conversation) -> None:
        self.table = table
        self.largest_kib = 0
        self._program = program

    def load(self, cases: Sequence[gguf_cases.Case], folder: Path) -> None:
        """Load all files, a batch a process. One that ends a process is a crash; those after it go again."""
        first = 0
        while first < len(cases):
            batch = cases[first : first + BATCH]
            paths = [folder / f"{i}.gguf" for i in range(len(batch))]
            for path, case in zip(paths, batch, strict=True):
                path.write_bytes(case.make())
            answer = self._program.ask("\t".join(map(str, paths))).split("\t")
            status, signal, resident_kib, _ = map(int, answer[:4])
            said, outcomes = answer[4:-1:2], [int(word) for word in answer[5::2]]
            self.largest_kib = max(self.largest_kib, resident_kib)
            for case, words, outcome in zip(batch, said, outcomes, strict=False):
                self._judge(case, words, outcome)
            first += len(outcomes)
            if status or signal:
                self._blame(batch, len(outcomes), answer[-1])
                first += len(outcomes) < len(batch)

    def _judge(self, case: gguf_cases.Case, said: str, outcome: int) -> None:
        row = self.table.row("loader, C++", case.group)
        expected = (*case.says, *gguf_cases.LOADER_SAYS.get(case.group, ()))
        if outcome == 0:
            row.taken += 1
        elif outcome == 1 and (not case.says or any(word in said for word in expected)):
            row.named += 1
        else:
            row.wrong.append(f"{case.name}: {said}"[:200])

    def _blame(self, batch: Sequence[gguf_cases.Case], done: int, said: str) -> None:
        case = batch[min(done, len(batch) - 1)]
        where = max(said.find(mark) for mark in ("ERROR: ", "runtime error", "GGML_ASSERT", "Assertion", ":"))
        row = self.table.row("loader, C++", case.group)
        row.crashed.append(f"{case.name}: {said[max(0, where - 100) : where + 300]}")


def native_loader(table: Table, cases: Sequence[gguf_cases.Case], folder: Path, programs: Path) -> int:
    with ExitStack() as held:
        words = [programs / PROGRAMS[1]]
        program = held.enter_context(processes.Conversation(words, folder / "loader.txt"))
        loader = Loader(table, program)
        loader.load(cases, folder)
    return loader.largest_kib


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a sample of the files, the Python readers alone"
    )
    parser.add_argument("--programs", type=Path, help="folder of the sanitized programs (default: build)")
    args = parser.parse_args(argv)
    step = QUICK_STEP if args.quick else 1
    table = Table()
    with tempfile.TemporaryDirectory(prefix="lucebox-hostile-") as name:
        folder = Path(name)
        cases = gguf_cases.all_cases(gguf_cases.base_model(folder))[::step]
        python_readers(table, cases, folder)
        checkpoints(table, folder, step)
        python_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            programs = args.programs or (None if args.quick else build(find_layout()))
            native_kib = native_loader(table, cases, folder, programs) if programs else 0
        except LuceboxError as bad:
            print(f"{bad.message}\nhint: {bad.hint}", file=sys.stderr)
            return bad.exit_code
    rows = list(table.rows.values())
    if not args.quick:
        write_result(rows, python_kib, native_kib)
    return report(rows)


def report(rows: Sequence[Row]) -> int:
    """Print the sums and what went wrong; return the exit code."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(tried=row.tried, named=row.named, taken=row.taken, wrong=len(row.wrong))
        total.update(crashed=len(row.crashed))
        for line in (*row.wrong, *row.crashed):
            print(f"{row.reader}, {row.group}: {line}", file=sys.stderr)
    print(json.dumps(total))
    return 7 if total["wrong"] or total["crashed"] else 0


def write_result(rows: Sequence[Row], python_kib: int, native_kib: int) -> None:
    """Write the committed result and its page."""
    content = {
        "date": date.today().isoformat(),
        "command": "make hostile",
        "machine": asdict(describe_machine()),
        "checks": CHECKS,
        "largest_resident_kib": {"python": python_kib, "loader": native_kib},
        "rows": [asdict(row) for row in rows],
    }
    write_text(OUT, json.dumps(content, indent=1) + "\n")
    render()


if __name__ == "__main__":
    sys.exit(main())
