"""Strict reader of GGUF headers. It never loads tensor data and trusts no number in the file.

Refused, with the file and the field named: wrong magic or version, counts or lengths that cannot fit into the
file, duplicate keys or tensors, unknown type ids, dimension products that wrap, data outside the file.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_types import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    TYPES_BY_ID,
    KeyValue,
    TensorInfo,
    TensorType,
    ValueType,
    align,
)

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256 << 20  # far above any real file; keeps a crafted header from filling memory
MAX_NAME_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME - 1
MAX_DIMENSIONS = 4
MAX_ARRAY_ITEMS = 1 << 22  # each becomes an object; a vocabulary has a few hundred thousand
MAX_BYTES = 2**63 - 1
ALIGNMENT_KEY = "general.alignment"
# Smallest entries: name length, a letter, value type, a byte; name, rank, one dimension, type, offset.
MIN_KEY_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

FORMATS = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True)
class GgufHeader:
    """All of a GGUF file but its data.

    data_offset: where tensor data starts, in bytes from the start of the file. tensors: in file order.
    """

    path: Path
    version: int
    keys: Mapping[str, KeyValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_bytes: int

    def value(self, key: str, default: Any = None) -> Any:
        """Return a key's value, or `default` when the file lacks it."""
        entry = self.keys.get(key)
        return default if entry is None else entry.value


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the GGUF file at `path`.

    Raises RequestError naming the file, the field and the remedy.
    """
    with _open(path) as stream:
        return parse_header(path, stream, path.stat().st_size)


def parse_header(path: Path, stream: BinaryIO, file_bytes: int) -> GgufHeader:
    """Read and check the header at the start of `stream`, a file of `file_bytes` known as `path`.

    Raises RequestError naming the file, the field and the remedy.
    """
    cursor = _Cursor(path, stream, file_bytes)
    version, n_tensors, n_keys = _read_preamble(cursor)
    keys = _read_keys(cursor, n_keys)
    alignment = _alignment(cursor, keys)
    tensors = _read_tensors(cursor, n_tensors)
    data_offset = align(cursor.position, alignment)
    _check_layout(cursor, tensors, alignment, data_offset)
    return GgufHeader(path, version, keys, tensors, alignment, data_offset, cursor.size)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise RequestError(f"{path}: is a folder, not a GGUF file", hint="give the file's own path")
    if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
        raise RequestError(f"{path}: is no ordinary file", hint="give a GGUF file")
    try:
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError as missing:
        raise RequestError(f"{path}: no such file", hint="check the path") from missing
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", hint="check the path and its permissions"
        ) from error


class _Cursor:
    """Reads forward through a header, never past the file's end or the header limit."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self._stream = stream
        self.size = size
        self.position = 0

    def fail(self, what: str, hint: str = "the file is damaged: fetch or convert it again") -> RequestError:
        return RequestError(f"{self.path}: {what}", hint=hint)

    def take(self, count: int, field: str) -> bytes:
        if count > self.size - self.position:
            raise self.fail(f"{field} needs {count} bytes at {self.position}, the file ends at {self.size}")
        if self.position + count > MAX_HEADER_BYTES:
            raise self.fail(f"{field} takes the header past {MAX_HEADER_BYTES} bytes")
        data = self._stream.read(count)
        if len(data) != count:
            raise self.fail(f"{field}: the file ended early")
        self.position += count
        return data

    def u32(self, field: str) -> int:
        return int(struct.unpack("<I", self.take(4, field))[0])

    def u64(self, field: str) -> int:
        return int(struct.unpack("<Q", self.take(8, field))[0])

    def count(self, field: str, unit_bytes: int) -> int:
        """Read a count of things that take at least `unit_bytes` each."""
        count = self.u64(field)
        if count > (self.size - self.position) // unit_bytes:
            raise self.fail(f"{field} is {count}, more than the rest of the file can hold")
        if count > MAX_ARRAY_ITEMS:
            raise self.fail(f"{field} is {count}, allowed are {MAX_ARRAY_ITEMS}")
        return count

    def text(self, field: str, limit: int | None = None) -> str:
        # Hundreds of thousands of tokens pass here: no text is built before something is wrong.
        length = int.from_bytes(self.take(8, field), "little")
        if length > self.size - self.position:
            raise self.fail(f"length of {field} is {length}, more than the rest of the file can hold")
        if limit is not None and not 0 < length <= limit:
            raise self.fail(f"length of {field} is {length}, allowed are 1 to {limit}")
        raw = self.take(length, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as bad:
            raise self.fail(f"{field} is not UTF-8") from bad


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.take(4, "magic")
    if magic != MAGIC:
        raise cursor.fail(f"magic is {magic!r}, not {MAGIC!r}", hint="give a GGUF file")
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        why = "big-endian files are not supported" if swapped else "supported are 2 and 3"
        raise cursor.fail(f"version is {version}: {why}", hint="convert the model again")
    return version, cursor.count("tensor count", MIN_TENSOR_BYTES), cursor.count("key count", MIN_KEY_BYTES)


def _read_keys(cursor: _Cursor, count: int) -> dict[str, KeyValue]:
    keys: dict[str, KeyValue] = {}
    for index in range(count):
        key = cursor.text(f"name of key {index}", MAX_NAME_BYTES)
        if key in keys:
            raise cursor.fail(f"key {key} occurs twice")
        kind = _value_type(cursor, key)
        if kind is ValueType.ARRAY:
            item = _value_type(cursor, key)
            keys[key] = KeyValue(key, _read_array(cursor, key, item), kind, item)
        else:
            keys[key] = KeyValue(key, _read_scalar(cursor, key, kind), kind)
    return keys


def _value_type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.u32(f"value type of {key}")
    try:
        return ValueType(number)
    except ValueError as unknown:
        raise cursor.fail(f"key {key} has the unknown value type {number}") from unknown


def _read_scalar(cursor: _Cursor, key: str, kind: ValueType) -> Any:
    if kind is ValueType.STRING:
        return cursor.text(f"key {key}")
    dtype = np.dtype(FORMATS[kind])
    value = np.frombuffer(cursor.take(dtype.itemsize, f"key {key}"), dtype)[0].item()
    if kind is ValueType.BOOL:
        if value > 1:
            raise cursor.fail(f"key {key} is a boolean of value {value}")
        return bool(value)
    return value


def _read_array(cursor: _Cursor, key: str, item: ValueType) -> tuple[Any, ...]:
    if item is ValueType.ARRAY:
        raise cursor.fail(f"key {key} is an array of arrays, which is not supported")
    if item is ValueType.STRING:
        count = cursor.count(f"length of {key}", 8)
        return tuple(cursor.text(key) for _ in range(count))
    dtype = np.dtype(FORMATS[item])
    count = cursor.count(f"length of {key}", dtype.itemsize)
    values = np.frombuffer(cursor.take(count * dtype.itemsize, f"key {key}"), dtype)
    if item is ValueType.BOOL:
        if values.size and values.max() > 1:
            raise cursor.fail(f"key {key} holds a boolean of value {values.max()}")
        values = values.astype(bool)
    return tuple(values.tolist())


def _alignment(cursor: _Cursor, keys: Mapping[str, KeyValue]) -> int:
    entry = keys.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.type is not ValueType.UINT32 or value < 1 or value & (value - 1) or value > 1 << 20:
        raise cursor.fail(f"{ALIGNMENT_KEY} is {value!r}, not a power of two up to 1048576 stored as u32")
    return int(value)


def _read_tensors(cursor: _Cursor, count: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    for index in range(count):
        tensor = _read_tensor(cursor, index)
        if tensor.name in names:
            raise cursor.fail(f"tensor {tensor.name} occurs twice")
        names.add(tensor.name)
        tensors.append(tensor)
    return tuple(tensors)


def _read_tensor(cursor: _Cursor, index: int) -> TensorInfo:
    name = cursor.text(f"name of tensor {index}", MAX_TENSOR_NAME_BYTES)
    rank = cursor.u32(f"dimension count of {name}")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name} has {rank} dimensions, allowed are 1 to {MAX_DIMENSIONS}")
    extents = [cursor.u64(f"dimension {d} of {name}") for d in range(rank)]
    type_id = cursor.u32(f"type of {name}")
    kind = TYPES_BY_ID.get(type_id)
    if kind is None:
        raise cursor.fail(
            f"tensor {name} has type id {type_id}, which this version does not know",
            hint="update lucebox, or get the model in a type it knows (lucebox convert --help lists them)",
        )
    size_bytes = _tensor_bytes(cursor, name, extents, kind)
    return TensorInfo(name, tuple(reversed(extents)), kind, size_bytes, cursor.u64(f"offset of {name}"))


def _tensor_bytes(cursor: _Cursor, name: str, extents: list[int], kind: TensorType) -> int:
    total = 1
    for extent in extents:
        if extent < 1:
            raise cursor.fail(f"tensor {name} has a dimension of {extent}")
        total *= extent
        if total > MAX_BYTES:
            raise cursor.fail(f"tensor {name}: the product of its dimensions {extents} is too large")
    if extents[0] % kind.block_values:
        raise cursor.fail(
            f"tensor {name}: rows of {extents[0]} are no multiple of {kind.block_values} ({kind.name})"
        )
    size_bytes = total // kind.block_values * kind.block_bytes
    if size_bytes > cursor.size:
        raise cursor.fail(f"tensor {name} needs {size_bytes} bytes, the file has {cursor.size}")
    return size_bytes


def _check_layout(cursor: _Cursor, tensors: tuple[TensorInfo, ...], alignment: int, data_offset: int) -> None:
    end, previous = 0, "the header"
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset % alignment:
            raise cursor.fail(f"offset of {tensor.name} is {tensor.offset}, no multiple of {alignment}")
        if tensor.offset < end:
            raise cursor.fail(f"tensor {tensor.name} overlaps {previous}")
        end, previous = tensor.offset + tensor.size_bytes, tensor.name
        if data_offset + end > cursor.size:
            raise cursor.fail(
                f"truncated: tensor {tensor.name} ends at byte {data_offset + end}, the file at {cursor.size}"
            )
