"""tokenizer.json of a checkpoint to the `tokenizer.*` keys of GGUF; only one pre-tokenizer is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pylucebox.core.errors import RequestError
from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.formats.ds4_config import ModelConfig
from pylucebox.formats.gguf_types import KeyValue, boolean, i32_array, string, string_array, u32
from pylucebox.formats.safetensors_reader import read_json

TOKENIZER = "tokenizer.json"
TEMPLATE_PATH = PACKAGE_DIR / "data" / "templates" / "deepseek-v4.jinja"
# Releases whose chat format knows two levels of reasoning effort, by a part of the folder's name.
LATER_RELEASES = ("0731",)
LATER_MARK = "{%- set later_release = true -%}\n"
# llama.cpp has two names for this split, "deepseek-v3" and this one, which its own converter chooses.
PRE_TOKENIZER = "joyai-llm"
SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
CONTROL_MARKS = (("<|", "|>"), ("<｜", "｜>"))
HINT = "use the tokenizer files of the same release"


def tokenizer_keys(folder: Path, config: ModelConfig, mask_token_id: int | None = None) -> list[KeyValue]:
    """Return the tokenizer and chat template keys for the checkpoint in `folder`.

    mask_token_id: the drafter's noise token; None for a target. Raises RequestError naming file and field.
    """
    path = folder / TOKENIZER
    raw = read_json(path, hint=HINT)
    _check_pipeline(raw, path)
    tokens, types = _tokens(raw, path, config.vocab_size)
    pad = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
    special = {"bos": config.bos_token_id, "eos": config.eos_token_id, "padding": pad}
    if mask_token_id is not None:
        special["mask"] = mask_token_id
    for name, token in special.items():
        if token >= config.vocab_size:
            raise RequestError(f"{config.path}: {name} token {token} is outside the vocabulary", hint=HINT)
    return [
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", PRE_TOKENIZER),
        string_array("tokenizer.ggml.tokens", tokens),
        i32_array("tokenizer.ggml.token_type", types),
        string_array("tokenizer.ggml.merges", _merges(raw, path)),
        *(u32(f"tokenizer.ggml.{name}_token_id", token) for name, token in special.items()),
        boolean("tokenizer.ggml.add_bos_token", False),
        boolean("tokenizer.ggml.add_eos_token", False),
        string("tokenizer.chat_template", chat_template(folder)),
    ]


def chat_template(folder: Path) -> str:
    """Return the chat template for the checkpoint in `folder`; only its name tells the release."""
    text = TEMPLATE_PATH.read_text(encoding="utf-8")
    return LATER_MARK + text if any(r in folder.resolve().name for r in LATER_RELEASES) else text


def _check_pipeline(raw: Mapping[str, Any], path: Path) -> None:
    model = raw.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        raise RequestError(f"{path}: model is not a byte-level BPE", hint=HINT)
    normalizer = raw.get("normalizer")
    if normalizer not in (None, {"type": "Sequence", "normalizers": []}):
        raise RequestError(f"{path}: normalizer is {normalizer!r}, DeepSeek-V4 has none", hint=HINT)
    pre = raw.get("pre_tokenizer")
    steps = pre.get("pretokenizers") if isinstance(pre, dict) else None
    if not isinstance(steps, list) or len(steps) != len(SPLITS) + 1:
        raise RequestError(
            f"{path}: pre_tokenizer is not DeepSeek-V4's sequence of {len(SPLITS) + 1} steps", hint=HINT
        )
    wanted: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": s}, "behavior": "Isolated", "invert": False} for s in SPLITS
    ]
    wanted.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    for index, (step, want) in enumerate(zip(steps, wanted, strict=True)):
        if not isinstance(step, dict) or any(step.get(key) != value for key, value in want.items()):
            raise RequestError(
                f"{path}: pre_tokenizer step {index} is {step!r}, not DeepSeek-V4's", hint=HINT
            )


def _tokens(raw: Mapping[str, Any], path: Path, vocab_size: int) -> tuple[list[str], list[int]]:
    tokens: list[str | None] = [None] * vocab_size
    types = [UNUSED] * vocab_size
    vocab = raw["model"].get("vocab")
    added = raw.get("added_tokens", [])
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise RequestError(f"{path}: model.vocab or added_tokens is malformed", hint=HINT)
    entries = [(text, token, NORMAL) for text, token in vocab.items()]
    for index, entry in enumerate(added):
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise RequestError(f"{path}: added_tokens[{index}] is malformed", hint=HINT)
        entries.append((entry["content"], entry.get("id"), _added_type(entry)))
    for text, token, kind in entries:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise RequestError(
                f"{path}: token {text!r} has the id {token!r}, outside 0 to {vocab_size - 1}", hint=HINT
            )
        if tokens[token] not in (None, text):
            raise RequestError(f"{path}: id {token} belongs to {tokens[token]!r} and to {text!r}", hint=HINT)
        tokens[token], types[token] = text, kind
    return [text if text is not None else f"[PAD{i}]" for i, text in enumerate(tokens)], types


def _added_type(entry: Mapping[str, Any]) -> int:
    text = entry["content"]
    looks_special = any(text.startswith(start) and text.endswith(end) for start, end in CONTROL_MARKS)
    return CONTROL if entry.get("special") is True or looks_special else USER_DEFINED


def _merges(raw: Mapping[str, Any], path: Path) -> list[str]:
    merges = raw["model"].get("merges")
    if not isinstance(merges, list) or not merges:
        raise RequestError(f"{path}: model.merges is missing or empty", hint=HINT)
    result: list[str] = []
    for index, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            raise RequestError(f"{path}: merge {index} is {merge!r}, not a pair", hint=HINT)
        if " " in pair[0] or " " in pair[1]:
            raise RequestError(
                f"{path}: merge {index} holds a space, which byte-level BPE never has", hint=HINT
            )
        result.append(" ".join(pair))
    return result
