"""The codecs as the CPU build ships them, called through ggml: its flags must change no byte."""

import ctypes
from typing import Any

import numpy as np
import pytest
from rocmfpx_cases import CODECS, cases, differing_blocks

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_fit import SCALE_MAX

every_type = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@pytest.fixture(scope="module")
def ggml(build: BuildReceipt) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.bin_dir / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_validate_row_data.restype = ctypes.c_bool
    return library


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def quantize_chunk(ggml: ctypes.CDLL, codec: type[Codec], x: Any, importance: Any, first_row: int) -> Any:
    """The rows of x from `first_row` on; rows before stay zero bytes."""
    rows, k = x.shape
    out = np.zeros((rows, k // 32 * codec.block_bytes()), np.uint8)
    numbers = map(ctypes.c_int64, (first_row * k, rows - first_row, k))
    written = ggml.ggml_quantize_chunk(codec.type_id, pointer(x), pointer(out), *numbers, pointer(importance))
    assert written == out[first_row:].nbytes
    return out


@every_type
def test_quantize_chunk(ggml: ctypes.CDLL, codec: type[Codec]) -> None:
    for case in cases(codec):
        for key, importance in (("q", None), ("qw", case.given("im"))):
            got = quantize_chunk(ggml, codec, case.given("x"), importance, 0)
            assert not differing_blocks(codec, got, case.wanted(key)), f"{case.name}.{key}"


@every_type
def test_quantize_chunk_from_a_later_row(ggml: ctypes.CDLL, codec: type[Codec]) -> None:
    x = np.random.default_rng(codec.type_id).normal(0, 0.02, (3, 96)).astype(np.float32)
    got = quantize_chunk(ggml, codec, x, None, 1)
    assert not got[0].any()
    assert not differing_blocks(codec, got[1:], codec.encode(x[1:]))


@every_type
def test_validate_row_data(ggml: ctypes.CDLL, codec: type[Codec]) -> None:
    row = codec.encode(np.random.default_rng(1).normal(size=5 * 32).astype(np.float32))
    assert ggml.ggml_validate_row_data(codec.type_id, pointer(row), ctypes.c_size_t(row.size))
    row.reshape(5, -1)[4, -1] = SCALE_MAX + 1
    assert not ggml.ggml_validate_row_data(codec.type_id, pointer(row), ctypes.c_size_t(row.size))
