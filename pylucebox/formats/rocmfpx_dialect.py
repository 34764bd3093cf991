"""Dialects of tensor type 107: other programs give other meanings to the id, and their files do not say so.

A file of ours carries `DIALECT_KEY`. A file without it is judged by statistics of its blocks: a reader of the
wrong dialect loads it without complaint and answers nonsense.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import numpy as np

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_reader import GgufHeader
from pylucebox.formats.rocmfpx import Bytes, RocmFp2
from pylucebox.formats.rocmfpx_fit import SCALE_MAX

DIALECT_KEY = "lucebox.rocmfp2.dialect"

# Ids that other programs use and we do not, with what they hold there.
FOREIGN_IDS = {
    105: "TURBO3_0 cache or Q3_1_ROCMFP3_MIX",
    106: "TURBO4_0 cache or Q2_1_ROCMFP2_MIX",
    108: "Q4_0_ROCMI4",
}

SAMPLE_BLOCKS = 100_000
SAMPLE_TENSORS, SAMPLE_WINDOWS = 8, 8  # of a file; blocks that follow each other are cheap to read
FEWEST_BLOCKS = 100  # below, frequencies say too little
# In A the two scale bytes are interchangeable: of the blocks where they differ, half have the second larger.
# In C the second is an offset: larger in 0.74 and more of the blocks when weights spread around zero, in 0.1
# and less when they have one sign.
HALVES_DIFFER = 0.2
# |p0 - p3| + |p1 - p2| of code frequencies. B has mirrored levels: 0.00. A has none: 0.25 to 0.9 on weights
# spread around zero, from uniform to sparse; 0.17 on a skewed distribution.
MIRRORED = 0.1


class Dialect(StrEnum):
    """What the bytes of a type 107 block mean. Only A is ours."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"

    @property
    def meaning(self) -> str:
        return {
            Dialect.A: "levels -1, 0, 1, 2 and two scales",
            Dialect.B: "levels -4, -1, 1, 4, known as q2_0_rocmfpx",
            Dialect.C: "a scale and an offset for the whole block, the affine option",
            Dialect.D: "scales with a sign bit, known as fp2s",
        }[self]


def detect_dialect(blocks: Bytes) -> Dialect:
    """Judge blocks of type 107 by their statistics.

    blocks: uint8, shape (n, 10), a sample of 10^3 to 10^5 from weights spread around zero. With fewer than
    FEWEST_BLOCKS that carry information the answer is A unless a scale byte has its sign bit set.
    """
    scales = blocks[:, RocmFp2.code_bytes() :].astype(np.int16)
    if (scales > SCALE_MAX + 1).any():
        return Dialect.D
    differ = scales[:, 0] != scales[:, 1]
    if np.count_nonzero(differ) >= FEWEST_BLOCKS:
        second_larger = float((scales[differ, 1] > scales[differ, 0]).mean())
        if abs(second_larger - 0.5) > HALVES_DIFFER:
            return Dialect.C
    blocks = blocks[(scales > 0).all(axis=1)]
    if len(blocks) < FEWEST_BLOCKS:
        return Dialect.A
    codes = blocks[:, : RocmFp2.code_bytes()]
    counts = [np.count_nonzero((codes >> shift & 3) == code) for code in range(4) for shift in (0, 2, 4, 6)]
    p0, p1, p2, p3 = np.array(counts).reshape(4, 4).sum(axis=1) / (codes.size * 4)
    return Dialect.B if abs(p0 - p3) + abs(p1 - p2) < MIRRORED else Dialect.A


def sample_blocks(data: Bytes, limit: int = SAMPLE_BLOCKS) -> Bytes:
    """At most `limit` blocks, evenly spaced, of a packed tensor (uint8, any shape, may be a memory map)."""
    blocks = data.reshape(-1, RocmFp2.block_bytes())
    return np.array(blocks[:: max(1, -(-len(blocks) // limit))])


def require_dialect_a(path: Path, declared: str | None, tensors: Iterable[Bytes]) -> None:
    """Refuse a file whose type 107 tensors are of another dialect.

    declared: value of DIALECT_KEY; None if the file lacks it, then its tensors are sampled. tensors: packed
    data of those of type 107. Raises RequestError, which names the dialect.
    """
    samples = [] if declared is not None else [sample_blocks(data, SAMPLE_BLOCKS // 8) for data in tensors]
    found = (
        declared
        if declared is not None
        else detect_dialect(np.concatenate(samples))
        if samples
        else Dialect.A
    )
    if found == Dialect.A:
        return
    meaning = f" ({Dialect(found).meaning})" if found in list(Dialect) else ""
    how = f"key {DIALECT_KEY} says" if declared is not None else "its blocks look like"
    raise RequestError(
        f"{path}: tensors of type 107 in another dialect: {how} {found}{meaning}, this reads A",
        hint="convert the model again from its safetensors files: lucebox convert",
    )


def examine_file(header: GgufHeader) -> bool:
    """Refuse the file unless its tensors of type 107, if any, are ours; return whether its key says so.

    Reads a sample of the data when the key is missing. Raises RequestError, which names the dialect.
    """
    declared = header.value(DIALECT_KEY)
    known = None if declared is None else str(declared)
    require_dialect_a(header.path, known, _windows(header) if declared is None else ())
    return declared is not None


def _windows(header: GgufHeader) -> Iterator[Bytes]:
    """Yield runs of blocks from places all over the file's tensors of type 107."""
    tensors = [t for t in header.tensors if t.type.id == RocmFp2.type_id]
    block, wanted = RocmFp2.block_bytes(), SAMPLE_BLOCKS // (SAMPLE_TENSORS * SAMPLE_WINDOWS)
    with header.path.open("rb") as stream:
        for tensor in tensors[:: max(1, -(-len(tensors) // SAMPLE_TENSORS))]:
            blocks = tensor.size_bytes // block
            step = max(wanted, -(-blocks // SAMPLE_WINDOWS))
            for first in range(0, blocks, step):
                stream.seek(header.data_offset + tensor.offset + first * block)
                yield np.frombuffer(stream.read(min(wanted, blocks - first) * block), np.uint8)
