"""Dot products of the ROCmFPX types beside the upstream type each competes with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import RequestError
from pylucebox.measure.benchmark import Plan, Progress, interleave
from pylucebox.measure.compare import Comparison
from pylucebox.measure.programs import Record, Resident, list_records

PROGRAM = "bench-lucebox-kernels"
SCALAR = "/scalar"

# Ours, and the upstream type of about the same size that a user would otherwise pick.
PAIRS = (
    ("q2_0_rocmfp2", "q2_K"),
    ("q3_0_rocmfpx", "q3_K"),
    ("q4_0_rocmfp4_fast", "mxfp4"),
    ("q4_0_rocmfp4_fast", "q4_0"),
    ("q4_0_rocmfp4", "q4_0"),
    ("q4_0_rocmfp4", "nvfp4"),
    ("q6_0_rocmfpx", "q6_K"),
    ("q8_0_rocmfpx", "q8_0"),
)


@dataclass(frozen=True)
class Pair:
    """Two arms of one case: `a` is held against by `b`."""

    a: Record
    b: Record


def find_pairs(records: Sequence[Record], only: str = "") -> tuple[Pair, ...]:
    """Return the pairs to measure: `PAIRS`, then each type against its own scalar code, in every case.

    only: keep pairs whose case or arms contain this text. Raises RequestError when a type of `PAIRS` is not
    offered in any case, so that a table can never be short of a row unnoticed, or when nothing is left.
    """
    known = {(r.case, r.arm): r for r in records}
    cases = list(dict.fromkeys(r.case for r in records))
    ours = list(dict.fromkeys(b for b, _ in PAIRS))
    missing = {name for pair in PAIRS for name in pair} - {r.arm for r in records}
    if missing:
        raise RequestError(f"{PROGRAM} does not measure {', '.join(sorted(missing))}")
    wanted = [(theirs, b) for b, theirs in PAIRS] + [(name + SCALAR, name) for name in ours]
    pairs = [
        Pair(known[case, a], known[case, b])
        for a, b in wanted
        for case in cases
        if (case, a) in known and (case, b) in known
    ]
    kept = tuple(p for p in pairs if any(only in text for text in (p.a.case, p.a.arm, p.b.arm)))
    if not kept:
        raise RequestError(f"no pair matches '{only}'" if only else f"{PROGRAM} lists no pair of one case")
    return kept


def measure_kernels(
    argv: Sequence[str | Path],
    log_dir: Path,
    plan: Plan,
    only: str = "",
    progress: Progress | None = None,
    on_pair: Callable[[Comparison], None] | None = None,
) -> tuple[Comparison, ...]:
    """Measure every pair with the program `argv`, which stays resident. on_pair: called after each pair."""
    pairs = find_pairs(list_records(argv, log_dir / "list.log"), only)
    results: list[Comparison] = []
    with Resident(argv, log_dir / "serve.log") as program:
        for index, pair in enumerate(pairs):

            def advance(done: int, total: int, before: int = index) -> None:
                if progress:
                    progress(before * total + done, len(pairs) * total)

            found = interleave(program.arm(pair.a), program.arm(pair.b), pair.a.unit, plan, advance)
            results.extend(found)
            if on_pair:
                on_pair(found[0])
    return tuple(results)
