"""Which tensors a DeepSeek-V4 checkpoint has, their names in GGUF, their shapes and which rule types them.

Shapes are letters of `ModelConfig.extents`, rows first. Names are exact: no suffix decides anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pylucebox.formats.ds4_config import ModelConfig


class Rule(Enum):
    """What decides the type a tensor is written in (see recipes.py)."""

    VECTOR = "vector"  # norms, sinks, biases, hyper-connection base and scale: always F32
    KEPT = "kept"  # matrices that must not fall below 16 bits: as stored
    DENSE = "dense"  # attention and shared-expert matrices: by recipe
    EXPERTS = "experts"  # routed experts, stacked: by recipe
    EMBEDDING = "embedding"  # token embedding: by recipe
    OUTPUT = "output"  # output matrix: by recipe
    IDS = "ids"  # expert ids: always I32


@dataclass(frozen=True)
class Slot:
    """One tensor (or one stack of experts) and its name on both sides.

    beside: a second source of the same shape, whose columns follow those of the first.
    alias: another whole name of the source, used when the first is absent.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    rule: Rule
    optional: bool = False
    beside: str = ""
    alias: str = ""


def _slot(source: str, target: str, shape: str, rule: Rule, optional: bool = False, alias: str = "") -> Slot:
    return Slot(source, target, tuple(shape.split()), rule, optional, alias=alias)


# Name parts of drafter heads that were exported on their own.
MARKOV, CONFIDENCE = "dspark_markov_head", "dspark_confidence_head"


HC_HEAD = (
    _slot("hc_head_fn", "output_hc_fn.weight", "C CE", Rule.KEPT),
    _slot("hc_head_base", "output_hc_base.weight", "C", Rule.VECTOR),
    _slot("hc_head_scale", "output_hc_scale.weight", "1", Rule.VECTOR),
)
ROOT = (
    _slot("embed.weight", "token_embd.weight", "V E", Rule.EMBEDDING),
    _slot("head.weight", "output.weight", "V E", Rule.OUTPUT),
    _slot("norm.weight", "output_norm.weight", "E", Rule.VECTOR),
    *HC_HEAD,
)
BLOCK = (
    _slot("attn_norm.weight", "attn_norm.weight", "E", Rule.VECTOR),
    _slot("ffn_norm.weight", "ffn_norm.weight", "E", Rule.VECTOR),
    _slot("attn.wq_a.weight", "attn_q_a.weight", "Rq E", Rule.DENSE),
    _slot("attn.q_norm.weight", "attn_q_a_norm.weight", "Rq", Rule.VECTOR),
    _slot("attn.wq_b.weight", "attn_q_b.weight", "HD Rq", Rule.DENSE),
    _slot("attn.wkv.weight", "attn_kv.weight", "D E", Rule.DENSE),
    _slot("attn.kv_norm.weight", "attn_kv_a_norm.weight", "D", Rule.VECTOR),
    _slot("attn.wo_a.weight", "attn_output_a.weight", "GRo HD/G", Rule.DENSE),
    _slot("attn.wo_b.weight", "attn_output_b.weight", "E GRo", Rule.DENSE),
    _slot("attn.attn_sink", "attn_sinks.weight", "H", Rule.VECTOR),
    _slot("hc_attn_fn", "hc_attn_fn.weight", "M CE", Rule.KEPT),
    _slot("hc_attn_base", "hc_attn_base.weight", "M", Rule.VECTOR),
    _slot("hc_attn_scale", "hc_attn_scale.weight", "3", Rule.VECTOR),
    _slot("hc_ffn_fn", "hc_ffn_fn.weight", "M CE", Rule.KEPT),
    _slot("hc_ffn_base", "hc_ffn_base.weight", "M", Rule.VECTOR),
    _slot("hc_ffn_scale", "hc_ffn_scale.weight", "3", Rule.VECTOR),
    _slot("ffn.gate.weight", "ffn_gate_inp.weight", "X E", Rule.KEPT),
    _slot("ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight", "Fs E", Rule.DENSE),
    _slot("ffn.shared_experts.w2.weight", "ffn_down_shexp.weight", "E Fs", Rule.DENSE),
    _slot("ffn.shared_experts.w3.weight", "ffn_up_shexp.weight", "Fs E", Rule.DENSE),
    # {e} runs over the routed experts, which are stacked into one tensor.
    _slot("ffn.experts.{e}.w1.weight", "ffn_gate_exps.weight", "F E", Rule.EXPERTS),
    _slot("ffn.experts.{e}.w2.weight", "ffn_down_exps.weight", "E F", Rule.EXPERTS),
    _slot("ffn.experts.{e}.w3.weight", "ffn_up_exps.weight", "F E", Rule.EXPERTS),
)
SCORE_ROUTED = (_slot("ffn.gate.bias", "exp_probs_b.bias", "X", Rule.VECTOR),)
HASH_ROUTED = (_slot("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight", "V K", Rule.IDS),)
VISION_BIAS = (_slot("ffn.gate.bias_vl", "exp_probs_b_vl.bias", "X", Rule.VECTOR, optional=True),)
INDEXER = (
    _slot("attn.indexer.wq_b.weight", "indexer.attn_q_b.weight", "JI Rq", Rule.DENSE),
    _slot("attn.indexer.weights_proj.weight", "indexer.proj.weight", "J E", Rule.KEPT),
    _slot("attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight", "2I E", Rule.KEPT),
    _slot("attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight", "2I E", Rule.KEPT),
    _slot("attn.indexer.compressor.ape", "indexer_compressor_ape.weight", "4 2I", Rule.KEPT),
    _slot("attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight", "I", Rule.VECTOR),
)
DSPARK_FIRST = (
    _slot("main_proj.weight", "fc.weight", "E TE", Rule.DENSE),
    _slot("main_norm.weight", "enc.output_norm.weight", "E", Rule.VECTOR),
)
DSPARK_LAST = (
    _slot("norm.weight", "output_norm.weight", "E", Rule.VECTOR),
    *HC_HEAD,
    _slot(
        "markov_head.markov_w1.weight",
        "markov_w1.weight",
        "V R",
        Rule.KEPT,
        alias=f"{MARKOV}.markov_w1.weight",
    ),
    _slot(
        "markov_head.markov_w2.weight",
        "markov_w2.weight",
        "V R",
        Rule.KEPT,
        alias=f"{MARKOV}.markov_w2.weight",
    ),
    _slot(
        "confidence_head.proj.weight", "conf_proj.weight", "1 E+R", Rule.KEPT, True, f"{CONFIDENCE}.weight"
    ),
    _slot("confidence_head.proj.bias", "conf_proj.bias", "1", Rule.VECTOR, True, f"{CONFIDENCE}.bias"),
)


# The classic MTP head: the block itself is an ordinary one, after the last layer of the target.
MTP_HEAD = (
    Slot("e_proj.weight", "nextn.eh_proj.weight", ("E", "E"), Rule.DENSE, beside="h_proj.weight"),
    _slot("enorm.weight", "nextn.enorm.weight", "E", Rule.VECTOR),
    _slot("hnorm.weight", "nextn.hnorm.weight", "E", Rule.VECTOR),
    _slot("norm.weight", "nextn.shared_head_norm.weight", "E", Rule.VECTOR),
)


def _compressor(ratio: int) -> tuple[Slot, ...]:
    width = "2D" if ratio == 4 else "D"
    return (
        _slot("attn.compressor.wkv.weight", "attn_compressor_kv.weight", f"{width} E", Rule.KEPT),
        _slot("attn.compressor.wgate.weight", "attn_compressor_gate.weight", f"{width} E", Rule.KEPT),
        _slot("attn.compressor.ape", "attn_compressor_ape.weight", f"{ratio} {width}", Rule.KEPT),
        _slot("attn.compressor.norm.weight", "attn_compressor_norm.weight", "D", Rule.VECTOR),
    )


def target_slots(config: ModelConfig) -> Iterator[tuple[str, str, Slot]]:
    """Yield (source prefix, target prefix, slot) for every tensor of the target model."""
    for slot in ROOT:
        yield "", "", slot
    for layer in range(config.num_hidden_layers):
        ratio = config.compress_ratios[layer]
        routing = HASH_ROUTED if layer < config.num_hash_layers else SCORE_ROUTED
        slots: tuple[Slot, ...] = BLOCK + routing + VISION_BIAS
        slots += _compressor(ratio) if ratio else ()
        slots += INDEXER if ratio == 4 else ()
        for slot in slots:
            yield f"layers.{layer}.", f"blk.{layer}.", slot


def drafter_slots(stages: int) -> Iterator[tuple[str, str, Slot]]:
    """Yield (source prefix, target prefix, slot) for each tensor of a DSpark drafter of `stages` blocks."""
    for slot in DSPARK_FIRST:
        yield "mtp.0.", "", slot
    for slot in DSPARK_LAST:
        yield f"mtp.{stages - 1}.", "", slot
    for stage in range(stages):
        for slot in BLOCK + SCORE_ROUTED:
            yield f"mtp.{stage}.", f"blk.{stage}.", slot


def mtp_slots(config: ModelConfig) -> Iterator[tuple[str, str, Slot]]:
    """Yield (source prefix, target prefix, slot) for each tensor of a file with the MTP head alone."""
    for slot in ROOT:
        yield "mtp.0." if slot in HC_HEAD else "", "", slot
    for slot in BLOCK + SCORE_ROUTED + MTP_HEAD:
        yield "mtp.0.", f"blk.{config.num_hidden_layers}.", slot


def shape_of(slot: Slot, config: ModelConfig) -> tuple[int, ...]:
    """Return a slot's shape for one model, rows first; one expert's shape for a stack."""
    extents = config.extents
    if config.dspark is not None:
        extents["R"] = config.dspark.markov_rank
        extents["TE"] = len(config.dspark.target_layers) * config.hidden_size
        extents["E+R"] = config.hidden_size + config.dspark.markov_rank
    return tuple(extents[letter] for letter in slot.shape)
