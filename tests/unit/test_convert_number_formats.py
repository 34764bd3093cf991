"""Decoders and encoders against tables and against independent implementations."""

from fractions import Fraction

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from pylucebox.formats.encode_parts import BYTES_PER_VALUE
from pylucebox.formats.encoders import ENCODERS, encode_rows
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.number_formats import (
    E4M3_VALUES,
    E8M0_VALUES,
    decode_bf16,
    decode_e8m0,
    decode_fp4,
    decode_fp8,
    repack_fp4_as_mxfp4,
    require_finite,
    round_to_bf16,
)


def e4m3(code: int) -> Fraction:
    sign = -1 if code & 128 else 1
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent:
        return sign * Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
    return sign * Fraction(mantissa) * Fraction(2) ** -9


def test_every_e4m3_code() -> None:
    for code in range(256):
        if code & 127 == 127:
            assert np.isnan(E4M3_VALUES[code])
        else:
            assert Fraction(float(E4M3_VALUES[code])) == e4m3(code), code
    assert E4M3_VALUES[0x7E] == 448 and np.signbit(E4M3_VALUES[0x80])


def test_every_e8m0_code() -> None:
    for code in range(255):
        assert Fraction(float(E8M0_VALUES[code])) == Fraction(2) ** (code - 127), code
    with pytest.raises(ValueError, match="255"):
        decode_e8m0(np.array([[3, 255]], np.uint8))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_fp8_not_a_number(code: int) -> None:
    with pytest.raises(ValueError, match="not a number"):
        decode_fp8(np.array([[0, code]], np.uint8), np.array([[127]], np.uint8), (128, 128))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 128), (130, 140), (300, 5), (64, 256)])
@pytest.mark.parametrize("step", [7, 128, 1000])
def test_fp8_blocks_may_be_partial_and_rows_may_start_anywhere(rows: int, columns: int, step: int) -> None:
    random = np.random.default_rng(rows * columns)
    codes = random.integers(0, 127, (rows, columns)).astype(np.uint8)
    scales = random.integers(100, 150, (-(-rows // 128), -(-columns // 128))).astype(np.uint8)
    wanted = np.empty((rows, columns))
    for i in range(rows):
        for j in range(columns):
            wanted[i, j] = E4M3_VALUES[codes[i, j]] * 2.0 ** (int(scales[i // 128, j // 128]) - 127)
    parts = [decode_fp8(codes[i : i + step], scales, (128, 128), i) for i in range(0, rows, step)]
    assert np.array_equal(np.vstack(parts).astype(float), wanted)


def test_fp8_block_size_is_the_checkpoints() -> None:
    codes = np.full((3, 3), 0x38, np.uint8)  # 1.0
    scales = np.array([[127, 128], [129, 130]], np.uint8)
    assert decode_fp8(codes, scales, (2, 2)).tolist() == [[1, 1, 2], [1, 1, 2], [4, 4, 8]]


def test_fp4_nibble_order_and_negative_zero() -> None:
    packed = np.zeros((1, 16), np.uint8)
    packed[0, 0], packed[0, 15] = 0x21, 0xF8  # elements 0, 1 = 0.5, 1; elements 30, 31 = -0, -6
    values = decode_fp4(packed, np.array([[128]], np.uint8))
    assert values[0, :2].tolist() == [1, 2] and values[0, 31] == -12
    assert values[0, 30] == 0 and np.signbit(values[0, 30])


def test_mxfp4_repack_loses_nothing() -> None:
    random = np.random.default_rng(4)
    packed = random.integers(0, 256, (5, 48)).astype(np.uint8)
    scales = random.integers(0, 255, (5, 3)).astype(np.uint8)
    blocks = repack_fp4_as_mxfp4(packed, scales)
    theirs = dequantize(blocks, GGMLQuantizationType.MXFP4)
    assert np.array_equal(theirs, decode_fp4(packed, scales))
    with pytest.raises(ValueError, match="255"):
        repack_fp4_as_mxfp4(packed, np.full((5, 3), 255, np.uint8))


def test_every_bf16_code_survives() -> None:
    codes = np.arange(65536, dtype=np.uint16)
    finite = codes[(codes & 0x7F80) != 0x7F80]
    assert np.array_equal(round_to_bf16(decode_bf16(finite)), finite)


def test_bf16_rounds_ties_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x007FFFFF, 0xBF818000], np.uint32)
    assert round_to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x0080, 0xBF82]


def test_fp8_and_fp4_values_are_exact_in_bf16() -> None:
    codes = np.array([[c for c in range(256) if c & 127 != 127]], np.uint8)
    for scale in range(7, 246):  # from here on 448 times the scale overflows, below it BF16 is subnormal
        values = decode_fp8(codes, np.array([[scale] * 2], np.uint8), (128, 128))
        assert np.array_equal(decode_bf16(round_to_bf16(values)), values)


EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 127.0, 63.5, -63.5, 0.5, 1e-30, -1e-30, 1e-38, 3e38 * 0, 8e6, 2.5, 3.5, -2.5],
    np.float32,
)


def rows_for_quantisers() -> np.ndarray:  # type: ignore[type-arg]
    random = np.random.default_rng(8)
    plain = random.standard_normal((64, 128)).astype(np.float32)
    ties = (random.integers(-254, 255, (32, 128)) / 2).astype(np.float32)
    ties[:, ::32] = 127
    outlier = plain[:8] * 1e-3
    outlier[:, 5::32] = 1000
    scaled = plain[:32] * np.float32(2) ** random.integers(-100, 12, (32, 1)).astype(np.float32)
    edges = np.resize(EDGES, (4, 128))
    return np.vstack([plain, ties, outlier, scaled, edges, np.zeros((1, 128), np.float32)])


def test_q8_0_equals_the_reference_bit_for_bit() -> None:
    values = rows_for_quantisers()
    assert np.array_equal(encode_rows(values, TYPES["Q8_0"]), quantize(values, GGMLQuantizationType.Q8_0))


def test_mxfp4_equals_the_reference_bit_for_bit() -> None:
    values = rows_for_quantisers()
    assert np.array_equal(encode_rows(values, TYPES["MXFP4"]), quantize(values, GGMLQuantizationType.MXFP4))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_equal_the_reference(name: str) -> None:
    values = rows_for_quantisers()[:100].clip(-60000, 60000)
    theirs = quantize(values, GGMLQuantizationType[name])
    assert np.array_equal(encode_rows(values, TYPES[name]), theirs.view(np.uint8))


@pytest.mark.parametrize(
    ("name", "value"), [("F16", 65520.0), ("F16", -1e9), ("BF16", 3.4e38), ("Q8_0", 1e7)]
)
def test_values_that_do_not_fit_are_refused(name: str, value: float) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 3] = value
    with pytest.raises(ValueError, match="holds a value"):
        encode_rows(values, TYPES[name])


def test_rows_that_break_a_block_are_refused() -> None:
    for name in ("Q8_0", "MXFP4"):
        with pytest.raises(ValueError, match="no multiple of 32"):
            encode_rows(np.zeros((2, 40), np.float32), TYPES[name])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinities_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="infinity or a value"):
        require_finite(np.array([1, value], np.float32))


def test_a_type_has_one_encoder() -> None:
    from pylucebox.formats.encoders import Encoder

    with pytest.raises(TypeError, match="two encoders for Q8_0"):

        class Second(Encoder, type_name="Q8_0"):
            pass


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_bytes_per_value_bounds_what_an_encoder_allocates(name: str) -> None:
    import tracemalloc

    values = np.random.default_rng(1).standard_normal((256, 4096)).astype(np.float32)
    tracemalloc.start()
    encode_rows(values, TYPES[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + values.nbytes * 2 < BYTES_PER_VALUE * values.size  # values, and one copy while decoding
