"""Rows of a stored tensor to bytes of the output type, by the way that changes no value needlessly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pylucebox.formats.ds4_config import ModelConfig
from pylucebox.formats.encoders import RowEncoder
from pylucebox.formats.gguf_types import TensorType
from pylucebox.formats.imatrix import Importance
from pylucebox.formats.ledger import OutputTensor, Part
from pylucebox.formats.number_formats import (
    Codes,
    Floats,
    decode_bf16,
    decode_fp4,
    decode_fp8,
    repack_fp4_as_mxfp4,
    require_finite,
)
from pylucebox.formats.safetensors_reader import read_rows

# Bound on what decoding and encoding one value allocates, all steps together (a test measures it).
BYTES_PER_VALUE = 40


class Typed(Protocol):
    """An output tensor whose type is decided."""

    @property
    def source(self) -> OutputTensor: ...
    @property
    def type(self) -> TensorType: ...


def row_values(output: OutputTensor) -> int:
    """Return the longest row of an output tensor, in values."""
    return max(part.columns for part in output.parts)


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of parts that lie beside each other; `first` counts them in the whole tensor."""

    parts: Sequence[Part]
    start: int
    stop: int
    first: int


def encode_part_rows(
    rows: Rows,
    tensor: Typed,
    config: ModelConfig,
    encoder: RowEncoder,
    importance: Importance | None,
    warnings: list[str],
) -> NDArray[Any]:
    """Return the bytes of some rows, uint8, shape (rows, bytes a row).

    Raises ValueError for values that are not numbers, do not fit the type, or are no expert ids.
    """
    start, stop, part = rows.start, rows.stop, rows.parts[0]
    if tensor.type.name == "I32":
        return _encode_ids(part, config, start, stop, warnings)
    if part.weight.dtype == "I8" and tensor.type.name == "MXFP4":
        assert part.scale is not None
        return repack_fp4_as_mxfp4(read_rows(part.weight, start, stop), read_rows(part.scale, start, stop))
    decoded = [decode_part_rows(part, config, start, stop) for part in rows.parts]
    values = decoded[0] if len(decoded) == 1 else np.hstack(decoded)
    if importance is None:
        return encoder.encode(values, tensor.type, None)
    pieces = importance.pieces(rows.first, stop - start)
    encoded = [encoder.encode(values[some], tensor.type, columns) for some, columns in pieces]
    return encoded[0] if len(encoded) == 1 else np.concatenate(encoded)


def decode_part_rows(part: Part, config: ModelConfig, start: int, stop: int) -> Floats:
    """Return rows `start` to `stop` of one part as float32 (rows, columns). Raises ValueError as above."""
    stored = read_rows(part.weight, start, stop)
    if part.weight.dtype == "F8_E4M3":
        assert part.scale is not None and config.weight_block is not None
        scales: Codes = read_rows(part.scale, 0, part.scale.rows)
        values = decode_fp8(stored, scales, config.weight_block, start)
    elif part.weight.dtype == "I8":
        assert part.scale is not None
        values = decode_fp4(stored, read_rows(part.scale, start, stop))
    elif part.weight.dtype == "BF16":
        values = decode_bf16(stored)
    else:
        values = stored.astype(np.float32, copy=False)
    require_finite(values)
    return values


def _encode_ids(part: Part, config: ModelConfig, start: int, stop: int, warnings: list[str]) -> Codes:
    ids = read_rows(part.weight, start, stop)
    if ids.size and (ids.min() < 0 or ids.max() >= config.n_routed_experts):
        wrong = ids[(ids < 0) | (ids >= config.n_routed_experts)][0]
        raise ValueError(f"holds expert id {wrong}, outside 0 to {config.n_routed_experts - 1}")
    ordered = np.sort(ids, axis=1)
    repeats = int((ordered[:, 1:] == ordered[:, :-1]).any(axis=1).sum())
    if repeats:
        warnings.append(f"{part.weight.name}: {repeats} tokens name an expert twice")
    return np.ascontiguousarray(ids.astype("<i4")).view(np.uint8).reshape(len(ids), -1)
