"""The checkpoint's number formats decoded to float32, and the exact repacking of FP4 into ggml's MXFP4.

E8M0: a scale 2^(b - 127); b = 255 is not a number. E4M3: sign, 4 exponent bits of bias 7, 3 mantissa bits, no
infinities; 0x7F and 0xFF are not numbers. FP4 (E2M1): sign and an index into 0, .5, 1, 1.5, 2, 3, 4, 6.
A value that is not a number raises ValueError; the caller adds file and tensor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

FP4_GROUP = 32  # values that share one scale
FP4_LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E8M0_NAN = 255


def _e4m3_table() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    value = np.where((codes & 127) == 127, np.nan, value)
    return np.where(codes & 128, -value, value).astype(np.float32)


def _e8m0_table() -> Floats:
    table = np.ldexp(1.0, np.arange(256) - 127)
    table[E8M0_NAN] = np.nan
    return table.astype(np.float32)


E4M3_VALUES = _e4m3_table()
E8M0_VALUES = _e8m0_table()


def decode_e8m0(codes: Codes) -> Floats:
    """Return the scales of E8M0 `codes`, same shape. Raises ValueError for code 255."""
    if codes.size and codes.max() == E8M0_NAN:
        raise ValueError("holds the scale code 255, which is not a number")
    return E8M0_VALUES[codes]


def decode_fp8(codes: Codes, scales: Codes, block: tuple[int, int], first_row: int = 0) -> Floats:
    """Decode rows of an FP8 matrix: w[i, j] = e4m3(codes[i, j]) * 2^(scales[i // rows, j // columns] - 127).

    codes: shape (n, columns), rows first_row .. first_row + n. scales: E8M0 of the whole matrix, shape
    (ceil(rows / block[0]), ceil(columns / block[1])); blocks at the edges may be partial.
    Returns float32 (n, columns). Raises ValueError for codes that are not numbers.
    """
    if ((codes & 127) == 127).any():
        raise ValueError("holds an FP8 code that is not a number")
    factors = decode_e8m0(scales)
    values = E4M3_VALUES[codes]
    row = 0
    while row < len(values):
        band = (first_row + row) // block[0]
        stop = min((band + 1) * block[0] - first_row, len(values))
        values[row:stop] *= np.repeat(factors[band], block[1])[: values.shape[1]]
        row = stop
    return values


def decode_fp4(packed: Codes, scales: Codes) -> Floats:
    """Decode rows of a packed FP4 matrix.

    packed: shape (n, columns / 2), element 2t of a row in the low and 2t + 1 in the high nibble of byte t.
    scales: E8M0, shape (n, columns / 32), one for 32 consecutive elements. Returns float32 (n, columns).
    Raises ValueError for scale code 255.
    """
    values = np.empty((len(packed), packed.shape[1] * 2), np.float32)
    values[:, 0::2] = FP4_LEVELS[packed & 15]
    values[:, 1::2] = FP4_LEVELS[packed >> 4]
    grouped = values.reshape(len(values), -1, FP4_GROUP)
    grouped *= decode_e8m0(scales)[:, :, None]
    return values


def repack_fp4_as_mxfp4(packed: Codes, scales: Codes) -> Codes:
    """Reorder FP4 rows into ggml's MXFP4 blocks without changing a value.

    packed, scales: as in decode_fp4. Returns uint8, shape (n, columns / 32 * 17): a block is the scale byte,
    then 16 bytes holding element t (low nibble) and element t + 16 (high nibble).
    Raises ValueError for scale code 255.
    Source: block_mxfp4 and dequantize_row_mxfp4 of ggml (which halves the scale and doubles the levels).
    """
    decode_e8m0(scales)
    rows, groups = scales.shape
    pairs = packed.reshape(rows, groups, FP4_GROUP // 2)
    elements = np.empty((rows, groups, FP4_GROUP), np.uint8)
    elements[:, :, 0::2] = pairs & 15
    elements[:, :, 1::2] = pairs >> 4
    blocks = np.empty((rows, groups, 1 + FP4_GROUP // 2), np.uint8)
    blocks[:, :, 0] = scales
    blocks[:, :, 1:] = elements[:, :, :16] | (elements[:, :, 16:] << 4)
    return blocks.reshape(rows, -1)


def decode_bf16(codes: NDArray[np.uint16]) -> Floats:
    """Return BF16 `codes` as float32, same shape: the upper half of the float's bits."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round float32 to BF16, ties to even, same shape. `values` must be finite numbers."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def require_finite(values: NDArray[Any]) -> None:
    """Raise ValueError when `values` holds an infinity or a value that is not a number."""
    if not np.isfinite(values).all():
        raise ValueError("holds an infinity or a value that is not a number")
