"""GGUF metadata of a DeepSeek-V4 target (`deepseek4`) and of its DSpark drafter (`dflash`).

The loader is strict about widths: a count must be u32 and a float f32, so every key states its type here.
Several keys have defaults in the loader that load and are wrong for this model; all are written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pylucebox import __version__
from pylucebox.formats.checkpoint import Checkpoint
from pylucebox.formats.ds4_config import ModelConfig
from pylucebox.formats.gguf_types import (
    QUANTIZATION_VERSION,
    KeyValue,
    boolean,
    f32,
    f32_array,
    i32_array,
    string,
    u32,
)
from pylucebox.formats.ledger import OutputTensor
from pylucebox.formats.recipes import Recipe

TARGET_ARCHITECTURE = "deepseek4"
DRAFTER_ARCHITECTURE = "dflash"
GATING_SQRT_SOFTPLUS = 4
THINKING_KEY = "default_thinking"  # in generation_config.json; not one of DeepSeek's


def general_keys(
    checkpoint: Checkpoint, recipe: Recipe, outputs: Sequence[OutputTensor], name: str
) -> list[KeyValue]:
    """Return the `general.*` and `lucebox.*` keys. The header writer adds the architecture."""
    parameters = sum(o.values for o in outputs)
    keys = [
        string("general.type", "model"),
        string("general.name", name),
        string("general.size_label", size_label(parameters)),
        u32("general.file_type", recipe.file_type),
        u32("general.quantization_version", QUANTIZATION_VERSION),
        string("lucebox.version", __version__),
        string("lucebox.recipe", recipe.name),
    ]
    thinking = checkpoint.generation.get(THINKING_KEY)
    if isinstance(thinking, bool):
        keys.append(boolean("lucebox.default_thinking", thinking))
    return keys + _sampling_keys(checkpoint.generation)


def size_label(parameters: int) -> str:
    """Return a parameter count as "24M" or "284B"."""
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= limit:
            return f"{round(parameters / limit)}{unit}"
    return str(parameters)


def _sampling_keys(generation: Mapping[str, Any]) -> list[KeyValue]:
    if generation.get("do_sample") is False:
        return [f32("general.sampling.temp", 0.0)]
    names = (("temperature", "general.sampling.temp"), ("top_p", "general.sampling.top_p"))
    return [f32(key, float(generation[n])) for n, key in names if type(generation.get(n)) in (int, float)]


def target_keys(config: ModelConfig, mtp_layers: int = 0) -> list[KeyValue]:
    """Return the `deepseek4.*` keys of the target, or of a file with `mtp_layers` MTP blocks after it."""
    p, n = TARGET_ARCHITECTURE + ".", config.num_hidden_layers + mtp_layers
    return [
        *_shared_keys(p, config, n),
        u32(p + "embedding_length_out", config.hidden_size * config.hc_mult),
        string(p + "rope.scaling.type", "yarn"),
        f32(p + "rope.scaling.factor", config.rope_factor),
        u32(p + "rope.scaling.original_context_length", config.rope_original_context),
        f32(p + "rope.scaling.yarn_beta_fast", config.rope_beta_fast),
        f32(p + "rope.scaling.yarn_beta_slow", config.rope_beta_slow),
        # Exactly one a layer: other readers of these files insist on it.
        i32_array(p + "attention.compress_ratios", (*config.compress_ratios, *[0] * mtp_layers)[:n]),
        f32(p + "attention.compress_rope_freq_base", config.compress_rope_theta),
        u32(p + "attention.indexer.head_count", config.index_n_heads),
        u32(p + "attention.indexer.key_length", config.index_head_dim),
        u32(p + "attention.indexer.top_k", config.index_topk),
        u32(p + "hash_layer_count", config.num_hash_layers),
        *([u32(p + "nextn_predict_layers", mtp_layers)] if mtp_layers else []),
    ]


def drafter_keys(config: ModelConfig, stages: int, has_confidence_head: bool) -> list[KeyValue]:
    """Return the `dflash.*` keys of the drafter, which counts target layers by their input: one more."""
    assert config.dspark is not None
    p = DRAFTER_ARCHITECTURE + "."
    return [
        *_shared_keys(p, config, stages),
        i32_array(p + "attention.compress_ratios", [0] * stages),
        u32(p + "block_size", config.dspark.block_size),
        i32_array(p + "target_layers", [layer + 1 for layer in config.dspark.target_layers]),
        boolean(p + "sample_from_anchor", True),
        boolean(p + "attention.causal", False),
        boolean(p + "has_confidence_head", has_confidence_head),
    ]


def _shared_keys(p: str, config: ModelConfig, layers: int) -> list[KeyValue]:
    return [
        u32(p + "context_length", config.max_position_embeddings),
        u32(p + "embedding_length", config.hidden_size),
        u32(p + "block_count", layers),
        u32(p + "vocab_size", config.vocab_size),
        u32(p + "attention.head_count", config.num_attention_heads),
        u32(p + "attention.head_count_kv", 1),
        u32(p + "attention.key_length", config.head_dim),
        u32(p + "attention.value_length", config.head_dim),
        f32(p + "attention.layer_norm_rms_epsilon", config.rms_norm_eps),
        u32(p + "attention.q_lora_rank", config.q_lora_rank),
        u32(p + "attention.output_lora_rank", config.o_lora_rank),
        u32(p + "attention.output_group_count", config.o_groups),
        u32(p + "attention.sliding_window", config.sliding_window),
        u32(p + "rope.dimension_count", config.qk_rope_head_dim),
        f32(p + "rope.freq_base", config.rope_theta),
        u32(p + "expert_count", config.n_routed_experts),
        u32(p + "expert_used_count", config.num_experts_per_tok),
        u32(p + "expert_shared_count", config.n_shared_experts),
        u32(p + "expert_feed_forward_length", config.moe_intermediate_size),
        f32(p + "expert_weights_scale", config.routed_scaling_factor),
        boolean(p + "expert_weights_norm", config.norm_topk_prob),
        u32(p + "expert_gating_func", GATING_SQRT_SOFTPLUS),
        f32_array(p + "swiglu_clamp_exp", [config.swiglu_limit] * layers),
        f32_array(p + "swiglu_clamp_shexp", [config.swiglu_limit] * layers),
        u32(p + "hyper_connection.count", config.hc_mult),
        u32(p + "hyper_connection.sinkhorn_iterations", config.hc_sinkhorn_iters),
        f32(p + "hyper_connection.epsilon", config.hc_eps),
    ]
