"""What the tensors of a model are for and how they are stored: counts, bytes, bits a weight by type, role."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.shards import find_shards

# Role of a tensor by its name, the first that matches; names of GGUF files and of checkpoints.
ROLES = (
    ("embedding", r"^(token_embd|embed)\."),
    ("output", r"^(output|head|markov_w\d|conf_proj)\.|markov_head|confidence_head"),
    ("routed experts", r"_exps\.|ffn\.experts\."),
    ("shared expert", r"_shexp\.|shared_experts"),
    ("router", r"ffn_gate_inp|exp_probs_b|tid2eid|ffn\.gate\."),
    ("features", r"^fc\.|main_proj"),
    ("indexer", r"indexer"),
    ("compressors", r"compressor"),
    ("attention", r"attn_(q|k|v|kv|output|sinks)|attn\.(w|attn_sink)"),
    ("hyper-connections", r"(^|\.|_)hc_"),
    ("norms", r"norm"),
)
OTHER_ROLE = "other"


@dataclass(frozen=True)
class Share:
    """A part of a model's tensors."""

    tensors: int = 0
    values: int = 0
    size_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size_bytes / self.values if self.values else 0.0

    def __add__(self, other: "Share") -> "Share":
        return Share(
            self.tensors + other.tensors, self.values + other.values, self.size_bytes + other.size_bytes
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "values": self.values,
            "bytes": self.size_bytes,
            "bits_per_weight": round(self.bits_per_weight, 4),
        }


@dataclass(frozen=True)
class TensorTable:
    """The tensors of a model. shares: by (role, type), largest first."""

    files: tuple[Path, ...]
    shares: Mapping[tuple[str, str], Share]

    @property
    def total(self) -> Share:
        return sum(self.shares.values(), Share())

    def by_type(self) -> dict[str, Share]:
        return self._grouped(1)

    def by_role(self) -> dict[str, Share]:
        return self._grouped(0)

    def _grouped(self, part: int) -> dict[str, Share]:
        grouped: dict[str, Share] = {}
        for key, share in self.shares.items():
            grouped[key[part]] = grouped.get(key[part], Share()) + share
        return dict(sorted(grouped.items(), key=lambda item: -item[1].size_bytes))


def role_of(name: str) -> str:
    """Return what the tensor of this name is for."""
    return next((role for role, pattern in ROLES if re.search(pattern, name)), OTHER_ROLE)


def read_gguf_table(path: Path) -> TensorTable:
    """Read the headers of a GGUF model and its shards. Raises RequestError for one that is damaged."""
    files = find_shards(path)
    tensors = (tensor for file in files for tensor in read_header(file).tensors)
    return _table(files, ((t.name, t.type.name, prod(t.shape), t.size_bytes) for t in tensors))


def read_checkpoint_table(folder: Path) -> TensorTable:
    """Read the headers of a checkpoint folder. Raises RequestError naming file, field and remedy."""
    checkpoint = open_checkpoint(folder)
    rows = ((t.name, t.dtype, prod(t.shape), t.size_bytes) for t in checkpoint.tensors.values())
    return _table(checkpoint.shards, rows)


def _table(files: tuple[Path, ...], rows: Iterable[tuple[str, str, int, int]]) -> TensorTable:
    shares: dict[tuple[str, str], Share] = {}
    for name, kind, values, size_bytes in rows:
        key = (role_of(name), kind)
        shares[key] = shares.get(key, Share()) + Share(1, values, size_bytes)
    return TensorTable(files, dict(sorted(shares.items(), key=lambda item: -item[1].size_bytes)))
