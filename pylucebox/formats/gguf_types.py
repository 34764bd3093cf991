"""GGUF constants and the file header writer. The only module that touches the `gguf` package.

The package's reader refuses type ids it does not know and its constants stop below upstream's newest types,
so the table of types starts from the package and adds the rest. A test fails when it learns one of them.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import gguf
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
QUANTIZATION_VERSION = int(gguf.GGML_QUANT_VERSION)

# Types of upstream that the package does not list yet.
UPSTREAM_TYPES = (("Q2_0", 42, 64, 18),)
# Our own: name, id, values a block, bytes a block. Ids are a file-format promise; 105 and 106 stay unused.
ROCMFPX_TYPES = (
    ("Q4_0_ROCMFP4", 100, 32, 18),
    ("Q4_0_ROCMFP4_FAST", 101, 32, 17),
    ("Q6_0_ROCMFPX", 102, 32, 26),
    ("Q8_0_ROCMFPX", 103, 32, 33),
    ("Q3_0_ROCMFPX", 104, 32, 14),
    ("Q2_0_ROCMFP2", 107, 32, 10),
)


@dataclass(frozen=True)
class TensorType:
    """How values of one ggml type are stored: `block_values` numbers in `block_bytes` bytes."""

    name: str
    id: int
    block_values: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row. Raises ValueError when `columns` is no multiple of the block."""
        if columns % self.block_values:
            raise ValueError(f"{columns} columns are no multiple of {self.block_values} ({self.name})")
        return columns // self.block_values * self.block_bytes


def _all_types() -> list[TensorType]:
    known = [(t.name, int(t), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType]
    seen = {row[1] for row in known}
    return [
        TensorType(*row) for row in [*known, *(r for r in UPSTREAM_TYPES + ROCMFPX_TYPES if r[1] not in seen)]
    ]


TYPES_BY_ID = MappingProxyType({t.id: t for t in _all_types()})
TYPES = MappingProxyType({t.name: t for t in TYPES_BY_ID.values()})


class ValueType(IntEnum):
    """Types of metadata values, numbered as in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True)
class KeyValue:
    """One metadata entry. For arrays `type` is ARRAY and `item_type` names the elements."""

    key: str
    value: Any
    type: ValueType
    item_type: ValueType | None = None


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file. shape: rows first (ne reversed); offset: bytes after the start of the data."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    size_bytes: int
    offset: int = 0


def u32(key: str, value: int) -> KeyValue:
    return KeyValue(key, value, ValueType.UINT32)


def i32_array(key: str, values: Sequence[int]) -> KeyValue:
    return KeyValue(key, list(values), ValueType.ARRAY, ValueType.INT32)


def f32(key: str, value: float) -> KeyValue:
    return KeyValue(key, value, ValueType.FLOAT32)


def f32_array(key: str, values: Sequence[float]) -> KeyValue:
    return KeyValue(key, list(values), ValueType.ARRAY, ValueType.FLOAT32)


def boolean(key: str, value: bool) -> KeyValue:
    return KeyValue(key, value, ValueType.BOOL)


def string(key: str, value: str) -> KeyValue:
    return KeyValue(key, value, ValueType.STRING)


def string_array(key: str, values: Sequence[str]) -> KeyValue:
    return KeyValue(key, list(values), ValueType.ARRAY, ValueType.STRING)


def align(size_bytes: int, alignment: int = DEFAULT_ALIGNMENT) -> int:
    """Return `size_bytes` rounded up to the alignment."""
    return -(-size_bytes // alignment) * alignment


def build_header(architecture: str, keys: Sequence[KeyValue], tensors: Sequence[TensorInfo]) -> bytes:
    """Return everything of a GGUF file that comes before the tensor data, padded to the default alignment.

    The data must follow in the order of `tensors`, each tensor padded to the same alignment.
    """
    stream = io.BytesIO()
    writer = gguf.GGUFWriter(None, architecture)
    for entry in keys:
        value_type = GGUFValueType(int(entry.type))
        item_type = None if entry.item_type is None else GGUFValueType(int(entry.item_type))
        writer.add_key_value(entry.key, entry.value, value_type, item_type)
    for tensor in tensors:
        writer.add_tensor_info(
            tensor.name, tensor.shape, _NO_DTYPE, tensor.size_bytes, raw_dtype=_RawType(tensor.type.id)
        )
    # The writer only opens files by itself; hand it a stream in the state it has after opening one.
    writer.fout = [stream]
    writer.state = gguf.gguf_writer.WriterState.EMPTY
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    header = stream.getvalue()
    return header + bytes(align(len(header)) - len(header))


class _RawType(int):
    """A type id in the shape the writer expects, also for ids its enumeration lacks."""


_NO_DTYPE: Any = None
