"""Checks of the metadata that our code and the server read: no later step meets a value it cannot use.

The limits are those of the server's loader: far above any published model, low enough that no product of two
wraps and nothing is allocated without end.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_reader import GgufHeader
from pylucebox.formats.gguf_types import KeyValue, ValueType

Fits = Callable[[KeyValue, "Limits"], bool]

REMEDY = "convert the model again"
MAX_LAYERS = 512
RATIOS = (0, 4, 128)
INTEGERS = (ValueType.UINT32, ValueType.INT32)
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Limits:
    """What a key may hold. types: of the value, or of an array's items; low, high: inclusive."""

    types: tuple[ValueType, ...]
    low: float = -math.inf
    high: float = math.inf
    wanted: str = ""


def _count(low: int, high: int) -> Limits:
    return Limits((ValueType.UINT32,), low, high, f"a u32 of {low} to {high}")


POSITIVE = Limits((ValueType.FLOAT32,), 1e-30, 3e38, "an f32 above 0")
NUMBER = Limits((ValueType.FLOAT32,), -3e38, 3e38, "a finite f32")
FLAG = Limits((ValueType.BOOL,), wanted="a boolean")
TEXT = Limits((ValueType.STRING,), wanted="text")

# Of every file.
GENERAL: Mapping[str, Limits] = {
    "general.architecture": TEXT,
    "general.name": TEXT,
    "lucebox.recipe": TEXT,
    "lucebox.default_thinking": FLAG,
    "lucebox.rocmfp2.dialect": TEXT,
    "tokenizer.chat_template": TEXT,
    "tokenizer.ggml.model": TEXT,
    "tokenizer.ggml.mask_token_id": _count(0, 2**31 - 1),
}
# Of every architecture, behind its name.
EVERY: Mapping[str, Limits] = {
    "context_length": _count(1, 2**31 - 1),
    "embedding_length": _count(1, 2**20),
    "block_count": _count(1, MAX_LAYERS),
    "vocab_size": _count(1, 2**24),
}
# Of the target and its drafter alone. Absent keys are another step's error: it knows which it needs.
DS4: Mapping[str, Limits] = {
    "attention.head_count": _count(1, 2**12),
    "attention.head_count_kv": _count(1, 1),
    "attention.key_length": _count(1, 2**14),
    "attention.value_length": _count(1, 2**14),
    "attention.layer_norm_rms_epsilon": POSITIVE,
    "attention.q_lora_rank": _count(1, 2**20),
    "attention.output_lora_rank": _count(1, 2**20),
    "attention.output_group_count": _count(1, 2**12),
    "attention.sliding_window": _count(1, 2**20),
    "attention.compress_rope_freq_base": POSITIVE,
    "attention.indexer.head_count": _count(1, 2**12),
    "attention.indexer.key_length": _count(1, 2**14),
    "attention.indexer.top_k": _count(1, 2**31 - 1),
    "rope.dimension_count": _count(2, 2**14),
    "rope.freq_base": POSITIVE,
    "rope.scaling.type": TEXT,
    "rope.scaling.factor": POSITIVE,
    "rope.scaling.original_context_length": _count(1, 2**31 - 1),
    "rope.scaling.yarn_beta_fast": NUMBER,
    "rope.scaling.yarn_beta_slow": NUMBER,
    "expert_count": _count(1, 1024),
    "expert_used_count": _count(1, 1024),
    "expert_shared_count": _count(1, 64),
    "expert_feed_forward_length": _count(1, 2**20),
    "expert_weights_scale": NUMBER,
    "expert_weights_norm": FLAG,
    "expert_gating_func": _count(0, 16),
    "hyper_connection.count": _count(1, 16),
    "hyper_connection.sinkhorn_iterations": _count(1, 64),
    "hyper_connection.epsilon": POSITIVE,
    "embedding_length_out": _count(1, 2**24),
    "hash_layer_count": _count(0, MAX_LAYERS),
    "nextn_predict_layers": _count(0, MAX_LAYERS - 1),
    "block_size": _count(1, 16),
}
# Arrays: key behind the architecture's name -> what an item may be.
DS4_LISTS: Mapping[str, Limits] = {
    "attention.compress_ratios": Limits(INTEGERS, 0, 128, "a list of 0, 4 and 128, one a layer"),
    "swiglu_clamp_exp": Limits((ValueType.FLOAT32,), -3e38, 3e38, "a list of finite f32, one a layer"),
    "swiglu_clamp_shexp": Limits((ValueType.FLOAT32,), -3e38, 3e38, "a list of finite f32, one a layer"),
    "target_layers": Limits(INTEGERS, 0, MAX_LAYERS, "a list of layer numbers"),
}
# One value for all layers, or a list with one a layer.
EITHER = ("expert_used_count", "expert_feed_forward_length", "swiglu_clamp_exp", "swiglu_clamp_shexp")
DS4_ARCHITECTURES = ("deepseek4", "dflash")
TOKENS = Limits((ValueType.STRING,), wanted="a list of text")


def check_keys(header: GgufHeader) -> None:
    """Raise RequestError naming the first key whose type or value no reader could use."""
    architecture = _architecture(header)
    keys: list[tuple[str, Limits, Fits]] = [(key, limits, _scalar_fits) for key, limits in GENERAL.items()]
    keys += [(f"{architecture}.{key}", limits, _scalar_fits) for key, limits in EVERY.items()]
    keys.append(("tokenizer.ggml.tokens", TOKENS, _list_fits))
    if architecture in DS4_ARCHITECTURES:
        keys += [(f"{architecture}.{key}", limits, _fits_of(key)) for key, limits in DS4.items()]
        keys += [(f"{architecture}.{key}", limits, _fits_of(key)) for key, limits in DS4_LISTS.items()]
    _check_each(header, keys)
    if architecture in DS4_ARCHITECTURES:
        _check_together(header, architecture)


def _check_each(header: GgufHeader, keys: Sequence[tuple[str, Limits, Fits]]) -> None:
    for key, limits, fits in keys:
        entry = header.keys.get(key)
        if entry is not None and not fits(entry, limits):
            raise _fail(header, key, f"is not {limits.wanted}")


def _architecture(header: GgufHeader) -> str:
    entry = header.keys.get("general.architecture")
    if entry is None or entry.value == "":
        raise RequestError(f"{header.path}: key general.architecture is missing", hint=REMEDY)
    if entry.type is not ValueType.STRING:
        raise _fail(header, "general.architecture", "is not text")
    return str(entry.value)


def _fail(header: GgufHeader, key: str, what: str) -> RequestError:
    value = repr(header.keys[key].value)
    shown = value if len(value) <= SHOWN else value[:SHOWN] + "…"
    return RequestError(f"{header.path}: key {key} {what}: {shown}", hint=REMEDY)


def _scalar_fits(entry: KeyValue, limits: Limits) -> bool:
    return entry.type in limits.types and _in_range(entry.value, limits)


def _list_fits(entry: KeyValue, limits: Limits) -> bool:
    items = entry.value if entry.type is ValueType.ARRAY else ()
    return bool(items) and entry.item_type in limits.types and all(_in_range(v, limits) for v in items)


def _fits_of(key: str) -> Fits:
    if key in EITHER:
        return _either_fits
    return _list_fits if key in DS4_LISTS else _scalar_fits


def _either_fits(entry: KeyValue, limits: Limits) -> bool:
    return _list_fits(entry, limits) if entry.type is ValueType.ARRAY else _scalar_fits(entry, limits)


def _in_range(value: Any, limits: Limits) -> bool:
    return isinstance(value, str) or limits.low <= value <= limits.high  # a NaN is in no range


def _check_together(header: GgufHeader, architecture: str) -> None:
    """What values of several keys say together; a key that is absent says nothing."""

    def number(key: str) -> int | None:
        value = header.value(f"{architecture}.{key}")
        return None if isinstance(value, tuple) else value

    layers = number("block_count")
    ratios = header.value(f"{architecture}.attention.compress_ratios")
    if isinstance(ratios, tuple):
        name = f"{architecture}.attention.compress_ratios"
        if any(ratio not in RATIOS for ratio in ratios):
            raise _fail(header, name, "holds something else than 0, 4 and 128")
        if layers is not None and not layers <= len(ratios) <= MAX_LAYERS:
            raise _fail(header, name, f"has {len(ratios)} values for {layers} layers")
    for small, large in AT_MOST:
        a, b = number(small), number(large)
        if a is not None and b is not None and a > b:
            raise _fail(header, f"{architecture}.{small}", f"is more than {large} ({b})")
    heads, groups = number("attention.head_count"), number("attention.output_group_count")
    if heads and groups and heads % groups:
        raise _fail(header, f"{architecture}.attention.output_group_count", f"does not divide {heads} heads")


AT_MOST = (
    ("expert_used_count", "expert_count"),
    ("hash_layer_count", "block_count"),
    ("rope.dimension_count", "attention.key_length"),
    ("attention.output_group_count", "attention.head_count"),
)
