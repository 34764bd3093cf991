"""Write a small DeepSeek-V4 GGUF with random weights: `python tools/make_fixture.py --variant A --out F`.

The variants share their widths and differ in one thing each (VARIANTS): they are what tests load when no real
model may be needed. Same arguments and seed, same bytes. Keys and tensors are those of upstream's loader,
which refuses a file with one key of another number type, one tensor too few or one too many.
"""

import argparse
import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pylucebox.formats.ds4_config import ModelConfig, parse_config
from pylucebox.formats.ds4_keys import TARGET_ARCHITECTURE, target_keys
from pylucebox.formats.ds4_tensors import Rule, shape_of, target_slots
from pylucebox.formats.encoders import ENCODERS, encode_rows
from pylucebox.formats.gguf_types import (
    TYPES,
    KeyValue,
    TensorInfo,
    TensorType,
    align,
    build_header,
    i32_array,
    string,
    string_array,
)
from pylucebox.formats.rocmfpx import Codec, RocmFp2
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY, Dialect

TRUE_RATIOS = [0, 0, *(4 if i % 2 == 0 else 128 for i in range(2, 43))]

# What the variants share, as a config.json. head_dim must differ from index_head_dim, or upstream divides by
# zero; index_head_dim must be a multiple of 64 for the Hadamard rotation and 128 for the CUDA kernel; many
# indexer heads keep its scores free of exact ties.
COMMON: Mapping[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "hidden_size": 128,
    "vocab_size": 128,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128],
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 64,
    "o_groups": 8,
    "o_lora_rank": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_hash_layers": 3,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 100_000,
    "sliding_window": 32,
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1 << 20,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "A": {},
    "B": {"index_topk": 8, "swiglu_limit": 0.5},  # the indexer drops blocks, the clamp acts
    "C": {"head_dim": 512, "qk_rope_head_dim": 64},  # heads as wide as the real model's
    "D": {"compress_ratios": TRUE_RATIOS},  # all 43 layers, for counting nodes and launches
    "E": {"hidden_size": 256, "moe_intermediate_size": 256},  # rows that every block type divides
}


@dataclass(frozen=True)
class Types:
    """Tensor types by class of weight, as lower-case ggml names. Everything else is F32."""

    dense: str = "f32"
    gate_up: str = "f32"
    down: str = "f32"


VARIANT_TYPES = {"E": Types(gate_up="q2_0_rocmfp2", down="q3_0_rocmfpx")}


@dataclass(frozen=True)
class Tensor:
    """One tensor to write. shape: rows first. kind: which distribution its values have, see values_of."""

    name: str
    shape: tuple[int, ...]
    kind: str
    type: TensorType


def variant(name: str) -> ModelConfig:
    """The configuration of one variant."""
    raw = {**COMMON, **VARIANTS[name]}
    return parse_config({**raw, "num_hidden_layers": len(raw["compress_ratios"])}, Path(f"variant {name}"))


def all_tensors(config: ModelConfig, types: Types) -> list[Tensor]:
    """Every tensor of the file, in the order written."""
    tensors = []
    for _, prefix, slot in target_slots(config):
        if slot.optional:
            continue
        shape = shape_of(slot, config)
        if slot.rule is Rule.EXPERTS:
            shape = (config.n_routed_experts, *shape)
        stored = stored_type(slot.target, slot.rule, shape[-1], types)
        tensors.append(Tensor(prefix + slot.target, shape, kind_of(slot.target, slot.rule), stored))
    return tensors


def stored_type(name: str, rule: Rule, columns: int, types: Types) -> TensorType:
    """The type of a tensor: F32 where its class may not be less or a row is no whole number of blocks."""
    if rule is Rule.IDS:
        return type_of("i32")
    if rule in (Rule.VECTOR, Rule.KEPT):
        return type_of("f32")
    experts = types.down if "down" in name else types.gate_up
    wanted = type_of(experts if rule is Rule.EXPERTS else types.dense)
    return wanted if columns % wanted.block_values == 0 else type_of("f32")


def kind_of(name: str, rule: Rule) -> str:
    """Which distribution a tensor's values have."""
    if rule is Rule.IDS:
        return "expert ids"
    for part, kind in (("norm", "norm"), ("_scale", "scale"), ("probs_b", "bias"), ("_ape", "half")):
        if part in name:
            return kind
    return "half" if rule is Rule.VECTOR else "matrix"


def values_of(tensor: Tensor, experts: int, seed: int) -> np.ndarray[Any, Any]:
    """Random contents, a function of seed and tensor name alone. float32, or int32 for expert ids."""
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    if tensor.kind == "expert ids":
        rows, used = tensor.shape
        order = np.argsort(rng.random((rows, experts)), axis=1)
        return np.ascontiguousarray(order[:, :used], dtype=np.int32)
    mean, deviation = {
        "matrix": (0.0, tensor.shape[-1] ** -0.5),
        "norm": (1.0, 0.1),
        "half": (0.0, 0.5),
        "bias": (0.0, 0.3),
        "scale": (0.5, 0.1),
    }[tensor.kind]
    return np.asarray(mean + deviation * rng.standard_normal(tensor.shape), dtype=np.float32)


def type_of(name: str) -> TensorType:
    """The type of this lower-case name. Raises ValueError for an unknown one."""
    if name.upper() not in TYPES:
        raise ValueError(f"{name}: no such tensor type")
    return TYPES[name.upper()]


def encode(values: np.ndarray[Any, Any], kind: TensorType) -> bytes:
    """`values` as the bytes of `kind`. Raises ValueError where no encoder in Python exists."""
    rows = values.reshape(-1, values.shape[-1])
    if kind.name == "I32":
        return values.tobytes()
    if kind.id in Codec.by_id:
        return bytes(Codec.by_id[kind.id].encode(rows).tobytes())
    if kind.name not in ENCODERS:
        raise ValueError(f"{kind.name.lower()}: no encoder in Python")
    return bytes(encode_rows(rows, kind).tobytes())


def tokenizer(vocabulary: int) -> list[KeyValue]:
    """Upstream's test tokenizer: text becomes ids by hashing five bytes at a time, an id prints as hex."""
    return [
        string("tokenizer.ggml.model", "test"),
        string_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(vocabulary)]),
        i32_array("tokenizer.ggml.token_type", [1] * vocabulary),
    ]


def write_fixture(path: Path, config: ModelConfig, types: Types, seed: int, name: str) -> None:
    """Write one model to `path`, replacing it whole or not at all."""
    tensors = all_tensors(config, types)
    infos = []
    for t in tensors:
        size_bytes = math.prod(t.shape[:-1]) * t.type.row_bytes(t.shape[-1])
        infos.append(TensorInfo(t.name, t.shape, t.type, size_bytes))
    keys = [string("general.name", name), *target_keys(config), *tokenizer(config.vocab_size)]
    if any(t.type.id == RocmFp2.type_id for t in tensors):
        keys.append(string(DIALECT_KEY, Dialect.A))
    part = path.with_name(path.name + ".partial")
    try:
        with part.open("wb") as out:
            out.write(build_header(TARGET_ARCHITECTURE, keys, infos))
            for tensor, info in zip(tensors, infos, strict=True):
                data = encode(values_of(tensor, config.n_routed_experts, seed), tensor.type)
                out.write(data.ljust(align(info.size_bytes), b"\0"))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="A", help="which model (default: A)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same bytes (default: 1)")
    parser.add_argument("--type", help="type of every matrix that may have one, e.g. f32, bf16, q8_0, mxfp4")
    parser.add_argument("--gate-up", help="type of the routed gate and up experts (default: --type)")
    parser.add_argument("--down", help="type of the routed down experts (default: --type)")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    types = VARIANT_TYPES.get(args.variant, Types())
    if args.type:
        types = Types(args.type, args.type, args.type)
    types = replace(types, gate_up=args.gate_up or types.gate_up, down=args.down or types.down)
    try:
        name = f"random-ds4-{args.variant}-{args.seed}"
        write_fixture(args.out, variant(args.variant), types, args.seed, name)
    except ValueError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"{args.out}: variant {args.variant}, seed {args.seed}, {args.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
