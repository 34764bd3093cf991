"""A checkpoint folder: config.json, the index and the headers of all shards, checked against each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylucebox.core.errors import RequestError
from pylucebox.formats.ds4_config import ModelConfig, parse_config
from pylucebox.formats.safetensors_reader import StoredTensor, read_json, read_safetensors_header

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LISTED = 10  # names shown in one message
FETCH_ALL = "fetch the whole checkpoint again"
# Names that appear when transformers saves the model again under its run-time names.
RESAVED = ("model.", "self_attn.", ".mlp.", "lm_head.", "weight_scale_inv")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. tensors: by name, of all shards; notes: oddities that stop nothing."""

    folder: Path
    config: ModelConfig
    generation: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    shards: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def draft_kind(self) -> str | None:
        """What the `mtp.*` tensors are: "dspark", "mtp" or None."""
        if "mtp.0.main_proj.weight" in self.tensors:
            return "dspark"
        return "mtp" if "mtp.0.e_proj.weight" in self.tensors else None

    @property
    def draft_stages(self) -> int:
        """How many `mtp.N` blocks there are."""
        return len({name.split(".", 2)[1] for name in self.tensors if name.startswith("mtp.")})


def open_checkpoint(folder: Path, aux_heads: Path | None = None) -> Checkpoint:
    """Open the checkpoint in `folder` from its headers only.

    aux_heads: a safetensors file outside the index with the drafter's Markov and confidence heads.
    Raises RequestError naming the file, the field and the remedy.
    """
    if folder.is_file():
        raise RequestError(
            f"{folder}: is a file, not a checkpoint folder", hint="give the folder with config.json"
        )
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such folder", hint="give the folder with config.json")
    config = parse_config(_read_json(folder / CONFIG), folder / CONFIG)
    generation_path = folder / GENERATION_CONFIG
    generation = _read_json(generation_path) if generation_path.is_file() else {}
    notes: list[str] = []
    index = _read_index(folder)
    tensors = _read_shards(folder, index.weight_map)
    if index.total_bytes is not None and index.total_bytes != (
        found := sum(t.size_bytes for t in tensors.values())
    ):
        notes.append(f"{INDEX}: total_size says {index.total_bytes}, the shards hold {found} bytes")
    for head in read_safetensors_header(aux_heads) if aux_heads else ():
        if head.name in tensors:
            raise RequestError(
                f"{aux_heads}: tensor {head.name} is in the checkpoint too", hint="leave --aux-heads out"
            )
        tensors[head.name] = head
    _refuse_resaved(folder, tensors)
    shards = tuple(sorted({t.path for t in tensors.values()}))
    return Checkpoint(folder, config, generation, tensors, shards, tuple(notes))


@dataclass(frozen=True)
class _Index:
    weight_map: dict[str, str]  # tensor name -> shard file name
    total_bytes: int | None


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path, hint="give the folder of a whole checkpoint")


def _read_index(folder: Path) -> _Index:
    path = folder / INDEX
    if not path.is_file():
        if not (folder / SINGLE).is_file():
            raise RequestError(f"{folder}: has neither {INDEX} nor {SINGLE}", hint=FETCH_ALL)
        return _Index({t.name: SINGLE for t in read_safetensors_header(folder / SINGLE)}, None)
    raw = _read_json(path)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise RequestError(f"{path}: weight_map is missing or empty", hint=FETCH_ALL)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise RequestError(
                f"{path}: weight_map of {name} is {shard!r}, not the name of a shard in this folder",
                hint=FETCH_ALL,
            )
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return _Index(weight_map, total if type(total) is int else None)


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    wanted = sorted(set(weight_map.values()))
    missing = [s for s in wanted if not (folder / s).is_file()]
    if missing:
        raise RequestError(
            f"{folder}: {len(missing)} of {len(wanted)} shards are missing: {_some(missing)}", hint=FETCH_ALL
        )
    extra = sorted({p.name for p in folder.glob("*.safetensors")} - set(wanted))
    if extra:
        raise RequestError(
            f"{folder}: {len(extra)} shards are not in the index: {_some(extra)}",
            hint="remove them, or fetch the index that belongs to them",
        )
    tensors: dict[str, StoredTensor] = {}
    for shard in wanted:
        for tensor in read_safetensors_header(folder / shard):
            if tensor.name in tensors:
                raise RequestError(
                    f"{folder / shard}: tensor {tensor.name} is in another shard too", hint=FETCH_ALL
                )
            if weight_map.get(tensor.name) != shard:
                said = weight_map.get(tensor.name, "nowhere")
                raise RequestError(
                    f"{folder / shard}: holds {tensor.name}, which the index places in {said}", hint=FETCH_ALL
                )
            tensors[tensor.name] = tensor
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise RequestError(
            f"{folder}: {len(absent)} tensors of the index are in no shard: {_some(absent)}", hint=FETCH_ALL
        )
    return tensors


def _refuse_resaved(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    for name in tensors:
        if name.startswith(RESAVED[0]) or any(mark in name for mark in RESAVED[1:]):
            raise RequestError(
                f"{folder}: tensor {name} has a name of the transformers library, not of DeepSeek's release",
                hint="convert the checkpoint as DeepSeek published it; a re-saved copy has lost tensors",
            )


def _some(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
