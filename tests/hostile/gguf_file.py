"""GGUF files taken apart and put together again by hand, so that any field can say anything."""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
ALIGNMENT = 32


@dataclass(frozen=True)
class Field:
    """A number in a header. owner: the key or tensor it belongs to, "" for the file's own."""

    name: str
    owner: str
    offset: int
    width: int


@dataclass(frozen=True)
class Tensor:
    """extents: as stored, innermost first."""

    name: str
    extents: tuple[int, ...]
    type_id: int
    data: bytes


@dataclass(frozen=True)
class File:
    """keys: name -> value type and value, as stored. fields: every number of the header."""

    keys: dict[str, bytes]
    tensors: tuple[Tensor, ...]
    fields: tuple[Field, ...] = ()
    header_bytes: int = 0
    alignment: int = ALIGNMENT

    def with_key(self, name: str, value: bytes | None) -> "File":
        """The file with a key changed, added, or (None) taken out."""
        keys = {**self.keys, name: value} if value is not None else dict(self.keys)
        if value is None:
            del keys[name]
        return replace(self, keys=keys)

    def with_tensor(self, name: str, **changes: object) -> "File":
        """The file with one tensor changed."""
        tensors = tuple(replace(t, **changes) if t.name == name else t for t in self.tensors)  # type: ignore[arg-type]
        return replace(self, tensors=tensors)

    def without_tensor(self, name: str) -> "File":
        return replace(self, tensors=tuple(t for t in self.tensors if t.name != name))

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)


def text(value: str | bytes) -> bytes:
    """A string as GGUF stores it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: float) -> bytes:
    """A key's value of a number type; integers wrap."""
    if kind not in (F32, 12):
        width = struct.calcsize(SCALARS[kind])
        return struct.pack("<I", kind) + (int(value) % 2 ** (8 * width)).to_bytes(width, "little")
    return struct.pack("<I", kind) + struct.pack(SCALARS[kind], value)


def string(value: str | bytes) -> bytes:
    return struct.pack("<I", STRING) + text(value)


def array(kind: int, values: Sequence[float | str], length: int | None = None) -> bytes:
    """An array value; `length` lies about how many there are."""
    count = len(values) if length is None else length
    head = struct.pack("<IIQ", ARRAY, kind, count % 2**64)
    items = [text(v) if isinstance(v, str) else scalar(kind, v)[4:] for v in values]
    return head + b"".join(items)


def join(
    file: File, *, extra_keys: Sequence[tuple[str, bytes]] = (), offsets: dict[str, int] | None = None
) -> bytes:
    """The bytes of a file. extra_keys: appended even if the name is there; offsets: lies about data."""
    keys = [*file.keys.items(), *extra_keys]
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(file.tensors), len(keys)))
    for name, value in keys:
        head += text(name) + value
    data = bytearray()
    for tensor in file.tensors:
        place = (offsets or {}).get(tensor.name, len(data))
        head += text(tensor.name) + struct.pack("<I", len(tensor.extents))
        head += b"".join(struct.pack("<Q", e % 2**64) for e in tensor.extents)
        head += struct.pack("<IQ", tensor.type_id, place % 2**64)
        data += tensor.data + bytes(-len(tensor.data) % file.alignment)
    return bytes(head) + bytes(-len(head) % file.alignment) + bytes(data)


def split(data: bytes, sizes: dict[int, tuple[int, int]]) -> File:
    """Take a sound file apart. sizes: type id -> (values, bytes) of a block."""
    walker = _Walker(data)
    walker.place = 8
    tensors, keys = walker.number("tensor count", 8), walker.number("key count", 8)
    values = dict(walker.key(i) for i in range(keys))
    infos = [walker.tensor(i) for i in range(tensors)]
    start = walker.place + -walker.place % ALIGNMENT
    found = []
    for name, extents, type_id, offset in infos:
        block_values, block_bytes = sizes[type_id]
        size = math.prod(extents) // block_values * block_bytes
        found.append(Tensor(name, extents, type_id, data[start + offset : start + offset + size]))
    fields = (Field("version", "", 4, 4), *walker.fields)
    return File(values, tuple(found), fields, walker.place)


class _Walker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.owner = ""
        self.fields: list[Field] = []

    def number(self, name: str, width: int) -> int:
        self.fields.append(Field(name, self.owner, self.place, width))
        self.place += width
        return int.from_bytes(self.data[self.place - width : self.place], "little")

    def words(self, name: str) -> str:
        length = self.number(name, 8)
        self.place += length
        return self.data[self.place - length : self.place].decode()

    def key(self, index: int) -> tuple[str, bytes]:
        self.owner = f"key {index}"
        first = len(self.fields)
        name = self.words("name length")
        self.owner = name
        start = self.place
        kind = self.number("value type", 4)
        count = 1
        if kind == ARRAY:
            kind, count = self.number("item type", 4), self.number("array length", 8)
        if kind == STRING:
            for _ in range(count):
                self.words("string length")
        else:
            self.place += count * struct.calcsize(SCALARS[kind])
        del self.fields[first + 8 :]  # of a long list of strings the first few stand for all
        return name, self.data[start : self.place]

    def tensor(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        self.owner = f"tensor {index}"
        name = self.words("name length")
        self.owner = name
        rank = self.number("rank", 4)
        extents = tuple(self.number(f"extent {d}", 8) for d in range(rank))
        return name, extents, self.number("type", 4), self.number("offset", 8)


def patched(data: bytes, field: Field, value: int) -> bytes:
    """The file with one number of its header replaced."""
    raw = (value % 2 ** (8 * field.width)).to_bytes(field.width, "little")
    return data[: field.offset] + raw + data[field.offset + field.width :]


def numbers(kind: str) -> Iterator[int]:
    """What a number of the header is set to."""
    yield from (0, -1, 2**31, 2**42 + 1, 2**63)
    if kind == "rank":
        yield from (5, 6, 255, 65535, 2**32 - 1)
    if kind == "type":
        yield from (105, 250, 106, 43, 108, 2**31 - 1)
    if kind in ("value type", "item type"):
        yield from (9, 13, 255)
