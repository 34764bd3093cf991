"""config.json of an original DeepSeek-V4 checkpoint: which keys count, their types, what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pylucebox.core.errors import RequestError

ARCHITECTURES = ("DeepseekV4ForCausalLM", "DeepseekV4DSparkModel")
# Keys that only DeepSeek-V4.1 has: another architecture under a similar name.
V41_KEYS = ("text_config", "kv_source_layer_ids")
V41_PREFIX = "engram_"
RATIOS = (0, 4, 128)
SUPPORTED = {"scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc"}
ORIGINAL_HINT = "use the checkpoint as DeepSeek published it"


@dataclass(frozen=True)
class DsparkConfig:
    """The drafter's own keys. target_layers: after which target layers features are taken, counted from 0."""

    block_size: int
    noise_token_id: int
    target_layers: tuple[int, ...]
    markov_rank: int


@dataclass(frozen=True)
class ModelConfig:
    """Every config value the converter uses; names follow config.json."""

    path: Path
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    num_hash_layers: int
    compress_ratios: tuple[int, ...]
    compress_rope_theta: float
    rope_theta: float
    rope_factor: float
    rope_original_context: int
    rope_beta_fast: float
    rope_beta_slow: float
    max_position_embeddings: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    swiglu_limit: float
    rms_norm_eps: float
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int | None
    vision_layers: int
    weight_block: tuple[int, int] | None
    dspark: DsparkConfig | None

    @property
    def extents(self) -> dict[str, int]:
        """Letter names of sizes that the tensor tables use, and products of them."""
        e, d, c = self.hidden_size, self.head_dim, self.hc_mult
        return {
            "1": 1,
            "3": 3,
            "V": self.vocab_size,
            "E": e,
            "D": d,
            "H": self.num_attention_heads,
            "Rq": self.q_lora_rank,
            "HD": self.num_attention_heads * d,
            "HD/G": self.num_attention_heads * d // self.o_groups,
            "GRo": self.o_groups * self.o_lora_rank,
            "X": self.n_routed_experts,
            "K": self.num_experts_per_tok,
            "F": self.moe_intermediate_size,
            "Fs": self.moe_intermediate_size * self.n_shared_experts,
            "I": self.index_head_dim,
            "2I": 2 * self.index_head_dim,
            "J": self.index_n_heads,
            "JI": self.index_n_heads * self.index_head_dim,
            "C": c,
            "CE": c * e,
            "M": (2 + c) * c,
            "2D": 2 * d,
            "4": 4,
            "128": 128,
            "2E": 2 * e,
        }


def parse_config(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Check `raw`, the object in config.json at `path`, and return what the converter uses.

    Raises RequestError naming the key and what was found there.
    """
    _refuse_others(raw, path)
    reader = _Reader(raw, path)
    values: dict[str, Any] = {"path": path, "dspark": _parse_dspark(raw, reader)}
    for field in fields(ModelConfig):
        if field.type in (int, float, bool) and field.name not in RENAMED:
            values[field.name] = reader.number(field.name, field.type)
    values.update(_parse_rope(raw, reader))
    values["compress_ratios"] = reader.counts("compress_ratios")
    values["pad_token_id"] = (
        reader.number("pad_token_id", int) if raw.get("pad_token_id") is not None else None
    )
    values["vision_layers"] = reader.number("vision_n_layers", int) if "vision_n_layers" in raw else 0
    values["weight_block"] = _parse_weight_block(raw, reader)
    config = ModelConfig(**values)
    _check_values(config, reader)
    return config


# Fields that config.json has under another name or in another object.
RENAMED = ("rope_factor", "rope_original_context", "rope_beta_fast", "rope_beta_slow", "vision_layers")


class _Reader:
    """Typed access to one JSON object; every failure names file, key and what was found."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self._raw = raw
        self._path = path

    def fail(self, key: str, what: str, hint: str = ORIGINAL_HINT) -> RequestError:
        return RequestError(f"{self._path}: {key} {what}", hint=hint)

    def number(self, key: str, kind: Any, where: Mapping[str, Any] | None = None) -> Any:
        raw = self._raw if where is None else where
        if key not in raw:
            raise self.fail(key, "is missing")
        value: Any = raw[key]
        allowed = {int: (int,), float: (int, float), bool: (bool,)}[kind]
        if type(value) not in allowed:
            raise self.fail(key, f"is {value!r}, not {'a number' if kind is not bool else 'true or false'}")
        if kind is int and not 0 <= value < 2**31:
            raise self.fail(key, f"is {value}, out of range")
        return kind(value)

    def counts(self, key: str) -> tuple[int, ...]:
        value = self._raw.get(key)
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v < 2**31 for v in value):
            raise self.fail(key, f"is {value!r}, not a list of whole numbers")
        return tuple(value)


def _refuse_others(raw: Mapping[str, Any], path: Path) -> None:
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    newer = [k for k in raw if k in V41_KEYS or k.startswith(V41_PREFIX)]
    if (
        newer
        or "V4_1" in name
        or "V41" in name
        or str(raw.get("model_type")) in ("deepseek_v41", "deepseek_v4_1")
    ):
        what = f"architecture {name}" if name else f"key {newer[0]}"
        raise RequestError(
            f"{path}: this is DeepSeek-V4.1 ({what}), another architecture that lucebox does not convert",
            hint="convert a DeepSeek-V4 checkpoint",
        )
    if name not in ARCHITECTURES:
        raise RequestError(
            f"{path}: architectures is {names!r}, supported is {ARCHITECTURES[0]}",
            hint="convert a DeepSeek-V4 checkpoint",
        )


def _parse_rope(raw: Mapping[str, Any], reader: _Reader) -> dict[str, Any]:
    scaling = raw.get("rope_scaling")
    if not isinstance(scaling, dict):
        raise reader.fail("rope_scaling", f"is {scaling!r}, not an object")
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind != "yarn":
        raise reader.fail("rope_scaling.type", f"is {kind!r}, supported is 'yarn'")
    return {
        "rope_factor": reader.number("factor", float, scaling),
        "rope_original_context": reader.number("original_max_position_embeddings", int, scaling),
        "rope_beta_fast": reader.number("beta_fast", float, scaling),
        "rope_beta_slow": reader.number("beta_slow", float, scaling),
    }


def _parse_weight_block(raw: Mapping[str, Any], reader: _Reader) -> tuple[int, int] | None:
    quantization = raw.get("quantization_config")
    if quantization is None:
        return None
    block = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if not isinstance(block, list) or len(block) != 2 or not all(type(b) is int and b > 0 for b in block):
        raise reader.fail("quantization_config.weight_block_size", f"is {block!r}, not two positive numbers")
    return block[0], block[1]


def _parse_dspark(raw: Mapping[str, Any], reader: _Reader) -> DsparkConfig | None:
    if not any(key.startswith("dspark_") for key in raw):
        return None
    return DsparkConfig(
        block_size=reader.number("dspark_block_size", int),
        noise_token_id=reader.number("dspark_noise_token_id", int),
        target_layers=reader.counts("dspark_target_layer_ids"),
        markov_rank=reader.number("dspark_markov_rank", int),
    )


def _check_values(config: ModelConfig, reader: _Reader) -> None:
    for key, wanted in SUPPORTED.items():
        if reader._raw.get(key, wanted) != wanted:
            raise reader.fail(key, f"is {reader._raw[key]!r}, supported is {wanted!r}")
    positive = [f.name for f in fields(config) if f.type is int and f.name not in ZERO_ALLOWED]
    for name in positive:
        if getattr(config, name) < 1:
            raise reader.fail(name, "is 0")
    if reader._raw.get("num_key_value_heads", 1) != 1:
        raise reader.fail("num_key_value_heads", f"is {reader._raw['num_key_value_heads']}, supported is 1")
    if config.hc_mult != 4:
        raise reader.fail("hc_mult", f"is {config.hc_mult}, supported is 4")
    if len(config.compress_ratios) < config.num_hidden_layers:
        raise reader.fail("compress_ratios", f"has {len(config.compress_ratios)} values, needs one a layer")
    strange = [r for r in config.compress_ratios if r not in RATIOS]
    if strange:
        raise reader.fail("compress_ratios", f"holds {strange[0]}, supported are 0, 4 and 128")
    if config.num_hash_layers > config.num_hidden_layers:
        raise reader.fail("num_hash_layers", f"is {config.num_hash_layers}, more than there are layers")
    if config.num_attention_heads * config.head_dim % config.o_groups:
        raise reader.fail("o_groups", f"is {config.o_groups}, which does not divide the heads")
    _check_dspark(config, reader)


ZERO_ALLOWED = ("num_hash_layers", "bos_token_id", "eos_token_id", "vision_layers")


def _check_dspark(config: ModelConfig, reader: _Reader) -> None:
    dspark = config.dspark
    if dspark is None:
        return
    if not 1 <= dspark.block_size <= 16:
        raise reader.fail("dspark_block_size", f"is {dspark.block_size}, allowed are 1 to 16")
    if dspark.noise_token_id >= config.vocab_size:
        raise reader.fail("dspark_noise_token_id", f"is {dspark.noise_token_id}, outside the vocabulary")
    layers = dspark.target_layers
    if not layers or list(layers) != sorted(set(layers)) or layers[-1] >= config.num_hidden_layers:
        raise reader.fail(
            "dspark_target_layer_ids", f"is {list(layers)}, not rising layer numbers of the target"
        )
