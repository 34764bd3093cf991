"""Every hostile GGUF file: a small DeepSeek-V4 model of our types, with one thing wrong."""

import importlib.util
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.formats.ds4_config import parse_config
from pylucebox.formats.gguf_types import TYPES_BY_ID

from . import gguf_file as g

SMALL = {
    "hidden_size": 64,
    "vocab_size": 64,
    "compress_ratios": [0, 4, 128, 4],
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "q_lora_rank": 32,
    "o_groups": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "index_n_heads": 2,
    "index_topk": 8,
}
MXFP4 = 39
SIZES = {i: (t.block_values, t.block_bytes) for i, t in TYPES_BY_ID.items()}
# What the loader in C++ says instead, by group: a count that contradicts the tensors is refused by the tensor
# that it does not fit, a size by the offset that follows it, parts of a tokenizer by their own names.
LOADER_SAYS = {
    "products that wrap": ("has offset",),
    "model keys": ("wrong shape", "not found"),
    "tokenizer and other keys": ("wrong shape", "tokenizer", "toktypes", "scores", "split.no"),
}
NAN, INFINITE = math.nan, math.inf


@dataclass(frozen=True)
class Case:
    """One file. says: words of which the error must hold one; empty where several fields may be blamed."""

    name: str
    group: str
    make: Callable[[], bytes]
    says: tuple[str, ...] = ()


def base_model(folder: Path) -> bytes:
    """The sound model: every kind of layer, dense rocmfp4, experts rocmfp2 and rocmfp3, MXFP4 output."""
    path = Path(__file__).resolve().parents[2] / "tools" / "make_fixture.py"
    spec = importlib.util.spec_from_file_location("hostile_make_fixture", path)
    assert spec and spec.loader
    maker = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = maker
    spec.loader.exec_module(maker)
    config = parse_config({**maker.COMMON, **SMALL}, Path("small"))
    out = folder / "base.gguf"
    types = maker.Types("q4_0_rocmfp4", "q2_0_rocmfp2", "q3_0_rocmfpx")
    maker.write_fixture(out, config, types, 1, "small")
    file = g.split(out.read_bytes(), SIZES)
    blocks = math.prod(file.tensor("output.weight").extents) // 32
    # exponent 2^-7 and codes of every value
    output = b"".join(bytes([120]) + bytes((7 * i + j) % 256 for j in range(16)) for i in range(blocks))
    return g.join(file.with_tensor("output.weight", type_id=MXFP4, data=output))


def all_cases(base: bytes) -> list[Case]:
    """Every case, in the order of the table."""
    file = g.split(base, SIZES)
    makers = (
        header_fields(base, file),
        dimensions(file),
        repeats_and_places(file),
        alignments(file),
        value_types(file),
        truncations(base, file),
        model_keys(file),
        tokenizer_keys(file),
        tensor_types(file),
        contents(file),
    )
    return [case for group in makers for case in group]


def header_fields(base: bytes, file: g.File) -> Iterator[Case]:
    for field in file.fields:
        stored = int.from_bytes(base[field.offset : field.offset + field.width], "little")
        for value in g.numbers(field.name):
            if value % 2 ** (8 * field.width) == stored:
                continue
            name = f"{field.owner} {field.name} = {value}".strip()
            yield Case(name, "numbers of the header", lambda f=field, v=value: g.patched(base, f, v))  # type: ignore[misc]


def dimensions(file: g.File) -> Iterator[Case]:
    wraps = (
        (2**32, 2**32),
        (2**31,) * 4,
        (2**62, 4),
        (2**61, 8, 2),
        (2**63 - 32, 2),
        (2**63 - 32,),
        (32, 2**58),
        (2**62, 0, 2**62),
        (0, 2**62, 2**62),
        (32, 2**31 + 1, 2**31 + 1),
    )
    for kind in ("blk.0.attn_kv.weight", "blk.0.ffn_down_exps.weight", "output_norm.weight"):
        for extents in wraps:
            changed = file.with_tensor(kind, extents=extents)
            yield Case(
                f"{kind} of shape {extents}", "products that wrap", lambda f=changed: g.join(f), (kind,)
            )  # type: ignore[misc]


def repeats_and_places(file: g.File) -> Iterator[Case]:
    def case(name: str, group: str, says: str, make: Callable[[], bytes]) -> Case:
        return Case(name, group, make, (says,))

    for key in ("general.architecture", "deepseek4.block_count", "tokenizer.ggml.tokens"):
        again = [(key, file.keys[key])]
        yield case(f"{key} twice", "repeats", key, lambda a=again: g.join(file, extra_keys=a))
    tensors = [t.name for t in file.tensors]
    for name in (tensors[0], tensors[-1]):
        double = g.File(file.keys, (*file.tensors, file.tensor(name)))
        yield case(f"{name} twice", "repeats", name, lambda f=double: g.join(f))
    size = len(g.join(file))
    for name in (tensors[1], tensors[len(tensors) // 2], tensors[-1]):
        for place in (0, 4, 33, size, size * 2, 2**31, 2**42 + 1, 2**63, 2**64 - 32):
            lies = {name: place}
            yield case(f"{name} at {place}", "places", name, lambda o=lies: g.join(file, offsets=o))
    swapped = {tensors[2]: 2**20, tensors[3]: 2**20}
    yield case("two tensors in one place", "places", tensors[2], lambda: g.join(file, offsets=swapped))
    for name, raw in (("", g.string("x")), ("a" * 70_000, g.string("x")), ("\udcff", g.string("x"))):
        label = f"a key of the name {name[:8]!r}"
        if name != "\udcff":
            yield Case(label, "names", lambda k=(name, raw): g.join(file, extra_keys=[k]))  # type: ignore[misc]
    for name in ("", "t" * 64, "t" * 4096):
        renamed = g.File(file.keys, (replace(file.tensors[0], name=name), *file.tensors[1:]))
        yield Case(f"a tensor of the name {name[:8]!r}…", "names", lambda f=renamed: g.join(f))  # type: ignore[misc]


def alignments(file: g.File) -> Iterator[Case]:
    key = "general.alignment"
    values = [(f"{k}", g.scalar(k, 32)) for k in (g.U8, g.I32, g.U64, g.F32, g.BOOL)]
    values += [(f"u32 {v}", g.scalar(g.U32, v)) for v in (0, 3, 24, 48, 2**31, 2**32 - 1, 2**21, 1)]
    values += [
        ("string", g.string("32")),
        ("array", g.array(g.U32, [32])),
        ("strings", g.array(g.STRING, ["32"])),
    ]
    for what, value in values:
        changed = file.with_key(key, value)
        says = () if what in ("u32 1", "u32 2097152", "u32 2147483648") else (key, "alignment")
        yield Case(f"{key}: {what}", "alignment", lambda f=changed: g.join(f), says)  # type: ignore[misc]


def value_types(file: g.File) -> Iterator[Case]:
    deep = struct.pack("<I", g.ARRAY)
    for _ in range(2000):
        deep += struct.pack("<IQ", g.ARRAY, 1)
    bad = {
        "an array of arrays": struct.pack("<IIQ", g.ARRAY, g.ARRAY, 1) + struct.pack("<IQ", g.U8, 1) + b"\1",
        "arrays 2000 deep": deep,
        "an array that says it has 2^63 numbers": g.array(g.U32, [1], 2**63),
        "an array that says it has 2^62 numbers": g.array(g.U64, [1], 2**62),
        "an array that says it has 2^61 strings": g.array(g.STRING, ["a"], 2**61),
        "an array that says it has 2^30 + 1 bytes": g.array(g.U8, [1], 2**30 + 1),
        "a string that says it has 2^63 bytes": struct.pack("<IQ", g.STRING, 2**63) + b"x",
        "a boolean of value 2": struct.pack("<IB", g.BOOL, 2),
        "text that is not UTF-8": g.string(b"\xff\xfe"),
        "the value type 13": struct.pack("<I", 13),
        "the value type 2^31": struct.pack("<I", 2**31),
    }
    for what, value in bad.items():
        yield Case(f"a key with {what}", "values", lambda v=value: g.join(file, extra_keys=[("x.y", v)]))  # type: ignore[misc]


def truncations(base: bytes, file: g.File) -> Iterator[Case]:
    for size in range(file.header_bytes):
        yield Case(f"{size} bytes", "truncated in the header", lambda s=size: base[:s])  # type: ignore[misc]
    rest = len(base) - file.header_bytes
    for step in range(64):
        size = file.header_bytes + rest * step // 64
        yield Case(f"{size} bytes", "truncated in the data", lambda s=size: base[:s])  # type: ignore[misc]
    yield Case("one byte short", "truncated in the data", lambda: base[:-33])


def model_keys(file: g.File) -> Iterator[Case]:
    for key, value in file.keys.items():
        if key.startswith("deepseek4.") or key in ("general.architecture", "lucebox.rocmfp2.dialect"):
            for what, changed in wrong_values(value):
                yield Case(
                    f"{key}: {what}",
                    "model keys",
                    lambda k=key, v=changed: g.join(file.with_key(k, v)),
                    (key, "deepseek4."),
                )  # type: ignore[misc]


def wrong_values(value: bytes | None) -> Iterator[tuple[str, bytes | None]]:
    """What a sound value is replaced by; None takes the key out."""
    yield "missing", None
    assert value is not None
    kind = struct.unpack_from("<I", value)[0]
    others = {
        "a string": g.string("x"),
        "an empty string": g.string(""),
        "u32": g.scalar(g.U32, 1),
        "i32": g.scalar(g.I32, -1),
        "u64": g.scalar(g.U64, 2**63),
        "f32": g.scalar(g.F32, 0.5),
        "boolean": g.scalar(g.BOOL, 1),
        "an array": g.array(g.U32, [1, 2]),
        "an empty array": g.array(g.I32, []),
        "strings": g.array(g.STRING, ["a", "b"]),
    }
    yield from ((f"now {what}", raw) for what, raw in others.items() if raw[:4] != value[:4])
    if kind == g.U32:
        for number in (0, 1, 3, 7, 255, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1):
            if g.scalar(g.U32, number) != value:
                yield str(number), g.scalar(g.U32, number)
    elif kind == g.F32:
        yield from ((str(v), g.scalar(g.F32, v)) for v in (0.0, -1.0, NAN, INFINITE, -INFINITE, 1e38))
    elif kind == g.BOOL:
        yield "a boolean of value 2", struct.pack("<IB", g.BOOL, 2)
    elif kind == g.STRING:
        yield from ((f"{len(v)} bytes", g.string(v)) for v in ("", "nonsense", "x" * 100_000))
    elif kind == g.ARRAY:
        yield from wrong_arrays(value)


def wrong_arrays(value: bytes) -> Iterator[tuple[str, bytes]]:
    item, count = struct.unpack_from("<IQ", value, 4)
    width = struct.calcsize(g.SCALARS[item])
    rows = [value[16 + i * width : 16 + (i + 1) * width] for i in range(count)]
    for length in (0, 1, count - 1, count + 1, 513, 5000):
        kept = b"".join((rows * 5000)[:length])
        yield f"{length} values", struct.pack("<IIQ", g.ARRAY, item, length) + kept
    kinds = {"bytes": g.U8, "u64": g.U64, "booleans": g.BOOL, "f32": g.F32, "i32": g.I32, "f64": 12}
    yield from ((f"of {w}", g.array(k, [1] * count)) for w, k in kinds.items() if k != item)
    yield "of strings", g.array(g.STRING, ["4"] * count)
    extremes: Sequence[float] = (
        (NAN, INFINITE, -1.0, 0.0) if item == g.F32 else (-1, 3, 5, 127, 2**31 - 1, -(2**31))
    )
    yield from ((f"all {v}", g.array(item, [v] * count)) for v in extremes)


def tokenizer_keys(file: g.File) -> Iterator[Case]:
    tokens = "tokenizer.ggml.tokens"
    words = [f"t{i}" for i in range(64)]
    changes: list[tuple[str, str, bytes | None]] = [
        (tokens, "missing", None),
        (tokens, "numbers", g.array(g.U32, list(range(64)))),
        (tokens, "a string", g.string("x")),
        (tokens, "none", g.array(g.STRING, [])),
        (tokens, "one", g.array(g.STRING, ["a"])),
        (tokens, "one more", g.array(g.STRING, [*words, "more"])),
        (tokens, "all the same", g.array(g.STRING, ["a"] * 64)),
        (tokens, "all empty", g.array(g.STRING, [""] * 64)),
        ("tokenizer.ggml.token_type", "too short", g.array(g.I32, [1])),
        ("tokenizer.ggml.token_type", "of strings", g.array(g.STRING, ["1"] * 64)),
        ("tokenizer.ggml.token_type", "a number", g.scalar(g.U32, 1)),
        ("tokenizer.ggml.scores", "too short", g.array(g.F32, [1])),
        ("tokenizer.ggml.scores", "of bytes", g.array(g.U8, [1] * 64)),
        ("tokenizer.ggml.model", "unknown", g.string("x")),
        ("tokenizer.ggml.model", "a number", g.scalar(g.U32, 1)),
        ("tokenizer.ggml.model", "gpt2 without merges", g.string("gpt2")),
        ("tokenizer.ggml.model", "none, vocabulary from the key", g.string("none")),
        ("tokenizer.ggml.bos_token_id", "a string", g.string("x")),
        ("tokenizer.ggml.bos_token_id", "2^32 - 1", g.scalar(g.U32, 2**32 - 1)),
        ("tokenizer.ggml.eos_token_id", "-1", g.scalar(g.I32, -1)),
        ("tokenizer.chat_template", "a number", g.scalar(g.U32, 1)),
        ("tokenizer.chat_template", "an array", g.array(g.U32, [1])),
        ("general.name", "a number", g.scalar(g.U32, 1)),
        ("lucebox.default_thinking", "a string", g.string("yes")),
        ("split.count", "2, in one file", g.scalar(2, 2)),
        ("split.count", "u64", g.scalar(g.U64, 2)),
        ("split.count", "65535", g.scalar(2, 65535)),
        ("split.no", "a string", g.string("x")),
    ]
    for key, what, value in changes:
        yield Case(
            f"{key}: {what}",
            "tokenizer and other keys",
            lambda k=key, v=value: g.join(file.with_key(k, v)),
            (key,),
        )  # type: ignore[misc]
    huge = file.with_key("tokenizer.ggml.model", g.string("none")).with_key(tokens, None)
    for size in (0, 2**31, 2**32 - 1):
        changed = huge.with_key("deepseek4.vocab_size", g.scalar(g.U32, size))
        yield Case(
            f"no tokenizer, a vocabulary of {size}",
            "tokenizer and other keys",
            lambda f=changed: g.join(f),
            ("vocab",),
        )  # type: ignore[misc]
    split = file.with_key("split.count", g.scalar(2, 2)).with_key("split.no", g.scalar(g.U32, 0))
    yield Case("split.no: u32", "tokenizer and other keys", lambda: g.join(split), ("split",))


def tensor_types(file: g.File) -> Iterator[Case]:
    wrong = (0, 1, 26, 30, 39, 100, 101, 102, 103, 104, 107, 2)
    for tensor in file.tensors:
        if tensor.name.startswith("blk.") and not tensor.name.startswith(("blk.0.", "blk.1.")):
            continue
        name = tensor.name
        yield Case(f"{name} missing", "tensors", lambda n=name: g.join(file.without_tensor(n)), (name,))  # type: ignore[misc]
        for type_id in (105, 106, 250, 2**31, 43, 36, 99, 108):
            changed = file.with_tensor(name, type_id=type_id)
            yield Case(f"{name} of type {type_id}", "types", lambda f=changed: g.join(f), (name,))  # type: ignore[misc]
        for type_id in wrong:
            block, size = SIZES[type_id]
            if type_id == tensor.type_id or tensor.extents[0] % block:
                continue
            data = bytes(math.prod(tensor.extents) // block * size)
            changed = file.with_tensor(name, type_id=type_id, data=data)
            yield Case(
                f"{name} stored as type {type_id}",
                "types in a wrong place",
                lambda f=changed: g.join(f),
                (name,),
            )  # type: ignore[misc]
    more = g.File(file.keys, (*file.tensors, g.Tensor("blk.0.extra.weight", (32,), 0, bytes(128))))
    yield Case("a tensor too many", "tensors", lambda: g.join(more), ("tensor",))


def contents(file: g.File) -> Iterator[Case]:
    ids = next(t for t in file.tensors if "tid2eid" in t.name)
    for value in (-1, 4, 2**31 - 1, -(2**31)):
        data = struct.pack("<i", value) + ids.data[4:]
        changed = file.with_tensor(ids.name, data=data)
        yield Case(f"{ids.name} names expert {value}", "contents", lambda f=changed: g.join(f), (ids.name,))  # type: ignore[misc]
    for name in ("output_norm.weight", "blk.0.attn_sinks.weight", "token_embd.weight", "output.weight"):
        for what, filler in (("0xff", b"\xff"), ("NaN", struct.pack("<f", NAN))):
            size = len(file.tensor(name).data)
            changed = file.with_tensor(name, data=(filler * size)[:size])
            yield Case(f"{name} all {what}", "contents", lambda f=changed: g.join(f), (name,))  # type: ignore[misc]
    for name in ("blk.0.ffn_down_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.0.attn_kv.weight"):
        size = len(file.tensor(name).data)
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            changed = file.with_tensor(name, data=bytes([byte]) * size)
            yield Case(f"{name} all {byte:#04x}", "contents", lambda f=changed: g.join(f), (name,))  # type: ignore[misc]
