"""What inspection reports, and when a drafter fits a target."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_checkpoint import TINY_MODEL, make_tensors, save_checkpoint, small_config

from pylucebox.core.errors import RequestError
from pylucebox.formats.convert import convert
from pylucebox.formats.gguf_types import TYPES, KeyValue, TensorInfo, align, boolean, build_header, string
from pylucebox.formats.inspect import DsparkInfo, ModelInfo, check_pair, inspect
from pylucebox.formats.ledger import Role


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelInfo, ModelInfo]:
    folder = tmp_path_factory.mktemp("pair")
    convert(TINY_MODEL, "exact", folder / "t.gguf")
    convert(TINY_MODEL, "exact", folder / "d.gguf", Role.DRAFTER)
    return inspect(folder / "t.gguf"), inspect(folder / "d.gguf")


def test_target(pair: tuple[ModelInfo, ModelInfo]) -> None:
    target = pair[0]
    assert (target.architecture, target.name, target.recipe) == ("deepseek4", "tiny-ds4", "exact")
    assert target.is_target and not target.is_drafter and target.dspark is None
    # 23,792,821 parameters; the file also counts the expert ids of two layers.
    assert (target.tensors, target.parameters) == (240, 23_792_821 + 2 * 4096 * 4)
    assert (target.context_tokens, target.layers, target.hidden_size, target.vocab_size) == (
        2048,
        8,
        256,
        4096,
    )
    assert target.has_chat_template and target.has_tokenizer and target.default_thinking is False
    assert target.types["MXFP4"].tensors == 24
    assert sum(t.size_bytes for t in target.types.values()) == target.tensor_bytes < target.file_bytes
    assert "tokenizer.ggml.tokens" not in target.keys


def test_drafter(pair: tuple[ModelInfo, ModelInfo]) -> None:
    drafter = pair[1]
    assert drafter.is_drafter and drafter.name == "tiny-ds4 DSpark" and drafter.parameters == 7_672_227
    assert drafter.dspark == DsparkInfo(5, (6, 7, 8), 64, True, 4048)
    assert drafter.as_dict()["dspark"]["target_layers"] == [6, 7, 8]
    assert drafter.number("block_count") == 3
    with pytest.raises(RequestError, match=r"key dflash.nothing is missing"):
        drafter.number("nothing")


def test_the_pair_fits(pair: tuple[ModelInfo, ModelInfo]) -> None:
    assert check_pair(*pair) == ()


def test_pairs_that_do_not_fit(pair: tuple[ModelInfo, ModelInfo], tmp_path: Path) -> None:
    target, drafter = pair
    config = small_config()
    folder = save_checkpoint(tmp_path / "c", config, make_tensors(config, "dspark"))
    convert(folder, "bf16", tmp_path / "d.gguf", Role.DRAFTER)
    findings = check_pair(target, inspect(tmp_path / "d.gguf"))
    assert any("hidden size: 256 in the target, 64 in the drafter" in f for f in findings)
    assert any("vocabulary: 4096 in the target, 320 in the drafter" in f for f in findings)
    assert "not deepseek4" in check_pair(drafter, drafter)[0]
    assert "no DSpark drafter" in check_pair(target, target)[0]
    assert drafter.dspark is not None
    far = replace(drafter, dspark=replace(drafter.dspark, target_layers=(7, 8, 9), mask_token_id=5000))
    assert any("features of layer 9" in f for f in check_pair(target, far))
    assert any("mask token 5000" in f for f in check_pair(target, far))
    base = replace(drafter, keys={**drafter.keys, "dflash.rope.freq_base": 160000.0})
    assert any("rope base" in f for f in check_pair(target, base))


def small_file(path: Path, architecture: str, keys: list[KeyValue], names: list[str]) -> Path:
    tensors: list[TensorInfo] = []
    for index, name in enumerate(names):
        tensors.append(TensorInfo(name, (1, 32), TYPES["F32"], 128, index * 128))
    path.write_bytes(build_header(architecture, keys, tensors) + bytes(align(128 * len(names))))
    return path


@pytest.mark.parametrize(
    ("architecture", "keys", "names", "what"),
    [
        ("deepseek4-dflash-draft", [], [], "a drafter in Lucebox's own layout"),
        ("dflash", [], ["markov_w1.weight"], "has markov_w1.weight but no markov_w2.weight"),
        (
            "dflash",
            [boolean("dflash.has_confidence_head", True)],
            ["markov_w1.weight", "markov_w2.weight"],
            "conf_proj.weight is missing",
        ),
    ],
)
def test_files_that_contradict_themselves(
    tmp_path: Path, architecture: str, keys: list[KeyValue], names: list[str], what: str
) -> None:
    with pytest.raises(RequestError, match=what):
        inspect(small_file(tmp_path / "x.gguf", architecture, keys, names))


def test_tensors_decide_about_the_heads(tmp_path: Path) -> None:
    heads = ["markov_w1.weight", "markov_w2.weight"]
    without = inspect(small_file(tmp_path / "a.gguf", "dflash", [], heads))
    assert without.dspark is not None and not without.dspark.has_confidence_head
    assert inspect(small_file(tmp_path / "b.gguf", "dflash", [], ["fc.weight"])).dspark is None


def test_other_architectures_are_described(tmp_path: Path) -> None:
    info = inspect(small_file(tmp_path / "x.gguf", "llama", [string("general.name", "n")], ["w"]))
    facts: dict[str, Any] = info.as_dict()
    assert (info.is_target, info.is_drafter, facts["architecture"], facts["name"]) == (
        False,
        False,
        "llama",
        "n",
    )
    assert facts["types"] == {"F32": {"tensors": 1, "bytes": 128}}
