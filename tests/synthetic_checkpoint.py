"""Random small DeepSeek-V4 checkpoints in the original names and formats, made without the code under test.

Names and shapes are spelled out here a second time on purpose: the converter's tables must agree with them.
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pylucebox.core.paths import PACKAGE_DIR

TINY_MODEL = PACKAGE_DIR / "data/tiny-ds4"
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
VOCABULARY = 320

# Every kind of layer, one MTP block, a partial FP8 block (wkv: 64 x 256).
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 4,
    "moe_intermediate_size": 256,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_hash_layers": 3,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "max_position_embeddings": 65536,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "sliding_window": 64,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 32,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "swiglu_limit": 2.0,
    "rms_norm_eps": 1e-06,
    "num_nextn_predict_layers": 1,
    "expert_dtype": "fp4",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
# The same kinds of layer in a tenth of the size, for the many cases that only have to fail.
SMALL = {
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4],
    "num_hash_layers": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "q_lora_rank": 64,
}
DSPARK = {
    "dspark_block_size": 5,
    "dspark_markov_rank": 64,
    "dspark_noise_token_id": 300,
    "dspark_target_layer_ids": [1, 2, 3],
}


@dataclass
class Stored:
    """One tensor as it lies in a file: dtype name, shape in the header, raw little-endian data."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass
class Maker:
    """Fills a dictionary of tensors for one configuration."""

    config: dict[str, Any]
    seed: int = 0
    expert_dtype: str = "fp4"
    tensors: dict[str, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def f32(self, name: str, *shape: int) -> None:
        values = self.random.standard_normal(shape).astype("<f4")
        self.tensors[name] = Stored("F32", shape, values.tobytes())

    def bf16(self, name: str, *shape: int) -> None:
        values = (self.random.standard_normal(shape) * 0.05).astype("<f4")
        codes = (values.view("<u4") >> 16).astype("<u2")
        self.tensors[name] = Stored("BF16", shape, codes.tobytes())

    def norm(self, name: str, width: int) -> None:
        values = (1 + 0.1 * self.random.standard_normal(width)).astype("<f4")
        self.tensors[name] = Stored("BF16", (width,), (values.view("<u4") >> 16).astype("<u2").tobytes())

    def fp8(self, name: str, rows: int, columns: int) -> None:
        # Every code but the two that are not numbers; scales around 2^-8.
        codes = self.random.integers(0, 254, (rows, columns)).astype(np.uint8)
        codes[codes >= 127] += 1
        scales = self.random.integers(116, 122, (-(-rows // 128), -(-columns // 128))).astype(np.uint8)
        self.tensors[name + ".weight"] = Stored("F8_E4M3", codes.shape, codes.tobytes())
        self.tensors[name + ".scale"] = Stored("F8_E8M0", scales.shape, scales.tobytes())

    def fp4(self, name: str, rows: int, columns: int) -> None:
        packed = self.random.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
        scales = self.random.integers(118, 124, (rows, columns // 32)).astype(np.uint8)
        self.tensors[name + ".weight"] = Stored("I8", packed.shape, packed.tobytes())
        self.tensors[name + ".scale"] = Stored("F8_E8M0", scales.shape, scales.tobytes())

    def expert(self, name: str, rows: int, columns: int) -> None:
        if self.expert_dtype == "bf16":
            self.bf16(name + ".weight", rows, columns)
        else:
            {"fp4": self.fp4, "fp8": self.fp8}[self.expert_dtype](name, rows, columns)

    def block(self, prefix: str, ratio: int, hashed: bool) -> None:
        c = self.config
        hidden, head, heads = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
        rank, wide = c["q_lora_rank"], c["o_groups"] * c["o_lora_rank"]
        self.norm(prefix + "attn_norm.weight", hidden)
        self.norm(prefix + "ffn_norm.weight", hidden)
        self.fp8(prefix + "attn.wq_a", rank, hidden)
        self.norm(prefix + "attn.q_norm.weight", rank)
        self.fp8(prefix + "attn.wq_b", heads * head, rank)
        self.fp8(prefix + "attn.wkv", head, hidden)
        self.norm(prefix + "attn.kv_norm.weight", head)
        self.fp8(prefix + "attn.wo_a", wide, heads * head // c["o_groups"])
        self.fp8(prefix + "attn.wo_b", hidden, wide)
        self.f32(prefix + "attn.attn_sink", heads)
        for part in ("attn", "ffn"):
            self.f32(f"{prefix}hc_{part}_fn", 24, 4 * hidden)
            self.f32(f"{prefix}hc_{part}_base", 24)
            self.f32(f"{prefix}hc_{part}_scale", 3)
        if ratio:
            self.compressor(prefix + "attn.compressor.", ratio, head, hidden)
        if ratio == 4:
            self.fp8(prefix + "attn.indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], rank)
            self.bf16(prefix + "attn.indexer.weights_proj.weight", c["index_n_heads"], hidden)
            self.compressor(prefix + "attn.indexer.compressor.", 4, c["index_head_dim"], hidden)
        self.moe(prefix + "ffn.", hashed)

    def compressor(self, prefix: str, ratio: int, width: int, hidden: int) -> None:
        wide = 2 * width if ratio == 4 else width
        self.bf16(prefix + "wkv.weight", wide, hidden)
        self.bf16(prefix + "wgate.weight", wide, hidden)
        self.f32(prefix + "ape", ratio, wide)
        self.norm(prefix + "norm.weight", width)

    def moe(self, prefix: str, hashed: bool) -> None:
        c = self.config
        hidden, width, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.bf16(prefix + "gate.weight", experts, hidden)
        if hashed:
            order = np.argsort(self.random.random((c["vocab_size"], experts)), axis=1)
            ids = np.ascontiguousarray(order[:, : c["num_experts_per_tok"]]).astype("<i8")
            self.tensors[prefix + "gate.tid2eid"] = Stored("I64", ids.shape, ids.tobytes())
        else:
            self.f32(prefix + "gate.bias", experts)
        for name, rows, columns in (("w1", width, hidden), ("w2", hidden, width), ("w3", width, hidden)):
            self.fp8(f"{prefix}shared_experts.{name}", rows, columns)
            for expert in range(experts):
                self.expert(f"{prefix}experts.{expert}.{name}", rows, columns)

    def head(self, prefix: str) -> None:
        self.f32(prefix + "hc_head_fn", 4, 4 * self.config["hidden_size"])
        self.f32(prefix + "hc_head_base", 4)
        self.f32(prefix + "hc_head_scale", 1)

    def target(self) -> None:
        c = self.config
        self.bf16("embed.weight", c["vocab_size"], c["hidden_size"])
        self.bf16("head.weight", c["vocab_size"], c["hidden_size"])
        self.norm("norm.weight", c["hidden_size"])
        self.head("")
        for layer in range(c["num_hidden_layers"]):
            self.block(f"layers.{layer}.", c["compress_ratios"][layer], layer < c["num_hash_layers"])

    def mtp(self) -> None:
        hidden = self.config["hidden_size"]
        self.block("mtp.0.", 0, False)
        for name in ("e_proj", "h_proj"):
            self.fp8("mtp.0." + name, hidden, hidden)
        for name in ("enorm", "hnorm", "norm"):
            self.norm(f"mtp.0.{name}.weight", hidden)
        self.head("mtp.0.")

    def dspark(self, stages: int = 3) -> None:
        c = self.config
        hidden, rank = c["hidden_size"], c["dspark_markov_rank"]
        for stage in range(stages):
            self.block(f"mtp.{stage}.", 0, False)
        self.fp8("mtp.0.main_proj", hidden, len(c["dspark_target_layer_ids"]) * hidden)
        self.norm("mtp.0.main_norm.weight", hidden)
        last = f"mtp.{stages - 1}."
        self.norm(last + "norm.weight", hidden)
        self.head(last)
        self.bf16(last + "markov_head.markov_w1.weight", c["vocab_size"], rank)
        self.bf16(last + "markov_head.markov_w2.weight", c["vocab_size"], rank)
        self.bf16(last + "confidence_head.proj.weight", 1, hidden + rank)


def make_tensors(
    config: dict[str, Any], draft: str | None = "mtp", expert_dtype: str = "fp4"
) -> dict[str, Stored]:
    """Return all tensors of a checkpoint with no drafter, a classic "mtp" block or three "dspark" stages."""
    maker = Maker(config, expert_dtype=expert_dtype)
    maker.target()
    if draft == "mtp":
        maker.mtp()
    elif draft == "dspark":
        maker.dspark()
    return maker.tensors


def small_config(**changes: Any) -> dict[str, Any]:
    """Return the small configuration with DSpark keys and the given changes."""
    return {**CONFIG, **SMALL, **DSPARK, **changes}


def save_safetensors(path: Path, tensors: dict[str, Stored]) -> None:
    """Write one safetensors file, tensors in the given order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.writelines(tensor.data for tensor in tensors.values())


def save_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, Stored], shards: int = 3
) -> Path:
    """Write a whole checkpoint folder and return it. Weights and scales may fall into different shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder / "tokenizer.json")
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[shard::shards]
        save_safetensors(folder / file, {name: tensors[name] for name in mine})
        weight_map.update(dict.fromkeys(mine, file))
    total = sum(len(t.data) for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tokenizer(path: Path) -> None:
    """Write a byte-level tokenizer with DeepSeek-V4's pre-tokenizer and special tokens, VOCABULARY ids."""
    tokenizer = json.loads((TINY_MODEL / "tokenizer.json").read_text())
    special = [t for t in tokenizer["added_tokens"] if t["id"] < 3]
    chat = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜")
    others = [t for t in tokenizer["added_tokens"] if t["content"] in chat]
    letters = list(_byte_letters())
    vocab = {letter: index for index, letter in enumerate(letters, start=3)}
    merges = [m for m in tokenizer["model"]["merges"] if m[0] in vocab and m[1] in vocab][:20]
    for merge in merges:
        vocab.setdefault("".join(merge), len(vocab) + 3)
    for token in others:
        token["id"] = VOCABULARY - len(others) + others.index(token)
    tokenizer["model"] = {**tokenizer["model"], "vocab": vocab, "merges": merges}
    tokenizer["added_tokens"] = special + others
    path.write_text(json.dumps(tokenizer))


def _byte_letters() -> Iterable[str]:
    """Yield the 256 characters that stand for bytes in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = 0
    for byte in range(256):
        if byte in plain:
            yield chr(byte)
        else:
            yield chr(256 + extra)
            extra += 1


def values_of(tensors: dict[str, Stored], name: str) -> NDArray[np.float64]:
    """Decode one stored tensor, value by value rule, in double precision: the reference of the tests."""
    stored = tensors[name]
    raw = np.frombuffer(stored.data, np.uint8)
    if stored.dtype == "F32":
        return raw.view("<f4").reshape(stored.shape).astype(np.float64)
    if stored.dtype == "BF16":
        wide = np.zeros((raw.size // 2, 2), "<u2")
        wide[:, 1] = raw.view("<u2")
        return wide.view("<f4").reshape(stored.shape).astype(np.float64)
    if stored.dtype == "I64":
        return raw.view("<i8").reshape(stored.shape).astype(np.float64)
    scale = tensors[name.removesuffix(".weight") + ".scale"]
    exponents = np.frombuffer(scale.data, np.uint8).reshape(scale.shape).astype(int) - 127
    if stored.dtype == "I8":
        return _fp4_values(raw.reshape(stored.shape), exponents)
    codes = raw.reshape(stored.shape).astype(int)
    mantissa, exponent = codes % 8, codes // 8 % 16
    size = np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0**-6)
    rows, columns = np.indices(codes.shape) // 128
    return np.where(codes >= 128, -size, size) * 2.0 ** exponents[rows, columns]


def _fp4_values(packed: NDArray[np.uint8], exponents: NDArray[Any]) -> NDArray[np.float64]:
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = np.array(levels + [-x for x in levels])
    codes = np.stack([packed % 16, packed // 16], axis=2).reshape(len(packed), -1)
    return table[codes] * 2.0 ** np.repeat(exponents, 32, axis=1)
