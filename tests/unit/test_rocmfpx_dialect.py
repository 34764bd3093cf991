"""Type 107 blocks of every dialect, made here from seeded weights, must be told apart."""

from pathlib import Path

import numpy as np
import pytest

from pylucebox.core.errors import RequestError
from pylucebox.formats.rocmfpx import Codec, RocmFp2
from pylucebox.formats.rocmfpx_dialect import (
    DIALECT_KEY,
    FOREIGN_IDS,
    Dialect,
    detect_dialect,
    require_dialect_a,
    sample_blocks,
)
from pylucebox.formats.rocmfpx_fit import SCALES, nearest_scales

SHAPE = 50, 512
KINDS = ["gauss", "student", "laplace", "uniform"]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_sigma = pytest.mark.parametrize("sigma", [0.002, 0.02, 1.0])


def weights(kind: str, sigma: float) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    draw = {
        "gauss": lambda: rng.normal(size=SHAPE),
        "student": lambda: rng.standard_t(3, SHAPE),
        "laplace": lambda: rng.laplace(size=SHAPE),
        "uniform": lambda: rng.uniform(-2, 2, SHAPE),
    }[kind]
    return (draw() * sigma).astype(np.float32)


def blocks(x: np.ndarray) -> np.ndarray:
    return RocmFp2.encode(x).reshape(-1, 10)


def packed(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.hstack([RocmFp2._pack(codes.astype(np.uint8).reshape(-1, 32)), scales.astype(np.uint8)])


def mirrored(x: np.ndarray) -> np.ndarray:
    """Dialect B: the nearest of -4, -1, 1, 4 times the scale with the least squared error."""
    groups, levels = x.reshape(-1, 16), np.array([-4, -1, 1, 4], np.float32)
    error, best, codes = np.full(len(groups), np.inf), np.zeros(len(groups), int), np.zeros(groups.shape, int)
    for byte in range(1, 127):
        near = np.abs(groups[:, :, None] - levels * SCALES[byte]).argmin(axis=2)
        total = ((groups - levels[near] * SCALES[byte]) ** 2).sum(axis=1)
        better = total < error
        error[better], best[better], codes[better] = total[better], byte, near[better]
    return packed(codes, best.reshape(-1, 2))


def affine(x: np.ndarray) -> np.ndarray:
    """Dialect C: code * scale - offset over the whole block, from its extremes."""
    groups = x.reshape(-1, 32)
    low, high = groups.min(axis=1), groups.max(axis=1)
    scale, offset = nearest_scales((high - low) / 3), nearest_scales(np.maximum(-low, 0))
    codes = np.rint((groups + SCALES[offset][:, None]) / SCALES[np.maximum(scale, 1)][:, None]).clip(0, 3)
    return packed(codes, np.stack([scale, offset], axis=1))


def signed(x: np.ndarray) -> np.ndarray:
    """Dialect D: each half negated when its largest weight is negative."""
    groups = x.reshape(-1, 16)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)
    sign = np.where(largest < 0, np.float32(-1), np.float32(1))
    out = blocks((groups * sign).reshape(-1, 32))
    out[:, 8:] |= (sign.reshape(-1, 2) < 0).astype(np.uint8) << 7
    return out


@every_kind
@every_sigma
def test_every_dialect_is_recognised(kind: str, sigma: float) -> None:
    x = weights(kind, sigma)
    assert detect_dialect(blocks(x)) is Dialect.A
    assert (
        detect_dialect(RocmFp2.encode(x, np.linspace(0.1, 9, 512).astype(np.float32)).reshape(-1, 10))
        is Dialect.A
    )
    assert detect_dialect(mirrored(x[:10])) is Dialect.B
    assert detect_dialect(affine(x)) is Dialect.C
    assert detect_dialect(signed(x)) is Dialect.D


def test_zeros_and_few_blocks_say_nothing() -> None:
    assert detect_dialect(np.zeros((500, 10), np.uint8)) is Dialect.A
    assert detect_dialect(affine(weights("gauss", 1))[:50]) is Dialect.A


def test_one_sided_affine_blocks() -> None:
    assert detect_dialect(affine(np.abs(weights("gauss", 1)))) is Dialect.C


@pytest.mark.parametrize("other", [mirrored, affine, signed])
def test_a_foreign_file_is_refused_by_name(other: object) -> None:
    data = other(weights("gauss", 0.02)[:40])  # type: ignore[operator]
    name = {mirrored: "B", affine: "C", signed: "D"}[other]  # type: ignore[index]
    with pytest.raises(RequestError, match=rf"m\.gguf: .*look like {name} \({Dialect(name).meaning}\)"):
        require_dialect_a(Path("m.gguf"), None, [data])
    require_dialect_a(Path("m.gguf"), "A", [data])


def test_a_declared_dialect_is_believed() -> None:
    good = blocks(weights("gauss", 0.02))
    require_dialect_a(Path("m.gguf"), None, [good, good])
    require_dialect_a(Path("m.gguf"), None, [])
    with pytest.raises(RequestError, match=f"key {DIALECT_KEY} says B"):
        require_dialect_a(Path("m.gguf"), "B", [good])
    with pytest.raises(RequestError, match="says Z, this reads A"):
        require_dialect_a(Path("m.gguf"), "Z", [good])


def test_samples_are_spread_over_the_tensor() -> None:
    data = np.repeat(np.arange(250, dtype=np.uint8), 10).reshape(5, 500)
    assert sample_blocks(data, 100)[:, 0].tolist() == list(range(0, 250, 3))
    assert len(sample_blocks(data)) == 250


def test_foreign_ids_are_not_ours() -> None:
    assert not FOREIGN_IDS.keys() & Codec.by_id.keys()
