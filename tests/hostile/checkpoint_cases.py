"""Hostile checkpoints: a safetensors file with one thing wrong, and folders that the converter meets."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic_checkpoint import Stored, make_tensors, save_checkpoint, small_config

A = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
B = {"dtype": "I64", "shape": [2], "data_offsets": [12, 28]}
DATA = bytes(28)
NUMBERS = (
    -1,
    2**31,
    2**42 + 1,
    2**63,
    2**64,
    10**400,
    1.5,
    True,
    None,
    "2",
    [2],
    {},
    float("nan"),
    float("inf"),
)


@dataclass(frozen=True)
class FileCase:
    """A safetensors file. says: words of which the error must hold one."""

    name: str
    group: str
    data: bytes
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class FolderCase:
    """A checkpoint. make: writes it into the folder it is given."""

    name: str
    group: str
    make: Callable[[Path], Path]
    says: tuple[str, ...]


def packed(text: bytes, data: bytes = DATA, length: int | None = None) -> bytes:
    """A file of this header text; `length` lies about it."""
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + data


def file_cases() -> Iterator[FileCase]:
    """Every hostile safetensors file."""
    sound = json.dumps({"a": A, "b": B}).encode()
    for value in (
        0,
        1,
        -1,
        2**31,
        2**42 + 1,
        2**63,
        len(sound) + 1,
        len(sound) - 1,
        len(sound) + len(DATA) + 1,
    ):
        yield FileCase(f"header length {value}", "header length", packed(sound, length=value))
    for size in range(8 + len(sound) + len(DATA)):
        yield FileCase(f"{size} bytes", "truncated", packed(sound)[:size])
    yield FileCase(
        "more data than tensors", "places", packed(sound, DATA + b"x"), ("follow the last tensor",)
    )
    yield from entries()
    yield from texts(sound)


def entries() -> Iterator[FileCase]:
    def case(name: str, group: str, **change: Any) -> FileCase:
        text = json.dumps({"a": {**A, **change}, "b": B}).encode()
        return FileCase(name, group, packed(text), ("tensor a", "tensor b"))

    for value in NUMBERS:
        yield case(f"an extent of {value!r:.20}", "shapes", shape=[2, value])
        yield case(f"a shape of {value!r:.20}", "shapes", shape=value)
        yield case(f"data_offsets to {value!r:.20}", "places", data_offsets=[0, value])
        yield case(f"data_offsets from {value!r:.20}", "places", data_offsets=[value, 12])
        yield case(f"dtype {value!r:.20}", "dtypes", dtype=value)
    for shape in ([2**32, 2**32], [2**62, 4], [2**63 - 1, 3], [1] * 9, [0, 2**62], [3, 3], [12], [1, 12]):
        yield case(f"shape {shape}", "shapes", shape=shape)
    for dtype in ("F4", "F64", "bf16", "", "F8_E4M3FNUZ", "BOOL", "U8"):
        yield case(f"dtype {dtype!r}", "dtypes", dtype=dtype)
    for offsets in ([12, 0], [2, 14], [0, 11], [0, 13], [12, 24], [0], [0, 12, 24], []):
        yield case(f"data_offsets {offsets}", "places", data_offsets=offsets)
    yield case("another field", "fields", more=1)


def texts(sound: bytes) -> Iterator[FileCase]:
    pair = json.dumps(A).encode()
    texts = {
        "a name twice": b'{"a":' + pair + b',"a":' + pair + b"}",
        "a field twice": sound.replace(b'"dtype"', b'"shape": [1], "dtype"', 1),
        "lists 100000 deep": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "objects 100000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "lists that do not close": b"[" * 1_000_000,
        "five million values": b'{"a":[' + b"1," * 5_000_000 + b"1]}",
        "a list": b"[]",
        "a number": b"17",
        "nothing": b"  ",
        "no UTF-8": b'{"\xff":1}',
        "a name with line ends and terminal codes": json.dumps({"a\n\x1b[2J": 1}).encode(),
        "a name of a megabyte": json.dumps({"a" * 2**20: 1}).encode(),
        "a number of 5000 digits": b'{"a":' + b"9" * 5000 + b"}",
        "an entry that is no object": json.dumps({"a": 17}).encode(),
        "an entry without fields": json.dumps({"a": {}}).encode(),
        "text after the object": sound + b"x",
    }
    yield from (FileCase(name, "texts", packed(text)) for name, text in texts.items())


def folder_cases() -> Iterator[FolderCase]:
    """Every hostile checkpoint for the converter."""
    tensors = make_tensors(small_config(), "mtp")
    for name, position, value, what in VALUES:
        old = tensors[name]
        data = old.data[:position] + value + old.data[position + len(value) :]
        yield whole(f"{name}: {what}", "values", {**tensors, name: Stored(old.dtype, old.shape, data)}, name)
    for name, shape in SHAPES:
        old = tensors[name]
        size = len(old.data) * shape[0] * shape[1] // (old.shape[0] * old.shape[1])
        changed = Stored(old.dtype, shape, (old.data * 3)[:size])
        yield whole(f"{name} of shape {shape}", "shapes", {**tensors, name: changed}, name)
    for key in (
        "num_hidden_layers",
        "o_groups",
        "compress_ratios",
        "n_routed_experts",
        "hidden_size",
        "hc_mult",
    ):
        for value in (0, -1, 2**31, 2**63, 1.5, "4", None, [], [4, 5], {}, True):
            yield configured(f"{key} = {value!r}", tensors, {key: value}, key)
    yield missing_shard(tensors)
    yield extra_shard(tensors)


def whole(name: str, group: str, tensors: dict[str, Stored], says: str) -> FolderCase:
    weight = says.removesuffix(".scale").removesuffix(".weight")
    return FolderCase(name, group, lambda folder: save_checkpoint(folder, small_config(), tensors), (weight,))


def configured(name: str, tensors: dict[str, Stored], change: dict[str, Any], key: str) -> FolderCase:
    """A change of config.json; a value that fits the key's own rules shows in the tensors' shapes."""
    return FolderCase(
        name,
        "config.json",
        lambda folder: save_checkpoint(folder, small_config(**change), tensors),
        (key, "tensor"),
    )


def missing_shard(tensors: dict[str, Stored]) -> FolderCase:
    def make(folder: Path) -> Path:
        save_checkpoint(folder, small_config(), tensors)
        (folder / "model-00002-of-00003.safetensors").unlink()
        return folder

    return FolderCase("the second of three shards is gone", "shards", make, ("model-00002-of-00003",))


def extra_shard(tensors: dict[str, Stored]) -> FolderCase:
    def make(folder: Path) -> Path:
        save_checkpoint(folder, small_config(), tensors)
        first = folder / "model-00001-of-00003.safetensors"
        (folder / "model-00004-of-00003.safetensors").write_bytes(first.read_bytes())
        return folder

    return FolderCase("a shard that the index does not know", "shards", make, ("model-00004-of-00003",))


VALUES = (
    ("layers.1.attn.wq_a.weight", 5, b"\x7f", "FP8 code 0x7f"),
    ("layers.1.attn.wq_a.weight", 5, b"\xff", "FP8 code 0xff"),
    ("layers.1.attn.wq_a.scale", 0, b"\xff", "E8M0 code 255"),
    ("layers.2.ffn.experts.1.w2.scale", 7, b"\xff", "E8M0 code 255"),
    ("embed.weight", 10, b"\xc0\x7f", "NaN"),
    ("norm.weight", 2, b"\x80\xff", "infinity"),
    ("layers.3.ffn.gate.bias", 4, b"\x00\x00\xc0\x7f", "NaN"),
    ("layers.0.ffn.gate.tid2eid", 8, (4).to_bytes(8, "little"), "expert 4 of 4"),
    ("layers.0.ffn.gate.tid2eid", 16, b"\xff" * 8, "expert -1"),
)
SHAPES = (
    ("layers.1.attn.wq_a.scale", (2, 1)),
    ("layers.1.attn.wq_a.scale", (1, 2)),
    ("layers.1.ffn.experts.0.w1.weight", (64, 31)),
    ("layers.1.ffn.experts.0.w1.weight", (64, 33)),
    ("layers.1.ffn.experts.0.w1.scale", (64, 1)),
    ("layers.1.ffn.experts.0.w1.scale", (64, 3)),
    ("layers.1.ffn.experts.0.w1.scale", (32, 2)),
    ("embed.weight", (320, 32)),
    ("layers.1.attn.wkv.weight", (64, 65)),
)
