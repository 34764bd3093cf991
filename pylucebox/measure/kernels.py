"""Dot products of the ROCmFPX types beside the upstream type each competes with."""

from collections.abc import Sequence

from pylucebox.core.errors import RequestError
from pylucebox.measure.programs import Pair, Record, pairs_of

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


def find_pairs(records: Sequence[Record], only: str = "") -> tuple[Pair, ...]:
    """Return the pairs to measure: `PAIRS`, then each type against its own scalar code, in every case.

    only: keep pairs whose case or arms contain this text. Raises RequestError when a type of `PAIRS` is not
    offered in any case, so that a table can never be short of a row unnoticed, or when nothing is left.
    """
    ours = list(dict.fromkeys(b for b, _ in PAIRS))
    missing = {name for pair in PAIRS for name in pair} - {r.arm for r in records}
    if missing:
        raise RequestError(f"{PROGRAM} does not measure {', '.join(sorted(missing))}")
    wanted = [(theirs, b) for b, theirs in PAIRS] + [(name + SCALAR, name) for name in ours]
    pairs = [pair for a, b in wanted for pair in pairs_of(records, a, b)]
    kept = tuple(p for p in pairs if any(only in text for text in (p.a.case, p.a.arm, p.b.arm)))
    if not kept:
        raise RequestError(f"no pair matches '{only}'" if only else f"{PROGRAM} lists no pair of one case")
    return kept
