"""The converter's numpy encoders against ggml's reference quantisers in the built library, byte for byte."""

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.encoders import encode_rows
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.number_formats import round_to_bf16

COLUMNS = 256
FUNCTIONS = {"Q8_0": "quantize_row_q8_0_ref", "MXFP4": "quantize_row_mxfp4_ref"}


@pytest.fixture(scope="module")
def ggml(build: BuildReceipt) -> ctypes.CDLL:
    return ctypes.CDLL(str(build.bin_dir / "libggml-base.so"))


def cases() -> NDArray[np.float32]:
    """Rows of every kind: normal, ties, outliers, every magnitude a half scale can hold, random bits."""
    random = np.random.default_rng(5)
    plain = random.standard_normal((400, COLUMNS))
    ties = random.integers(-254, 255, (200, COLUMNS)) / 2
    ties[:, ::32] = 127
    magnitudes = plain[:200] * 2.0 ** random.integers(-40, 18, (200, 1))
    outliers = np.where(random.random((100, COLUMNS)) < 0.02, 300.0, plain[:100])
    bits = random.integers(0, 2**32, (400, COLUMNS), dtype=np.uint32)
    wild = ((bits & 0x807FFFFF) | (random.integers(90, 140, (400, 1)) << 23).astype(np.uint32)).view(
        np.float32
    )
    edges = np.resize([0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 0.5, 6.0, 5.0, 2.5, 1.75, 0.25], (1, COLUMNS))
    zeros = np.zeros((1, COLUMNS))
    return np.vstack([plain, ties, magnitudes, outliers, wild, edges, zeros]).astype(np.float32)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_equal_to_ggml(ggml: ctypes.CDLL, name: str) -> None:
    values = np.ascontiguousarray(cases())
    ours = encode_rows(values, TYPES[name])
    theirs = np.zeros_like(ours)
    function = getattr(ggml, FUNCTIONS[name])
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    for row in range(len(values)):
        function(values[row].ctypes.data, theirs[row].ctypes.data, COLUMNS)
    wrong = np.flatnonzero((ours != theirs).any(axis=1))
    assert wrong.size == 0, (
        f"{wrong.size} of {len(values)} rows differ, first {wrong[0]}: {values[wrong[0]][:32]}"
    )


def test_bf16_equal_to_ggml(ggml: ctypes.CDLL) -> None:
    values = np.ascontiguousarray(cases())
    theirs = np.zeros(values.shape, np.uint16)
    function = ggml.ggml_fp32_to_bf16_row_ref
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(values.ctypes.data, theirs.ctypes.data, values.size)
    assert np.array_equal(round_to_bf16(values), theirs)
