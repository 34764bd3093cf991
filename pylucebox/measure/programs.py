"""Native benchmark programs as arms: one JSON object a line, by the contract in docs/benchmarks.md."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.measure.benchmark import Arm, Plan, Progress, interleave
from pylucebox.measure.compare import Comparison, higher_is_better


@dataclass(frozen=True)
class Record:
    """One line of a benchmark program. value: None where the program only lists what it can measure.

    layout: how the arm keeps its data in memory, where the program says so.
    """

    case: str
    arm: str
    unit: str
    value: float | None
    layout: str = ""


def parse_record(line: str, program: str, *, valued: bool = True) -> Record:
    """Read one line. Raises IntegrityError naming the program and the field that is absent or malformed.

    An object with the key `error` raises RequestError with the program's own words.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise IntegrityError(f"{program}: not a JSON object: {line!r}")
    if "error" in data:
        raise RequestError(f"{program}: {data['error']}")
    for field in ("case", "arm", "unit"):
        if not isinstance(data.get(field), str) or not data[field]:
            raise IntegrityError(f"{program}: field '{field}' is missing or malformed in {line!r}")
    higher_is_better(data["unit"])
    if not valued:
        return Record(data["case"], data["arm"], data["unit"], None)
    value: Any = data.get("value")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise IntegrityError(f"{program}: field 'value' is missing or malformed in {line!r}")
    return Record(data["case"], data["arm"], data["unit"], float(value), str(data.get("layout", "")))


def list_records(
    argv: Sequence[str | Path], errors_path: Path, env: Mapping[str, str | None] | None = None
) -> tuple[Record, ...]:
    """Return what a program can measure: the lines of `PROGRAM --list`. Raises IntegrityError on a repeat."""
    name = Path(argv[0]).name
    output = processes.run([*argv, "--list"], errors_path=errors_path, env=env, error=RequestError)
    records = tuple(parse_record(line, name, valued=False) for line in output.lines if line.strip())
    if len({(r.case, r.arm) for r in records}) != len(records):
        raise IntegrityError(f"{name} --list names a case and arm twice")
    return records


@dataclass(frozen=True)
class Pair:
    """Two arms of one case: `a` is held against by `b`."""

    a: Record
    b: Record


def pairs_of(records: Sequence[Record], a: str, b: str) -> tuple[Pair, ...]:
    """Return the pair of arms `a` and `b` in every case that has both."""
    known = {(r.case, r.arm): r for r in records}
    cases = dict.fromkeys(r.case for r in records)
    both = [case for case in cases if (case, a) in known and (case, b) in known]
    return tuple(Pair(known[case, a], known[case, b]) for case in both)


class Resident:
    """A benchmark program held open with --serve, asked for one measurement at a time."""

    def __init__(
        self, argv: Sequence[str | Path], errors_path: Path, env: Mapping[str, str | None] | None = None
    ) -> None:
        self.layouts: dict[tuple[str, str], str] = {}  # of each case and arm, as last measured
        self._name = Path(argv[0]).name
        self._conversation = processes.Conversation([*argv, "--serve"], errors_path, env)

    def arm(self, record: Record) -> Arm:
        """Return the arm that asks for `record`'s case and arm."""
        return Arm(record.arm, lambda: {record.case: self.measure(record)})

    def measure(self, wanted: Record) -> float:
        """Return one measurement. Raises IntegrityError when the answer is about something else."""
        line = self._conversation.ask(f"{wanted.case}\t{wanted.arm}")
        record = parse_record(line, self._name)
        if (record.case, record.arm, record.unit) != (wanted.case, wanted.arm, wanted.unit):
            raise IntegrityError(
                f"{self._name}: asked for {wanted.arm}, '{wanted.case}', {wanted.unit}; got {line!r}"
            )
        assert record.value is not None
        self.layouts[record.case, record.arm] = record.layout
        return record.value

    def __enter__(self) -> "Resident":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._conversation.__exit__(kind, error, trace)


def measure_pairs(
    argv: Sequence[str | Path],
    pairs: Sequence[Pair],
    errors_path: Path,
    plan: Plan,
    progress: Progress | None = None,
    on_pair: Callable[[Comparison], None] | None = None,
) -> tuple[Comparison, ...]:
    """Measure each pair in turn with the program `argv`, which stays resident.

    progress: called with (runs done, runs in all). on_pair: called with each comparison when it is done.
    """
    results: list[Comparison] = []
    with Resident(argv, errors_path) as program:
        for index, pair in enumerate(pairs):

            def advance(done: int, total: int, before: int = index) -> None:
                if progress:
                    progress(before * total + done, len(pairs) * total)

            a, b = pair.a, pair.b
            (found,) = interleave(program.arm(a), program.arm(b), a.unit, plan, advance)
            layouts = [program.layouts[one.case, one.arm] for one in (a, b)]
            results.append(replace(found, layout_a=layouts[0], layout_b=layouts[1]))
            if on_pair:
                on_pair(results[-1])
    return tuple(results)


def rerun(name: str, argv: Sequence[str | Path], errors_path: Path) -> Arm:
    """Return an arm that starts the program anew for each run and takes its lines for arm `name`.

    Several lines of one case give their geometric mean.
    """

    def run() -> dict[str, float]:
        output = processes.run(argv, errors_path=errors_path, error=RequestError)
        records = [parse_record(line, Path(argv[0]).name) for line in output.lines if line.strip()]
        return by_case(r for r in records if r.arm == name)

    return Arm(name, run)


def by_case(records: Iterable[Record]) -> dict[str, float]:
    """Return the geometric mean of the values of each case."""
    logs: dict[str, list[float]] = {}
    for record in records:
        logs.setdefault(record.case, []).append(math.log(record.value or 0))
    return {case: math.exp(fmean(values)) for case, values in logs.items()}
