"""Files that no model can be made of are refused by key or tensor: by exit code and line, not by a signal."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_maker import make_fixture
from hostile import gguf_file as g
from hostile.gguf_cases import SIZES, SMALL

from pylucebox.core import processes
from pylucebox.core.errors import RequestError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.ds4_config import parse_config

P = "deepseek4."
NORM, IDS, DENSE = "blk.0.attn_norm.weight", "blk.0.ffn_gate_tid2eid.weight", "blk.0.attn_kv.weight"
LAST = "blk.3.indexer_compressor_norm.weight"
NO_VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> g.File:
    """A model of upstream's types alone, so that its own loader takes it."""
    path = tmp_path_factory.mktemp("sound") / "sound.gguf"
    config = parse_config({**make_fixture.COMMON, **SMALL}, Path("small"))
    make_fixture.write_fixture(path, config, make_fixture.Types(), 1, "small")
    return g.split(path.read_bytes(), SIZES)


def load(build: BuildReceipt, file: g.File, folder: Path) -> str:
    """Load a file and decode a token; return what was said. Raises RequestError unless that went well."""
    path, errors = folder / "x.gguf", folder / "errors.txt"
    path.write_bytes(g.join(file))
    words = [
        build.bin_dir / "llama-bench",
        "-m",
        path,
        "-p",
        "1",
        "-n",
        "0",
        "-r",
        "1",
        "-t",
        "1",
        "-v",
        "--no-warmup",
    ]
    return "\n".join(processes.run(words, error=RequestError, log_path=errors).lines)


def test_the_sound_file_loads(build: BuildReceipt, sound: g.File, tmp_path: Path) -> None:
    assert "deepseek4" in load(build, sound, tmp_path)


def without_vocabulary(file: g.File) -> g.File:
    for key in NO_VOCABULARY:
        file = file.with_key(key, None)
    file = file.with_key("tokenizer.ggml.model", g.string("none"))
    return file.with_key(P + "vocab_size", g.scalar(g.U32, 2**32 - 1))


def value_of(key: str) -> str:
    return f"key {P}{key} has a value that is not supported"


Cases = dict[str, tuple[Callable[[g.File], g.File], str]]
HEADERS: Cases = {
    "type 2^31": (
        lambda f: f.with_tensor(DENSE, type_id=2**31),
        "2147483648, which this version does not know",
    ),
    "an extent of 0 hides a product": (
        lambda f: f.with_tensor(LAST, extents=(2**62, 0, 2)),
        f"incorrect shape for a tensor '{LAST}'",
    ),
}
KEYS: Cases = {
    "no layers": (lambda f: f.with_key(P + "block_count", g.scalar(g.U32, 0)), value_of("block_count")),
    "more experts used than there are": (
        lambda f: f.with_key(P + "expert_used_count", g.scalar(g.U32, 9)),
        value_of("expert_used_count"),
    ),
    "an unknown scaling": (
        lambda f: f.with_key(P + "rope.scaling.type", g.string("x")),
        value_of("rope.scaling.type"),
    ),
    "a token twice": (
        lambda f: f.with_key("tokenizer.ggml.tokens", g.array(g.STRING, ["a"] * 64)),
        "key tokenizer.ggml.tokens has a token twice",
    ),
    "a vocabulary without end": (without_vocabulary, "more than any vocabulary has"),
    "an architecture without end": (
        lambda f: f.with_key("general.architecture", g.string("x" * 10_000)),
        "in key general.architecture: '" + "x" * 60 + "'",
    ),
}
MODEL: Cases = {
    "no groups": (
        lambda f: f.with_key(P + "attention.output_group_count", g.scalar(g.U32, 0)),
        value_of("attention.output_group_count"),
    ),
    "another head size for windows": (
        lambda f: f.with_key(P + "attention.key_length_swa", g.scalar(g.U32, 32)),
        value_of("attention.key_length_swa"),
    ),
    "iterations without end": (
        lambda f: f.with_key(P + "hyper_connection.sinkhorn_iterations", g.scalar(g.U32, 2**31)),
        value_of("hyper_connection.sinkhorn_iterations"),
    ),
    "fewer ratios than layers": (
        lambda f: f.with_key(P + "attention.compress_ratios", g.array(g.U32, [4])),
        f"key {P}attention.compress_ratios is shorter than block_count",
    ),
    "another scoring of experts": (
        lambda f: f.with_key(P + "expert_gating_func", g.scalar(g.U32, 1)),
        f"key {P}expert_gating_func is not",
    ),
    "a norm in F16": (
        lambda f: f.with_tensor(NORM, type_id=1, data=bytes(128)),
        f"tensor '{NORM}' is f16, expected f32",
    ),
    "an expert of number -1": (
        lambda f: f.with_tensor(IDS, data=struct.pack("<i", -1) * 128),
        f"tensor '{IDS}' names expert -1 of 4",
    ),
}


def refuse(build: BuildReceipt, file: g.File, folder: Path, says: str) -> None:
    """Loading ends by itself, and what is wrong is said by name."""
    with pytest.raises(RequestError, match=r"exit 1\)") as caught:
        load(build, file, folder)
    assert caught.value.log_path and says in caught.value.log_path.read_text(errors="replace")


@pytest.mark.parametrize(("change", "says"), HEADERS.values(), ids=HEADERS)
def test_crafted_headers(
    build: BuildReceipt, sound: g.File, tmp_path: Path, change: Callable[[g.File], g.File], says: str
) -> None:
    refuse(build, change(sound), tmp_path, says)


@pytest.mark.parametrize(("change", "says"), KEYS.values(), ids=KEYS)
def test_keys_of_any_model(
    build: BuildReceipt, sound: g.File, tmp_path: Path, change: Callable[[g.File], g.File], says: str
) -> None:
    refuse(build, change(sound), tmp_path, says)


@pytest.mark.parametrize(("change", "says"), MODEL.values(), ids=MODEL)
def test_keys_and_tensors_of_deepseek4(
    build: BuildReceipt, sound: g.File, tmp_path: Path, change: Callable[[g.File], g.File], says: str
) -> None:
    refuse(build, change(sound), tmp_path, says)
