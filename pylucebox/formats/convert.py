"""Checkpoint to GGUF: plan from headers, then stream tensor by tensor into NAME.partial, verify, rename."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.formats import ds4_keys
from pylucebox.formats.checkpoint import Checkpoint, open_checkpoint
from pylucebox.formats.encode_parts import BYTES_PER_VALUE, Rows, encode_part_rows, row_values
from pylucebox.formats.encoding import Encoding
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import KeyValue, TensorInfo, TensorType, align, build_header
from pylucebox.formats.imatrix import Importance
from pylucebox.formats.ledger import Ledger, OutputTensor, Role, account
from pylucebox.formats.output_file import check_disk, free_disk, partial_file
from pylucebox.formats.recipes import Recipe, find_recipe
from pylucebox.formats.tokenizer import TOKENIZER, tokenizer_keys

Progress = Callable[[int, int], None]

DEFAULT_CHUNK_BYTES = 128 << 20
MIN_CHUNK_BYTES = 4 << 20
# Memory of the plan itself, measured: names, shapes and parts a tensor; parsed JSON a tokenizer byte.
BYTES_PER_TENSOR = 1 << 10
TOKENIZER_FACTOR = 16


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the output file and what it is made of."""

    source: OutputTensor
    info: TensorInfo

    @property
    def type(self) -> TensorType:
        return self.info.type


@dataclass(frozen=True)
class ConversionPlan:
    """Everything decided before the first byte is written.

    size_bytes: exact size of the file. peak_memory_bytes: bound on what the conversion allocates.
    chunk_values: values decoded at a time.
    """

    checkpoint: Checkpoint
    role: Role
    recipe: Recipe
    encoding: Encoding
    out: Path
    header: bytes
    tensors: tuple[PlannedTensor, ...]
    ledger: Ledger
    size_bytes: int
    free_disk_bytes: int
    peak_memory_bytes: int
    chunk_values: int
    notes: tuple[str, ...]

    @property
    def types(self) -> dict[str, tuple[int, int]]:
        """Type name -> (tensors, bytes)."""
        count: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for tensor in self.tensors:
            count[tensor.type.name] += 1
            size[tensor.type.name] += tensor.info.size_bytes
        return {name: (count[name], size[name]) for name in sorted(count, key=lambda n: -size[n])}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        return {
            "source": str(self.checkpoint.folder),
            "role": self.role.value,
            "to": self.recipe.name,
            "out": str(self.out),
            "size_bytes": self.size_bytes,
            "free_disk_bytes": self.free_disk_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "types": {n: {"tensors": c, "bytes": s} for n, (c, s) in self.types.items()},
            "ledger": self.ledger.as_dict(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class ConversionResult:
    """A finished file. warnings: oddities found while reading the data."""

    out: Path
    size_bytes: int
    tensors: int
    warnings: tuple[str, ...]


def convert(
    source: Path, recipe: str, out: Path, role: Role = Role.TARGET, progress: Progress | None = None
) -> ConversionResult:
    """Plan and write in one call; see plan_conversion and write_conversion."""
    return write_conversion(plan_conversion(open_checkpoint(source), role, recipe, out), progress)


def plan_conversion(
    checkpoint: Checkpoint,
    role: Role,
    recipe_name: str,
    out: Path,
    *,
    name: str | None = None,
    max_memory_bytes: int | None = None,
    encoding: Encoding | None = None,
    is_pure: bool = False,
) -> ConversionPlan:
    """Decide types, sizes and memory for one output file. Raises RequestError for what cannot be met.

    name: the model's, by default the folder's. max_memory_bytes: bound on allocations.
    """
    recipe, encoding = find_recipe(recipe_name, is_pure), encoding or Encoding()
    if out.resolve() in {path.resolve() for path in checkpoint.shards}:
        raise RequestError(f"{out}: is part of the checkpoint", hint="write to another file")
    ledger = account(checkpoint, role)
    layers, experts = _layers(checkpoint, role), checkpoint.config.n_routed_experts
    types = encoding.choose_types(ledger.outputs, recipe, layers, experts)
    tensors = _place(ledger.outputs, types)
    title = name or checkpoint.folder.resolve().name
    keys = _keys(checkpoint, role, recipe, ledger, title) + encoding.keys(types)
    header = build_header(_architecture(role), keys, [t.info for t in tensors])
    fixed = _fixed_memory(checkpoint, header) + encoding.memory_bytes
    chunk_bytes = _chunk_bytes(fixed, max_memory_bytes, tensors)
    return ConversionPlan(
        checkpoint=checkpoint,
        role=role,
        recipe=recipe,
        encoding=encoding,
        out=out,
        header=header,
        tensors=tensors,
        ledger=ledger,
        size_bytes=len(header) + align(tensors[-1].info.offset + tensors[-1].info.size_bytes),
        free_disk_bytes=free_disk(out),
        peak_memory_bytes=fixed + chunk_bytes,
        chunk_values=chunk_bytes // BYTES_PER_VALUE,
        notes=(*checkpoint.notes, *encoding.notes(types)),
    )


def write_conversion(plan: ConversionPlan, progress: Progress | None = None) -> ConversionResult:
    """Write the planned file as NAME.partial, read it back, rename it. A failure leaves nothing behind.

    progress: called with (bytes written, bytes in all). Raises MissingError for too little disk, RequestError
    for values that are not numbers, IntegrityError when the file does not read back as planned.
    """
    check_disk([plan])
    warnings: list[str] = []
    with partial_file(plan.out) as (partial, stream):
        _write_all(plan, stream, progress, warnings)
        stream.flush()
        os.fsync(stream.fileno())
        _verify(plan, partial)
    return ConversionResult(plan.out, plan.size_bytes, len(plan.tensors), tuple(warnings))


def _architecture(role: Role) -> str:
    return ds4_keys.DRAFTER_ARCHITECTURE if role is Role.DRAFTER else ds4_keys.TARGET_ARCHITECTURE


def _layers(checkpoint: Checkpoint, role: Role) -> int:
    """Return the blocks of the file's model, as its block_count says."""
    if role is Role.DRAFTER:
        return checkpoint.draft_stages
    return checkpoint.config.num_hidden_layers + (role is Role.MTP)


def _place(outputs: tuple[OutputTensor, ...], types: dict[str, TensorType]) -> tuple[PlannedTensor, ...]:
    offset = 0
    placed: list[PlannedTensor] = []
    for output in outputs:
        kind = types[output.name]
        try:
            row_bytes = kind.row_bytes(output.shape[-1])
        except ValueError as bad:
            raise RequestError(
                f"tensor {output.name} cannot be {kind.name}: {bad}",
                hint="choose --to bf16, which fits every shape",
            ) from bad
        size_bytes = output.values // output.shape[-1] * row_bytes
        placed.append(PlannedTensor(output, TensorInfo(output.name, output.shape, kind, size_bytes, offset)))
        offset += align(size_bytes)
    return tuple(placed)


def _keys(checkpoint: Checkpoint, role: Role, recipe: Recipe, ledger: Ledger, name: str) -> list[KeyValue]:
    config = checkpoint.config
    mask = None
    if role is not Role.DRAFTER:
        own = ds4_keys.target_keys(config, 1 if role is Role.MTP else 0)
    else:
        assert config.dspark is not None
        has_confidence = any(o.name == "conf_proj.weight" for o in ledger.outputs)
        own = ds4_keys.drafter_keys(config, checkpoint.draft_stages, has_confidence)
        mask = config.dspark.noise_token_id
        name += " DSpark"
    general = ds4_keys.general_keys(checkpoint, recipe, ledger.outputs, name)
    return [*general, *own, *tokenizer_keys(checkpoint.folder, config, mask)]


def _fixed_memory(checkpoint: Checkpoint, header: bytes) -> int:
    tokenizer_bytes = (checkpoint.folder / TOKENIZER).stat().st_size
    return BYTES_PER_TENSOR * len(checkpoint.tensors) + TOKENIZER_FACTOR * tokenizer_bytes + 3 * len(header)


def _chunk_bytes(fixed: int, max_memory_bytes: int | None, tensors: tuple[PlannedTensor, ...]) -> int:
    widest = max(row_values(t.source) for t in tensors) * BYTES_PER_VALUE
    least = max(MIN_CHUNK_BYTES, widest)
    if max_memory_bytes is None:
        return max(DEFAULT_CHUNK_BYTES, least)
    if max_memory_bytes < fixed + least:
        raise RequestError(
            f"--max-memory {max_memory_bytes} bytes is too little: this checkpoint needs {fixed + least}",
            hint=f"give at least {-(-(fixed + least) >> 20)} MiB",
        )
    return min(DEFAULT_CHUNK_BYTES, max_memory_bytes - fixed)


def _write_all(
    plan: ConversionPlan, stream: BinaryIO, progress: Progress | None, warnings: list[str]
) -> None:
    stream.write(plan.header)
    done = len(plan.header)
    for tensor in plan.tensors:
        for chunk in _chunks(plan, tensor, warnings):
            stream.write(chunk.data)
            done += chunk.nbytes
            if progress:
                progress(done, plan.size_bytes)
        padding = align(tensor.info.size_bytes) - tensor.info.size_bytes
        stream.write(bytes(padding))
        done += padding


def _chunks(plan: ConversionPlan, tensor: PlannedTensor, warnings: list[str]) -> Iterator[NDArray[np.uint8]]:
    parts = tensor.source.parts
    importance = plan.encoding.importance_of(tensor.source, tensor.type)
    first = 0
    for group in [parts] if tensor.source.beside else [(part,) for part in parts]:
        count = group[0].weight.rows
        step = max(1, plan.chunk_values // sum(part.columns for part in group))
        for start in range(0, count, step):
            rows = Rows(group, start, min(count, start + step), first + start)
            yield _encode(plan, rows, tensor, importance, warnings)
        first += count


def _encode(
    plan: ConversionPlan,
    rows: Rows,
    tensor: PlannedTensor,
    importance: Importance | None,
    warnings: list[str],
) -> NDArray[np.uint8]:
    try:
        return encode_part_rows(
            rows, tensor, plan.checkpoint.config, plan.encoding.encoder, importance, warnings
        )
    except ValueError as bad:
        weight = rows.parts[0].weight
        raise RequestError(f"{weight.path}: tensor {weight.name} {bad}", hint="fetch the file again") from bad


def _verify(plan: ConversionPlan, partial: Path) -> None:
    header = read_header(partial)
    wanted = tuple(t.info for t in plan.tensors)
    if (
        header.tensors != wanted
        or header.data_offset != len(plan.header)
        or header.file_bytes != plan.size_bytes
    ):
        raise IntegrityError(
            f"{partial}: does not read back as it was planned",
            hint="check the disk, then run the command again",
        )
