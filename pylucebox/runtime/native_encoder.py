"""Encodes rows of weights with the build's own code, on several threads: the same bytes as llama-quantize."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.encoders import NumpyEncoder
from pylucebox.formats.gguf_types import TensorType
from pylucebox.runtime import capi

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

ACTIVATIONS = ("Q8_1", "Q8_K")  # types that ggml has no quantiser of weights for
PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
PART_VALUES = 1 << 18  # handed to one thread at a time


class NativeEncoder:
    """A RowEncoder for every type that llama-quantize writes. Use as a context manager: it holds threads."""

    def __init__(self, library: Path, threads: int, search: bool = False) -> None:
        """Load libggml-base at `library`. Raises MissingError or IntegrityError as capi.load does."""
        self._ggml: dict[str, Callable[..., int]] = capi.load_ggml(library)
        self._numpy = NumpyEncoder(search)
        self._pool = ThreadPoolExecutor(max(1, threads))
        self.search = search

    @classmethod
    def of(cls, build: BuildReceipt, threads: int, search: bool = False) -> "NativeEncoder":
        return cls(build.bin_dir / "libggml-base.so", threads, search)

    def __enter__(self) -> "NativeEncoder":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def can_encode(self, kind: TensorType) -> bool:
        """Return whether this build knows the type, with the block we know."""
        if kind.name in PLAIN:
            return self._numpy.can_encode(kind)
        block = self._ggml["ggml_blck_size"](kind.id), self._ggml["ggml_type_size"](kind.id)
        return kind.name not in ACTIVATIONS and block == (kind.block_values, kind.block_bytes)

    def encode(self, values: Floats, kind: TensorType, importance: Floats | None) -> Codes:
        """Return uint8 (rows, bytes a row) for finite float32 (rows, columns).

        importance: float32 (columns,), or None. Raises ValueError when the rows do not fit the type.
        """
        if kind.name in PLAIN:
            return self._numpy.encode(values, kind, importance)
        rows, columns = values.shape
        out = np.empty((rows, kind.row_bytes(columns)), np.uint8)
        if importance is None and self._ggml["ggml_quantize_requires_imatrix"](kind.id):
            raise ValueError(f"cannot be {kind.name} without an importance matrix")
        values = np.ascontiguousarray(values, np.float32)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        step = max(1, PART_VALUES // columns)
        parts = [slice(first, min(rows, first + step)) for first in range(0, rows, step)]
        list(self._pool.map(lambda part: self._encode(values[part], kind, weights, out[part]), parts))
        return out

    def _encode(self, values: Floats, kind: TensorType, weights: Floats | None, out: Codes) -> None:
        source, target = values.ctypes.data, out.ctypes.data
        columns_weights = None if weights is None else weights.ctypes.data
        if self.search and self._numpy.is_rocmfpx(kind):
            self._ggml["rocmfpx_quantize_search"](kind.id, source, target, *values.shape, columns_weights)
        else:
            self._ggml["ggml_quantize_chunk"](kind.id, source, target, 0, *values.shape, columns_weights)
        if not self._ggml["ggml_validate_row_data"](kind.id, target, out.nbytes):
            raise ValueError(f"holds a value that does not fit {kind.name}")
