"""Encoders: float32 rows to the bytes of one ggml type. A new type is one subclass."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from pylucebox.formats.gguf_types import TYPES, TensorType
from pylucebox.formats.number_formats import Codes, Floats, round_to_bf16
from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_search import search_scales

ENCODERS: dict[str, "Encoder"] = {}

F16_MAX = np.float32(65504)
# Largest float32 that does not round up to infinity in half precision.
F16_ROUNDS_TO_INFINITY = np.float32(65520)


class Encoder(ABC):
    """Encodes rows into one type. Subclass with `type_name=`; the instance registers itself in ENCODERS."""

    type: ClassVar[TensorType]

    def __init_subclass__(cls, type_name: str) -> None:
        if type_name in ENCODERS:
            raise TypeError(f"two encoders for {type_name}")
        cls.type = TYPES[type_name]
        ENCODERS[type_name] = cls()

    @abstractmethod
    def encode(self, values: Floats) -> Codes:
        """Return uint8, shape (rows, bytes a row), for finite float32 `values` of shape (rows, columns).

        Raises ValueError when a value does not fit the type.
        """


class RowEncoder(Protocol):
    """Encodes rows into many types. search: the opt-in encoder for the ROCmFPX types."""

    @property
    def search(self) -> bool: ...
    def can_encode(self, kind: TensorType) -> bool: ...
    def encode(self, values: Floats, kind: TensorType, importance: Floats | None) -> Codes:
        """Return uint8 (rows, bytes a row) for finite float32 (rows, columns).

        importance: float32 (columns,), or None. Raises ValueError when a value does not fit the type.
        """


@dataclass(frozen=True)
class NumpyEncoder:
    """The encoders of this file; those of a build are faster and know more types, with the same bytes."""

    search: bool = False

    @staticmethod
    def is_rocmfpx(kind: TensorType) -> bool:
        return kind.id in Codec.by_id

    def can_encode(self, kind: TensorType) -> bool:
        return kind.name in ENCODERS or self.is_rocmfpx(kind)

    def encode(self, values: Floats, kind: TensorType, importance: Floats | None = None) -> Codes:
        """See RowEncoder.encode. Types of upstream make no use of the importance, as in ggml."""
        kind.row_bytes(values.shape[1])
        codec = Codec.by_id.get(kind.id)
        if codec is None:
            return ENCODERS[kind.name].encode(values)
        return search_scales(codec, values, importance) if self.search else codec.encode(values, importance)


def encode_rows(values: Floats, kind: TensorType) -> Codes:
    """Encode float32 rows as `kind`; see RowEncoder.encode. Raises ValueError for a wrong row length."""
    return NumpyEncoder().encode(values, kind)


def _bytes(rows: np.ndarray) -> Codes:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)


class F32Encoder(Encoder, type_name="F32"):
    def encode(self, values: Floats) -> Codes:
        return _bytes(values.astype("<f4", copy=False))


class BF16Encoder(Encoder, type_name="BF16"):
    def encode(self, values: Floats) -> Codes:
        codes = round_to_bf16(np.ascontiguousarray(values))
        if ((codes & 0x7F80) == 0x7F80).any():
            raise ValueError("holds a value too large for BF16")
        return _bytes(codes.astype("<u2", copy=False))


class F16Encoder(Encoder, type_name="F16"):
    def encode(self, values: Floats) -> Codes:
        if values.size and np.abs(values).max() >= F16_ROUNDS_TO_INFINITY:
            raise ValueError(f"holds a value beyond {F16_MAX:.0f}, the largest of F16")
        return _bytes(values.astype("<f2"))


class Q8Encoder(Encoder, type_name="Q8_0"):
    """32 values: a half-precision scale d = max / 127, then round(value / d), halves away from zero.

    Equal bit for bit to quantize_row_q8_0_ref of ggml.
    """

    def encode(self, values: Floats) -> Codes:
        groups = values.reshape(len(values), -1, 32)
        scale = np.abs(groups).max(axis=2) / np.float32(127)
        if scale.size and scale.max() >= F16_ROUNDS_TO_INFINITY:
            raise ValueError("holds a value too large for Q8_0")
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        inverse[~np.isfinite(inverse)] = 0  # such a scale is stored as 0, so the codes do not matter
        scaled = groups * inverse[:, :, None]
        codes = np.trunc(scaled)
        scaled -= codes  # exact: what truncation dropped
        codes += np.copysign(np.abs(scaled) >= np.float32(0.5), scaled)
        blocks = np.empty((*scale.shape, 34), np.uint8)
        blocks[:, :, :2] = scale.astype("<f2")[:, :, None].view(np.uint8)
        blocks[:, :, 2:] = codes.astype(np.int8).view(np.uint8)
        return blocks.reshape(len(values), -1)


class MXFP4Encoder(Encoder, type_name="MXFP4"):
    """32 values: scale exponent floor(log2(max)) - 2, then the nearest of 16 levels, the first of two.

    Equal bit for bit to quantize_row_mxfp4_ref of ggml. Values stored as FP4 are repacked instead.
    """

    LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

    def encode(self, values: Floats) -> Codes:
        groups = values.reshape(len(values), -1, 32)
        largest = np.abs(groups).max(axis=2)
        exponent = np.frexp(largest)[1] - 1 - 2 + 127  # frexp: largest = m * 2^e with m in [0.5, 1)
        scale = np.where(largest > 0, np.clip(exponent, 0, 254), 0).astype(np.uint8)
        half = np.ldexp(np.float32(1), scale.astype(np.int32) - 128).astype(np.float32)[:, :, None]
        best = np.zeros(groups.shape, np.uint8)
        error = np.abs(self.LEVELS[0] * half - groups)
        for index in range(1, 16):
            distance = np.abs(self.LEVELS[index] * half - groups)
            closer = distance < error
            best[closer] = index
            np.minimum(error, distance, out=error)
        blocks = np.empty((*scale.shape, 17), np.uint8)
        blocks[:, :, 0] = scale
        blocks[:, :, 1:] = best[:, :, :16] | (best[:, :, 16:] << 4)
        return blocks.reshape(len(values), -1)
