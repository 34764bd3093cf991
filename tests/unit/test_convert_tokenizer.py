"""tokenizer.json to GGUF keys: token types, merges, and the pre-tokenizer that must be DeepSeek-V4's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_checkpoint import TINY_MODEL, VOCABULARY, small_config, write_tokenizer

from pylucebox.core.errors import RequestError
from pylucebox.formats.ds4_config import ModelConfig, parse_config
from pylucebox.formats.tokenizer import chat_template, tokenizer_keys

PRE = "pre_tokenizer"


def config(**changes: Any) -> ModelConfig:
    return parse_config(small_config(**changes), Path("config.json"))


def keys_of(folder: Path, model: ModelConfig, mask: int | None = None) -> dict[str, Any]:
    return {e.key.removeprefix("tokenizer.ggml."): e.value for e in tokenizer_keys(folder, model, mask)}


def test_the_embedded_tokenizer() -> None:
    raw = json.loads((TINY_MODEL / "config.json").read_text())
    keys = keys_of(TINY_MODEL, parse_config(raw, TINY_MODEL / "config.json"), 4048)
    tokens, types = keys["tokens"], keys["token_type"]
    assert (keys["model"], keys["pre"]) == ("gpt2", "joyai-llm")
    assert len(tokens) == len(types) == 4096 and len(keys["merges"]) == 3773
    assert (keys["bos_token_id"], keys["eos_token_id"], keys["padding_token_id"]) == (0, 1, 2)
    assert keys["mask_token_id"] == 4048 and keys["add_bos_token"] is False and keys["add_eos_token"] is False
    assert tokens[0] == "<｜begin▁of▁sentence｜>" and tokens[4053] == "<｜Assistant｜>"
    kinds = {tokens[i]: types[i] for i in (0, 4053, 4070, 4071, 4074, 4054)}
    assert kinds == {
        "<｜begin▁of▁sentence｜>": 3,
        "<｜Assistant｜>": 3,
        "<think>": 4,
        "</think>": 4,
        "｜DSML｜": 4,
        "<|EOT|>": 3,
    }
    assert types[3] == 1 and keys["merges"][0] == "h e"


def test_ids_without_a_token_are_filled(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    keys = keys_of(tmp_path, config())
    gaps = [i for i, kind in enumerate(keys["token_type"]) if kind == 5]
    assert gaps and all(keys["tokens"][i] == f"[PAD{i}]" for i in gaps)
    assert keys["padding_token_id"] == 1 and "mask_token_id" not in keys


def set_step(index: int, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda t: t[PRE]["pretokenizers"][index].update(changes)


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (set_step(0, pattern={"Regex": r"\p{N}"}), "pre_tokenizer step 0 is"),
    (set_step(1, behavior="Removed"), "pre_tokenizer step 1 is"),
    (set_step(3, add_prefix_space=True), "pre_tokenizer step 3 is"),
    (lambda t: t[PRE]["pretokenizers"].pop(), "not DeepSeek-V4's sequence of 4 steps"),
    (lambda t: t.update({PRE: None}), "not DeepSeek-V4's sequence"),
    (lambda t: t.update({"normalizer": {"type": "NFC"}}), "normalizer is {'type': 'NFC'}"),
    (lambda t: t["model"].update({"type": "Unigram"}), "not a byte-level BPE"),
    (lambda t: t["model"].update({"byte_fallback": True}), "not a byte-level BPE"),
    (lambda t: t["model"].update({"merges": []}), "merges is missing or empty"),
    (lambda t: t["model"].update({"merges": ["a b c"]}), "merge 0 is 'a b c', not a pair"),
    (lambda t: t["model"].update({"merges": [["a", ""]]}), "not a pair"),
    (lambda t: t["model"].update({"merges": [["a ", "b"]]}), "merge 0 holds a space"),
    (lambda t: t["model"]["vocab"].update({"new": VOCABULARY}), "has the id 320, outside 0 to 319"),
    (lambda t: t["model"]["vocab"].update({"new": -1}), "has the id -1"),
    (lambda t: t["model"]["vocab"].update({"new": "3"}), "has the id '3'"),
    (lambda t: t["model"]["vocab"].update({"new": 3}), "id 3 belongs to"),
    (lambda t: t["added_tokens"].append({"id": 4}), "is malformed"),
    (lambda t: t.update({"added_tokens": {}}), "added_tokens is malformed"),
]


@pytest.mark.parametrize(("change", "what"), CHANGES)
def test_foreign_or_broken_tokenizers(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], what: str
) -> None:
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(RequestError) as caught:
        tokenizer_keys(tmp_path, config())
    assert what in caught.value.message and str(path) in caught.value.message


def test_merges_may_be_strings(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    pairs = keys_of(tmp_path, config())["merges"]
    raw = json.loads(path.read_text())
    raw["model"]["merges"] = [" ".join(m) for m in raw["model"]["merges"]]
    path.write_text(json.dumps(raw))
    assert keys_of(tmp_path, config())["merges"] == pairs


def test_special_ids_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(RequestError, match="eos token 999 is outside the vocabulary"):
        tokenizer_keys(tmp_path, config(eos_token_id=999))
    with pytest.raises(RequestError, match=r"tokenizer.json: no such file"):
        tokenizer_keys(tmp_path / "absent", config())


def test_template_is_recognised_by_the_server_and_knows_the_release(tmp_path: Path) -> None:
    plain, later = chat_template(tmp_path / "DeepSeek-V4-Flash"), chat_template(tmp_path / "V4-Flash-0731")
    # common/chat.cpp chooses its DeepSeek-V4 parser by these words.
    assert (
        all(word in plain for word in ("dsml_token", "DSML", "tool_calls")) and "function_calls" not in plain
    )
    assert later.endswith(plain) and "set later_release = true" in later[:60]
