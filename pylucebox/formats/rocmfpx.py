"""The ROCmFPX tensor types: numpy codecs, equal bit for bit to the scalar C code in ggml/src/ggml-rocmfpx.

A block holds 32 weights: packed codes, then one scale byte for each group of 16 or 32 weights. A weight is
`level[code] * SCALES[byte]`. A format is one subclass of `Codec`; the class statement registers it.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .rocmfpx_fit import RECIPROCALS, SCALE_MAX, SCALES, fit_scales, importance_weights

Floats = npt.NDArray[np.float32]
Levels = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

BLOCK_WEIGHTS = 32
Q8_0_BYTES = 34  # activation block: half scale, 32 int8
PART_WEIGHTS = 1 << 16  # encoded at a time, so that the arrays of one step stay in cache


class Codec:
    """One format: how a weight becomes a level, a level a code, and codes bytes.

    type_id: ggml_type, as written in a GGUF file. name: as ggml_type_name. bits: of one code. group: weights
    under one scale byte. levels: int8, by code. The rest says how the encoder and the dot product behave.
    """

    type_id: ClassVar[int]
    name: ClassVar[str]
    stem: ClassVar[str]
    bits: ClassVar[int]
    group: ClassVar[int]
    levels: ClassVar[Levels]
    top: ClassVar[int]  # largest level
    nibble_halves: ClassVar[bool] = False  # weights 0 and 16 share byte 0, instead of weights 0 and 1
    refuses_overflow: ClassVar[bool] = False  # only a scale with an error below FLT_MAX can be chosen, else 0
    nearest_scale: ClassVar[bool] = False  # without importance: the scale nearest to max / top, no search
    scale_first: ClassVar[bool] = False  # dot product: scale * activation scale first, then the integer sum

    by_id: ClassVar[dict[int, type["Codec"]]] = {}
    code_by_level: ClassVar[Bytes]

    def __init_subclass__(cls, *, type_id: int | None = None) -> None:
        super().__init_subclass__()
        if type_id is None:
            return
        if type_id in Codec.by_id:
            raise TypeError(f"type {type_id} has two codecs: {Codec.by_id[type_id].__name__}, {cls.__name__}")
        cls.type_id = type_id
        # Codes that the encoder writes, by level + 128: the lowest code of a level, so never a negative zero.
        cls.code_by_level = np.zeros(256, np.uint8)
        for code in reversed(range(len(cls.levels))):
            cls.code_by_level[int(cls.levels[code]) + 128] = code
        Codec.by_id[type_id] = cls

    @classmethod
    def code_bytes(cls) -> int:
        return BLOCK_WEIGHTS * cls.bits // 8

    @classmethod
    def scale_count(cls) -> int:
        return BLOCK_WEIGHTS // cls.group

    @classmethod
    def block_bytes(cls) -> int:
        return cls.code_bytes() + cls.scale_count()

    @classmethod
    def quantise(cls, q: Floats) -> Floats:
        """Level nearest to each q = fl(weight * reciprocal), by the rule of the format; float32."""
        raise AssertionError(f"{cls.__name__} has no rounding rule")

    @classmethod
    def encode(cls, x: Floats, importance: Floats | None = None) -> Bytes:
        """Encode rows of weights.

        x: float32, shape (..., k), k a multiple of 32; NaN and infinities encode as zero.
        importance: float32, shape (k,), used for every row, or None.
        Returns uint8, shape (..., k / 32 * block_bytes). Raises ValueError on any other shape or type.
        Source: quantize_<stem> in ggml-rocmfpx.h; equal byte for byte.
        """
        check_rows(x, importance)
        return cls.encode_weighted(
            x, None if importance is None else lambda x: importance_weights(x, importance)
        )

    @classmethod
    def encode_weighted(cls, x: Floats, weigh: Callable[[Floats], Floats] | None) -> Bytes:
        """Encode rows, weighing the squared errors of some rows (n, k) by `weigh` of them, or equally."""
        rows = x.reshape(-1, x.shape[-1])
        blocks_in_row = rows.shape[1] // BLOCK_WEIGHTS
        out = np.empty((rows.shape[0], blocks_in_row, cls.block_bytes()), np.uint8)
        step = max(1, PART_WEIGHTS // max(1, rows.shape[1]))
        for first in range(0, rows.shape[0], step):
            part = rows[first : first + step]
            out[first : first + step] = cls._encode_part(part, weigh).reshape(-1, *out.shape[1:])
        return out.reshape(*x.shape[:-1], blocks_in_row * cls.block_bytes())

    @classmethod
    def _encode_part(cls, x: Floats, weigh: Callable[[Floats], Floats] | None) -> Bytes:
        """Blocks, (n_blocks, block_bytes), of some rows. Groups become columns: sums run down rows."""
        columns = np.ascontiguousarray(np.where(np.isfinite(x), x, np.float32(0)).reshape(-1, cls.group).T)
        weights = None if weigh is None else np.ascontiguousarray(weigh(x).reshape(-1, cls.group).T)
        scale_bytes = fit_scales(cls, columns, weights)
        with np.errstate(over="ignore"):
            levels = cls.quantise(columns * RECIPROCALS[scale_bytes]).astype(np.int8)
        levels[:, scale_bytes == 0] = 0
        return cls.pack_blocks(
            levels.T.reshape(-1, BLOCK_WEIGHTS), scale_bytes.reshape(-1, cls.scale_count())
        )

    @classmethod
    def pack_blocks(cls, levels: Levels, scale_bytes: npt.NDArray[np.intp]) -> Bytes:
        """Blocks (n, block_bytes) of levels (n, 32) that the format has and scale bytes (n, groups)."""
        codes = cls.code_by_level[levels.astype(np.intp) + 128]
        return np.hstack([cls._pack(codes), scale_bytes.astype(np.uint8)])

    @classmethod
    def _shifts(cls) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Bit places of the bytes and of the codes in the smallest whole number of both."""
        size = int(np.lcm(8, cls.bits))
        return np.arange(0, size, 8, dtype=np.uint32), np.arange(0, size, cls.bits, dtype=np.uint32)

    @classmethod
    def _pack(cls, codes: Bytes) -> Bytes:
        """codes: (n_blocks, 32) in weight order. Returns (n_blocks, code_bytes)."""
        if cls.nibble_halves:
            codes = codes.reshape(-1, 2, 16).transpose(0, 2, 1)
        byte_at, code_at = cls._shifts()
        packed: Bytes = _regroup(codes, code_at, byte_at).astype(np.uint8).reshape(-1, cls.code_bytes())
        return packed

    @classmethod
    def _unpack(cls, packed: Bytes) -> Bytes:
        """packed: (n_blocks, code_bytes). Returns codes, (n_blocks, 32), in weight order."""
        byte_at, code_at = cls._shifts()
        codes: Bytes = (_regroup(packed, byte_at, code_at) & ((1 << cls.bits) - 1)).astype(np.uint8)
        if cls.nibble_halves:
            codes = codes.reshape(-1, 16, 2).transpose(0, 2, 1)
        return codes.reshape(-1, BLOCK_WEIGHTS)

    @classmethod
    def _blocks(cls, data: Bytes) -> Bytes:
        if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % cls.block_bytes():
            wanted = f"uint8 in blocks of {cls.block_bytes()} bytes"
            raise ValueError(f"{cls.name} rows are {wanted}, got {data.dtype} {data.shape}")
        return data.reshape(-1, cls.block_bytes())

    @classmethod
    def levels_and_scales(cls, data: Bytes) -> tuple[Levels, Floats]:
        """Integer levels (n_blocks, 32) and decoded scales (n_blocks, groups) of packed rows."""
        blocks = cls._blocks(data)
        return cls.levels[cls._unpack(blocks[:, : cls.code_bytes()])], SCALES[blocks[:, cls.code_bytes() :]]

    @classmethod
    def decode(cls, data: Bytes) -> Floats:
        """Decode packed rows.

        data: uint8, shape (..., n * block_bytes). Returns float32, shape (..., n * 32); an invalid scale
        byte decodes to 0. Raises ValueError if the last axis is not a whole number of blocks.
        Source: dequantize_row_<stem> in ggml-rocmfpx.h; equal bit for bit, signs of zero included.
        """
        levels, scales = cls.levels_and_scales(data)
        y = levels.astype(np.float32) * np.repeat(scales, cls.group, axis=1)
        return y.reshape(*data.shape[:-1], data.shape[-1] // cls.block_bytes() * BLOCK_WEIGHTS)

    @classmethod
    def valid(cls, data: Bytes) -> npt.NDArray[np.bool_]:
        """Whether every scale byte of each block is one; bool, shape (..., n). Codes are never invalid."""
        ok = (cls._blocks(data)[:, cls.code_bytes() :] <= SCALE_MAX).all(axis=1)
        return ok.reshape(*data.shape[:-1], data.shape[-1] // cls.block_bytes())

    @classmethod
    def group_sums(cls, data: Bytes, activations: Bytes) -> npt.NDArray[np.int32]:
        """Exact sums of level * int8 by scale group: int32, (n_blocks, groups). One row of each argument."""
        levels, _ = cls.levels_and_scales(data)
        quants = activations.reshape(-1, Q8_0_BYTES)[:, 2:].view(np.int8)
        products = levels.astype(np.int32) * quants
        by_group = products.reshape(-1, cls.scale_count(), cls.group)
        sums: npt.NDArray[np.int32] = np.add.reduce(by_group, axis=2, dtype=np.int32)
        return sums

    @classmethod
    def dot_q8_0(cls, data: Bytes, activations: Bytes) -> np.float32:
        """Dot product of one packed row with one row of Q8_0 activation blocks, in the format's float order.

        Source: ggml_vec_dot_<stem>_q8_0 in ggml-rocmfpx.h; equal bit for bit.
        """
        _, scales = cls.levels_and_scales(data)
        sums = cls.group_sums(data, activations).astype(np.float32)
        halves = np.ascontiguousarray(activations.reshape(-1, Q8_0_BYTES)[:, :2])
        act = halves.view(np.float16).astype(np.float32)
        parts = (scales * act) * sums if cls.scale_first else scales * sums
        blocks = parts[:, 0] if cls.scale_count() == 1 else parts[:, 0] + parts[:, 1]
        if not cls.scale_first:
            blocks = act[:, 0] * blocks
        total = np.float32(0)
        for value in blocks:
            total = total + value
        return total


def check_rows(x: Floats, importance: Floats | None) -> None:
    """Raise ValueError unless x is rows of whole blocks and importance has one value for each column."""
    if x.dtype != np.float32 or x.ndim == 0 or x.shape[-1] % BLOCK_WEIGHTS:
        raise ValueError(f"rows are float32, a multiple of {BLOCK_WEIGHTS} long, got {x.dtype} {x.shape}")
    if importance is not None and (importance.dtype != np.float32 or importance.shape != x.shape[-1:]):
        found = f"{importance.dtype} {importance.shape}"
        raise ValueError(f"importance is float32, one value a column of {x.shape}, got {found}")


def _regroup(
    parts: Bytes, in_at: npt.NDArray[np.uint32], out_at: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Join runs of small numbers at bit places `in_at` to words, split these at `out_at`; high bits stay."""
    words = np.bitwise_or.reduce(parts.reshape(-1, len(in_at)).astype(np.uint32) << in_at, axis=1)
    split: npt.NDArray[np.uint32] = words[:, None] >> out_at
    return split


def _signed(magnitudes: list[int]) -> Levels:
    """Levels by code of a sign and magnitude format."""
    return np.array(magnitudes + [-m for m in magnitudes], np.int8)


class RocmFp4(Codec, type_id=100):
    """Magnitudes 0, 1, 2, 3, 4, 6, 8, 10; exact midpoints go to the smaller one. Two scales a block."""

    name, stem = "q4_0_rocmfp4", "rocmfp4"
    bits, group, top = 4, 16, 10
    levels = _signed([0, 1, 2, 3, 4, 6, 8, 10])
    nibble_halves = refuses_overflow = scale_first = True

    @classmethod
    def quantise(cls, q: Floats) -> Floats:
        a = np.minimum(np.abs(q), np.float32(10))
        half = np.float32(0.5)
        by_one, by_two = np.ceil(a - half), np.ceil(a * half - half) * np.float32(2)
        return np.copysign(np.where(a <= np.float32(3.5), by_one, by_two), q)


class RocmFp4Fast(RocmFp4, type_id=101):
    """As RocmFp4 with one scale for the block."""

    name, stem = "q4_0_rocmfp4_fast", "rocmfp4_fast"
    group = 32


class RocmFp6(Codec, type_id=102):
    """Magnitudes 0..31, halves away from zero. Two scales a block."""

    name, stem = "q6_0_rocmfpx", "rocmfp6"
    bits, group, top = 6, 16, 31
    levels = _signed(list(range(32)))

    @classmethod
    def quantise(cls, q: Floats) -> Floats:
        a = np.minimum(np.abs(q), np.float32(cls.top))
        whole = np.trunc(a)
        levels: Floats = np.copysign(whole + (a - whole >= np.float32(0.5)).view(np.int8), q)
        return levels


class RocmFp8(RocmFp6, type_id=103):
    """int8 levels; the encoder stays within +-127. One scale a block, not searched for without importance."""

    name, stem = "q8_0_rocmfpx", "rocmfp8"
    bits, group, top = 8, 32, 127
    levels = np.arange(256, dtype=np.uint8).view(np.int8)
    nearest_scale = scale_first = True


class RocmFp3(Codec, type_id=104):
    """Magnitudes 0, 1, 2, 4; exact midpoints go to the smaller one. Two scales a block."""

    name, stem = "q3_0_rocmfpx", "rocmfp3"
    bits, group, top = 3, 16, 4
    levels = _signed([0, 1, 2, 4])

    @classmethod
    def quantise(cls, q: Floats) -> Floats:
        a = np.abs(q)
        steps = (a > 0.5).view(np.int8) + (a > 1.5).view(np.int8) + (a > 3).view(np.int8) * np.int8(2)
        return np.copysign(steps.astype(np.float32), q)


class RocmFp2(Codec, type_id=107):
    """Levels -1, 0, 1, 2; the first of the nearest. Two scales a block."""

    name, stem = "q2_0_rocmfp2", "rocmfp2"
    bits, group, top = 2, 16, 2
    levels = np.array([-1, 0, 1, 2], np.int8)

    @classmethod
    def quantise(cls, q: Floats) -> Floats:
        # From about 2^26 on, adding a level to q changes nothing: all distances tie and -1 wins. Below 2^22
        # the thresholds say the same as the distances.
        if np.abs(q).max(initial=0) < 1 << 22:
            steps = (q > -0.5).view(np.int8) + (q > 0.5).view(np.int8) + (q > 1.5).view(np.int8)
            return (steps - np.int8(1)).astype(np.float32)
        distances = np.abs(q - cls.levels.astype(np.float32).reshape(-1, *[1] * q.ndim))
        nearest: Floats = cls.levels[distances.argmin(axis=0)].astype(np.float32)
        return nearest
