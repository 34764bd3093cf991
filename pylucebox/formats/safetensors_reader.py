"""Strict reader of safetensors files: the header is checked whole, data is read by rows on demand.

A file: u64 length, JSON of that length ({name: {dtype, shape, data_offsets}}), the data without gaps.
"""

import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pylucebox.core.errors import RequestError

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own implementation
MAX_JSON_BYTES = 100_000_000  # of a file: the longest known is an index of 10 MB
MAX_JSON_PARTS = 4_000_000  # each becomes an object of some sixty bytes; a tensor has about a dozen
MAX_RANK = 8
METADATA = "__metadata__"
FETCH_AGAIN = "fetch the file again"

# dtype name -> the numpy type its bytes are read as. Formats numpy lacks are read as unsigned codes.
DTYPES = MappingProxyType(
    {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "F8_E4M3": "<u1",
        "F8_E5M2": "<u1",
        "F8_E8M0": "<u1",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "<u1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "<u1",
        "BOOL": "<u1",
    }
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file. shape: as stored, rows first; offset: bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    size_bytes: int

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last; 1 for a vector."""
        total = 1
        for extent in self.shape[:-1]:
            total *= extent
        return total

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1


def read_safetensors_header(path: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of the safetensors file at `path`, in file order.

    Raises RequestError naming the file, the field and the remedy.
    """
    try:
        file_bytes = path.stat().st_size
        if not path.is_file():  # opening a pipe would wait for its other end
            raise RequestError(f"{path}: is no ordinary file", hint=FETCH_AGAIN)
        with path.open("rb") as stream:
            return parse_safetensors_header(path, stream, file_bytes)
    except FileNotFoundError as missing:
        raise RequestError(f"{path}: no such file", hint=FETCH_AGAIN) from missing
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}", hint=FETCH_AGAIN) from error


def parse_safetensors_header(path: Path, stream: BinaryIO, file_bytes: int) -> tuple[StoredTensor, ...]:
    """Return the tensors of `stream`, a file of `file_bytes` known as `path`. Raises RequestError."""
    prefix = stream.read(8)
    if len(prefix) < 8:
        raise RequestError(f"{path}: {file_bytes} bytes are too few for a header", hint=FETCH_AGAIN)
    length = int(struct.unpack("<Q", prefix)[0])
    if not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
        raise RequestError(
            f"{path}: header length {length} does not fit a file of {file_bytes} bytes", hint=FETCH_AGAIN
        )
    text = stream.read(length)
    entries = parse_strict_json(text, path)
    data_start = 8 + len(text)
    tensors = [_parse_entry(path, name, e, data_start) for name, e in entries.items() if name != METADATA]
    tensors.sort(key=lambda t: (t.offset, t.size_bytes))
    _check_layout(path, tensors, data_start, file_bytes)
    return tuple(tensors)


def read_json(path: Path, hint: str = FETCH_AGAIN) -> dict[str, Any]:
    """Read the JSON object in the file at `path`. Raises RequestError naming the file and the remedy."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path}: is no ordinary file", hint=hint)
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise RequestError(f"{path}: {size} bytes are too many for a JSON file", hint=hint)
        return parse_strict_json(path.read_bytes(), path)
    except FileNotFoundError as missing:
        raise RequestError(f"{path}: no such file", hint=hint) from missing
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}", hint=hint) from error


def parse_strict_json(text: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object; duplicate keys, other values than an object and broken text raise RequestError."""
    if (parts := sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))) > MAX_JSON_PARTS:
        raise RequestError(f"{path}: {parts} values are more than any model has", hint=FETCH_AGAIN)

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise RequestError(f"{path}: {twice!r} occurs twice in one object", hint=FETCH_AGAIN)
        return result

    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as bad:
        raise RequestError(f"{path}: not valid JSON ({bad})", hint=FETCH_AGAIN) from bad
    if not isinstance(value, dict):
        raise RequestError(f"{path}: holds no JSON object", hint=FETCH_AGAIN)
    return value


def read_rows(tensor: StoredTensor, start: int, stop: int) -> NDArray[Any]:
    """Return rows `start` to `stop` of a tensor, shape (stop - start, columns), in the numpy type of DTYPES.

    Raises RequestError when the file has become shorter since its header was read.
    """
    dtype = np.dtype(DTYPES[tensor.dtype])
    row_bytes = tensor.columns * dtype.itemsize
    rows = np.empty((stop - start, tensor.columns), dtype)
    try:
        with tensor.path.open("rb", buffering=0) as stream:
            stream.seek(tensor.offset + start * row_bytes)
            view = memoryview(rows.view(np.uint8).data).cast("B") if rows.size else memoryview(b"")
            while view:
                count = stream.readinto(view)
                if not count:
                    raise RequestError(f"{tensor.path}: {tensor.name} ends early", hint=FETCH_AGAIN)
                view = view[count:]
    except OSError as error:
        raise RequestError(f"{tensor.path}: cannot be read: {error.strerror or error}") from error
    return rows


def _parse_entry(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    where = f"{path}: tensor {name}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise RequestError(f"{where} needs exactly dtype, shape and data_offsets", hint=FETCH_AGAIN)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RequestError(f"{where} has the unknown dtype {dtype!r}", hint=f"known are {', '.join(DTYPES)}")
    if not _is_counts(shape) or len(shape) > MAX_RANK:
        raise RequestError(f"{where} has the malformed shape {shape!r}", hint=FETCH_AGAIN)
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise RequestError(f"{where} has the malformed data_offsets {offsets!r}", hint=FETCH_AGAIN)
    size_bytes = np.dtype(DTYPES[dtype]).itemsize
    for extent in shape:
        size_bytes *= extent
    if size_bytes != offsets[1] - offsets[0]:
        raise RequestError(
            f"{where} needs {size_bytes} bytes for {dtype} {shape}, its data_offsets {offsets} differ",
            hint=FETCH_AGAIN,
        )
    return StoredTensor(name, dtype, tuple(shape), path, data_start + offsets[0], size_bytes)


def _is_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _check_layout(path: Path, tensors: Sequence[StoredTensor], data_start: int, file_bytes: int) -> None:
    position, previous = data_start, "the header"
    for tensor in tensors:
        if tensor.offset < position:
            raise RequestError(f"{path}: tensor {tensor.name} overlaps {previous}", hint=FETCH_AGAIN)
        if tensor.offset > position:
            raise RequestError(f"{path}: a gap between {previous} and tensor {tensor.name}", hint=FETCH_AGAIN)
        position, previous = tensor.offset + tensor.size_bytes, tensor.name
        if position > file_bytes:
            raise RequestError(
                f"{path}: truncated: tensor {tensor.name} ends at byte {position}, the file at {file_bytes}",
                hint=FETCH_AGAIN,
            )
    if position != file_bytes:
        raise RequestError(f"{path}: {file_bytes - position} bytes follow the last tensor", hint=FETCH_AGAIN)
