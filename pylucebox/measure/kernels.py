"""Dot products of the ROCmFPX types beside the upstream type each competes with."""

from collections.abc import Sequence

from pylucebox.core.errors import GateError, RequestError
from pylucebox.measure.compare import Comparison
from pylucebox.measure.programs import Pair, Record, pairs_of

PROGRAM = "bench-lucebox-kernels"
SCALAR = "/scalar"

# Ours, the upstream type of about the same size that a user would otherwise pick, and the least ratio to it
# that the interval's lower end should reach.
PAIRS = (
    ("q2_0_rocmfp2", "q2_K", 0.9),
    ("q3_0_rocmfpx", "q3_K", 0.9),
    ("q4_0_rocmfp4_fast", "mxfp4", 1.0),
    ("q4_0_rocmfp4_fast", "q4_0", 1.0),
    ("q4_0_rocmfp4", "q4_0", 1.0),
    ("q4_0_rocmfp4", "nvfp4", 1.0),
    ("q6_0_rocmfpx", "q6_K", 1.0),
    ("q8_0_rocmfpx", "q8_0", 1.0),
)
SCALAR_GOAL = 5.0  # to our own scalar code


def find_pairs(records: Sequence[Record], only: str = "") -> tuple[Pair, ...]:
    """Return the pairs to measure: `PAIRS`, then each type against its own scalar code, in every case.

    only: keep pairs whose case or arms contain this text. Raises RequestError when a type of `PAIRS` is not
    offered in any case, so that a table can never be short of a row unnoticed, or when nothing is left.
    """
    ours = list(dict.fromkeys(b for b, _, _ in PAIRS))
    missing = {name for pair in PAIRS for name in pair[:2]} - {r.arm for r in records}
    if missing:
        raise RequestError(f"{PROGRAM} does not measure {', '.join(sorted(missing))}")
    wanted = [(theirs, b) for b, theirs, _ in PAIRS] + [(name + SCALAR, name) for name in ours]
    pairs = [pair for a, b in wanted for pair in pairs_of(records, a, b)]
    kept = tuple(p for p in pairs if any(only in text for text in (p.a.case, p.a.arm, p.b.arm)))
    if not kept:
        raise RequestError(f"no pair matches '{only}'" if only else f"{PROGRAM} lists no pair of one case")
    return kept


def check_goals(comparisons: Sequence[Comparison]) -> None:
    """Raise GateError that names every comparison whose lower end misses its goal."""
    goals = {(b, a): goal for b, a, goal in PAIRS}
    missed = []
    for c in comparisons:
        goal = goals.get((c.arm_b, c.arm_a), SCALAR_GOAL)
        if c.ratio.low < goal:
            missed.append(f"{c.case}: {c.arm_b} against {c.arm_a} {c.ratio.low:.3f}, goal {goal:g}")
    if missed:
        raise GateError(f"{len(missed)} of {len(comparisons)} pairs miss their goal: {'; '.join(missed)}")
