"""The strict GGUF reader: what it reads, and that no number in a file is believed."""

import struct
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pylucebox.core.errors import RequestError
from pylucebox.formats import gguf_reader
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import ValueType

HOSTILE = (0, 2**31, 2**32 - 1, 2**42 + 1, 2**63, 2**64 - 1)
MEMORY_LIMIT = 1 << 20


@dataclass
class Writer:
    """Builds a file by hand and remembers where each number lies: name -> (offset, width)."""

    data: bytearray = field(default_factory=bytearray)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def number(self, name: str, value: int, width: int) -> None:
        self.places[name] = (len(self.data), width)
        self.data += value.to_bytes(width, "little")

    def text(self, name: str, value: str) -> None:
        self.number(name + " length", len(value.encode()), 8)
        self.data += value.encode()

    def tensor(self, name: str, extents: list[int], type_id: int, offset: int) -> None:
        self.text(name, name)
        self.number(f"{name} rank", len(extents), 4)
        for index, extent in enumerate(extents):
            self.number(f"{name} extent {index}", extent, 8)
        self.number(f"{name} type", type_id, 4)
        self.number(f"{name} offset", offset, 8)

    def patched(self, name: str, value: int) -> bytes:
        start, width = self.places[name]
        return (
            bytes(self.data[:start])
            + (value % 2 ** (8 * width)).to_bytes(width, "little")
            + bytes(self.data[start + width :])
        )


def sample() -> Writer:
    writer = Writer()
    writer.data += b"GGUF"
    writer.number("version", 3, 4)
    writer.number("tensor count", 2, 8)
    writer.number("key count", 3, 8)
    writer.text("architecture", "general.architecture")
    writer.number("architecture type", ValueType.STRING, 4)
    writer.text("value", "deepseek4")
    writer.text("words", "a.words")
    writer.number("words type", ValueType.ARRAY, 4)
    writer.number("words item", ValueType.STRING, 4)
    writer.number("words count", 2, 8)
    writer.text("word 0", "x")
    writer.text("word 1", "yy")
    writer.text("numbers", "a.numbers")
    writer.number("numbers type", ValueType.ARRAY, 4)
    writer.number("numbers item", ValueType.INT32, 4)
    writer.number("numbers count", 3, 8)
    writer.data += struct.pack("<3i", 1, -2, 3)
    writer.tensor("t0", [32, 2], 39, 0)
    writer.tensor("t1", [5], 0, 64)
    writer.data += bytes(-len(writer.data) % 32)
    writer.data += bytes(64 + 20)
    return writer


def save(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    return path


def refuse(path: Path) -> RequestError:
    """Read a broken file: it must fail with one line naming the file, in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()
    assert str(path) in caught.value.message and "\n" not in caught.value.message
    return caught.value


def test_reads_the_sample(tmp_path: Path) -> None:
    header = read_header(save(tmp_path, bytes(sample().data)))
    assert header.value("general.architecture") == "deepseek4"
    assert header.value("a.words") == ("x", "yy") and header.value("a.numbers") == (1, -2, 3)
    assert [(t.name, t.shape, t.type.name, t.size_bytes, t.offset) for t in header.tensors] == [
        ("t0", (2, 32), "MXFP4", 34, 0),
        ("t1", (5,), "F32", 20, 64),
    ]
    assert header.data_offset % 32 == 0 and header.file_bytes == header.data_offset + 84


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("name", sorted(sample().places))
def test_hostile_numbers_are_refused(tmp_path: Path, name: str, value: int) -> None:
    writer = sample()
    path = save(tmp_path, writer.patched(name, value))
    harmless = {("tensor count", 0), ("t1 type", 2**42 + 1)}  # no tensors at all; F16 instead of F32
    if path.read_bytes() == writer.data or (name, value) in harmless:
        assert read_header(path).version == 3
    else:
        refuse(path)


@pytest.mark.parametrize("type_id", [105, 106, 108, 250, 2**31])
def test_unknown_type_is_named(tmp_path: Path, type_id: int) -> None:
    error = refuse(save(tmp_path, sample().patched("t1 type", type_id)))
    assert f"tensor t1 has type id {type_id}" in error.message and "update lucebox" in str(error.hint)


@pytest.mark.parametrize("size", range(0, len(sample().data), 3))
def test_truncated_anywhere(tmp_path: Path, size: int) -> None:
    refuse(save(tmp_path, bytes(sample().data[:size])))


@pytest.mark.parametrize(
    ("extents", "what"),
    [
        ([2**32, 2**32], "product"),
        ([2**31, 2**31, 2**31, 2**31], "product"),
        ([2**62, 3], "product"),
        ([1, 1, 1, 1, 1], "5 dimensions"),
        ([31], "multiple of 32"),
        ([2**40], "needs"),
    ],
)
def test_dimensions_that_wrap_or_do_not_fit(tmp_path: Path, extents: list[int], what: str) -> None:
    writer = Writer()
    writer.data += b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    writer.tensor("t", extents, 39, 0)
    writer.data += bytes(256)
    assert what in refuse(save(tmp_path, bytes(writer.data))).message


def two(keys: list[str], tensors: list[tuple[str, int]]) -> bytes:
    writer = Writer()
    writer.data += b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key in keys:
        writer.text(key, key)
        writer.data += struct.pack("<IB", ValueType.UINT8, 1)
    for name, offset in tensors:
        writer.tensor(name, [32], 0, offset)
    return bytes(writer.data) + bytes(1024)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (two(["a", "a"], []), "key a occurs twice"),
        (two([], [("t", 0), ("t", 128)]), "tensor t occurs twice"),
        (two([], [("t", 0), ("u", 96)]), "tensor u overlaps t"),
        (two([], [("t", 0), ("u", 130)]), "no multiple of 32"),
        (two([], [("t" * 64, 0)]), "allowed are 1 to 63"),
        (b"GGML" + bytes(64), "magic"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), "version is 4"),
        (b"", "magic"),
    ],
)
def test_contradictions(tmp_path: Path, data: bytes, what: str) -> None:
    assert what in refuse(save(tmp_path, data)).message


def key_file(key: str, type_id: int, payload: bytes) -> bytes:
    writer = Writer()
    writer.data += b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    writer.text(key, key)
    return bytes(writer.data) + struct.pack("<I", type_id) + payload + bytes(64)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (key_file("k", 13, b""), "unknown value type 13"),
        (key_file("k", ValueType.BOOL, b"\x02"), "boolean of value 2"),
        (key_file("k", ValueType.ARRAY, struct.pack("<IQ", ValueType.ARRAY, 1)), "array of arrays"),
        (
            key_file("k", ValueType.ARRAY, struct.pack("<IQ", ValueType.BOOL, 2) + b"\x01\x07"),
            "boolean of value 7",
        ),
        (key_file("k", ValueType.STRING, struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
        (key_file("general.alignment", ValueType.UINT32, struct.pack("<I", 24)), "general.alignment is 24"),
        (key_file("general.alignment", ValueType.UINT32, struct.pack("<I", 0)), "general.alignment is 0"),
        (key_file("general.alignment", ValueType.UINT64, struct.pack("<Q", 32)), "general.alignment"),
    ],
)
def test_bad_values(tmp_path: Path, data: bytes, what: str) -> None:
    assert what in refuse(save(tmp_path, data)).message


def test_header_limit_bounds_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_HEADER_BYTES", 4096)
    data = key_file("k", ValueType.ARRAY, struct.pack("<IQ", ValueType.UINT8, 100_000) + bytes(100_000))
    assert "past 4096 bytes" in refuse(save(tmp_path, data)).message


def test_a_sparse_giant_costs_nothing(tmp_path: Path) -> None:
    path = save(tmp_path, key_file("k", ValueType.ARRAY, struct.pack("<IQ", ValueType.UINT8, 2**40)))
    with path.open("r+b") as stream:
        stream.truncate(2**41)
    refuse(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no such file" in refuse(tmp_path / "absent.gguf").message
    assert "is a folder" in refuse(tmp_path).message
