"""The strict safetensors reader: every contradiction in a header is refused before data is touched."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pylucebox.core.errors import RequestError
from pylucebox.formats.safetensors_reader import read_rows, read_safetensors_header

A = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
B = {"dtype": "I64", "shape": [2], "data_offsets": [12, 28]}


def save(tmp_path: Path, header: Any, data_bytes: int = 28, text: bytes | None = None) -> Path:
    path = tmp_path / "x.safetensors"
    encoded = json.dumps(header).encode() if text is None else text
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(range(data_bytes)))
    return path


def refuse(path: Path) -> str:
    with pytest.raises(RequestError) as caught:
        read_safetensors_header(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message
    return caught.value.message


def test_reads_rows_and_vectors(tmp_path: Path) -> None:
    path = save(tmp_path, {"__metadata__": {"format": "pt"}, "b": B, "a": A})
    first, second = read_safetensors_header(path)
    assert (first.name, first.dtype, first.shape, first.rows, first.columns) == ("a", "BF16", (2, 3), 2, 3)
    assert read_rows(first, 1, 2).tolist() == [[0x0706, 0x0908, 0x0B0A]]
    assert read_rows(second, 0, 1).dtype == np.int64 and second.rows == 1 and second.columns == 2


def test_a_scalar_and_an_empty_tensor(tmp_path: Path) -> None:
    header = {
        "s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "e": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]},
    }
    scalar, empty = sorted(
        read_safetensors_header(save(tmp_path, header, 4)), key=lambda t: t.name, reverse=True
    )
    assert read_rows(scalar, 0, 1).shape == (1, 1) and read_rows(empty, 0, 0).shape == (0, 7)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": "F8_E4M3FNUZ"}, "unknown dtype 'F8_E4M3FNUZ'"),
        ({"dtype": ["F32"]}, "unknown dtype"),
        ({"shape": [2, -3]}, "malformed shape"),
        ({"shape": [2, 3.0]}, "malformed shape"),
        ({"shape": [True, 3]}, "malformed shape"),
        ({"shape": "23"}, "malformed shape"),
        ({"shape": [1] * 9}, "malformed shape"),
        ({"shape": [2, 4]}, "needs 16 bytes"),
        ({"shape": [2**62, 2**62]}, "needs"),
        ({"data_offsets": [0, 12, 24]}, "malformed data_offsets"),
        ({"data_offsets": [12, 0]}, "malformed data_offsets"),
        ({"data_offsets": [-12, 0]}, "malformed data_offsets"),
        ({"data_offsets": [2, 14]}, "gap between the header and tensor a"),
        ({"extra": 1}, "exactly dtype, shape and data_offsets"),
    ],
)
def test_bad_entries(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    assert what in refuse(save(tmp_path, {"a": {**A, **change}, "b": B}))


@pytest.mark.parametrize(
    ("second", "data_bytes", "what"),
    [
        ({**B, "data_offsets": [8, 24]}, 24, "tensor b overlaps a"),
        ({**B, "data_offsets": [16, 32]}, 32, "a gap between a and tensor b"),
        (B, 27, "truncated: tensor b ends at byte"),
        (B, 12, "truncated"),
        (B, 29, "1 bytes follow the last tensor"),
        ([1], 28, "exactly dtype"),
    ],
)
def test_layouts(tmp_path: Path, second: Any, data_bytes: int, what: str) -> None:
    assert what in refuse(save(tmp_path, {"a": A, "b": second}, data_bytes))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b'{"a": %s, "a": %s}' % (json.dumps(A).encode(), json.dumps(A).encode()), "'a' occurs twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F32"}}', "'dtype' occurs twice"),
        (b"[]", "holds no JSON object"),
        (b"{nope", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b"[" * 20000, "not valid JSON"),
    ],
)
def test_bad_json(tmp_path: Path, text: bytes, what: str) -> None:
    assert what in refuse(save(tmp_path, None, 28, text))


@pytest.mark.parametrize("length", [0, 1, 2**31, 100_000_001, 2**63, 2**64 - 1])
def test_header_length(tmp_path: Path, length: int) -> None:
    path = save(tmp_path, {"a": A, "b": B})
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert f"header length {length}" in refuse(path)


@pytest.mark.parametrize("size", [0, 7])
def test_too_short_for_anything(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(size))
    assert "too few" in refuse(path)


def test_absent(tmp_path: Path) -> None:
    assert "no such file" in refuse(tmp_path / "x.safetensors")


def test_file_that_shrinks_after_its_header_was_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"a": A, "b": B})
    second = read_safetensors_header(path)[1]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(RequestError, match="b ends early"):
        read_rows(second, 0, 1)
