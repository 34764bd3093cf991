"""The ledger: every input tensor is written, merged or skipped for a reason; anything else is an error."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pylucebox.core.errors import RequestError
from pylucebox.formats.checkpoint import LISTED, Checkpoint
from pylucebox.formats.ds4_tensors import (
    CONFIDENCE,
    MARKOV,
    ROOT,
    Rule,
    Slot,
    drafter_slots,
    mtp_slots,
    shape_of,
    target_slots,
)
from pylucebox.formats.number_formats import FP4_GROUP
from pylucebox.formats.safetensors_reader import StoredTensor


class Role(Enum):
    """Which file is made of a checkpoint."""

    TARGET = "target"
    DRAFTER = "drafter"
    MTP = "mtp"


@dataclass(frozen=True, slots=True)
class Part:
    """One stored matrix of an output tensor, with its scales when it is FP8 or packed FP4."""

    weight: StoredTensor
    scale: StoredTensor | None

    @property
    def columns(self) -> int:
        """Values a row, after unpacking."""
        return self.weight.columns * (2 if self.weight.dtype == "I8" else 1)


@dataclass(frozen=True)
class OutputTensor:
    """One tensor to write. shape: rows first.

    Its parts follow each other along the first axis, or, when `beside`, row by row along the last.
    """

    name: str
    shape: tuple[int, ...]
    rule: Rule
    parts: tuple[Part, ...]
    beside: bool = False

    @property
    def stored_dtype(self) -> str:
        return self.parts[0].weight.dtype

    @property
    def values(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True)
class Ledger:
    """Where every input tensor went. skipped: reason -> count."""

    outputs: tuple[OutputTensor, ...]
    inputs: int
    written: int
    merged: int
    skipped: Mapping[str, int]

    def as_dict(self) -> dict[str, object]:
        return {
            "inputs": self.inputs,
            "written": self.written,
            "merged": self.merged,
            "skipped": dict(self.skipped),
            "outputs": len(self.outputs),
        }


# Stored dtypes each rule accepts.
FLOATS = ("F32", "BF16", "F16")
ACCEPTED = {
    Rule.VECTOR: FLOATS,
    Rule.KEPT: FLOATS,
    Rule.EMBEDDING: FLOATS,
    Rule.OUTPUT: FLOATS,
    Rule.DENSE: (*FLOATS, "F8_E4M3"),
    Rule.EXPERTS: (*FLOATS, "F8_E4M3", "I8"),
    Rule.IDS: ("I64", "I32"),
}
SCALED = ("F8_E4M3", "I8")
# Inputs of other files, by exact first name part.
ELSEWHERE = {
    "mtp": "belongs to the drafter file",
    MARKOV: "belongs to the drafter file",
    CONFIDENCE: "belongs to the drafter file",
    "vision": "image part, not in a text model file",
    "aligner": "image part, not in a text model file",
    "image_start": "image part, not in a text model file",
    "image_end": "image part, not in a text model file",
    "image_newline": "image part, not in a text model file",
    "image_pad": "image part, not in a text model file",
}
TARGET_PART = "belongs to the target file"
UNUSED_BIAS = "gate bias of a hash-routed layer, which routes by token id"
IMAGE_ROUTING = "routing of image tokens, which the drafter does not see"


def account(checkpoint: Checkpoint, role: Role) -> Ledger:
    """Assign every tensor of `checkpoint` for the file `role`.

    Raises RequestError when a tensor is missing, has a wrong shape or dtype, lacks its scale, is unknown.
    """
    book = _Book(checkpoint)
    slots = _slots(checkpoint, role)
    outputs = [book.take(source, target, slot) for source, target, slot in slots]
    book.finish_missing()
    _skip(book, checkpoint, role)
    book.finish_unknown()
    return Ledger(
        tuple(o for o in outputs if o is not None),
        len(checkpoint.tensors),
        book.written,
        book.merged,
        dict(book.skipped),
    )


def _slots(checkpoint: Checkpoint, role: Role) -> Iterable[tuple[str, str, Slot]]:
    if role is Role.TARGET:
        return target_slots(checkpoint.config)
    wanted = "dspark" if role is Role.DRAFTER else "mtp"
    if checkpoint.draft_kind != wanted or (role is Role.DRAFTER and checkpoint.config.dspark is None):
        raise RequestError(f"{checkpoint.folder}: {describe_draft(checkpoint)}", hint=_draft_hint(checkpoint))
    return drafter_slots(checkpoint.draft_stages) if role is Role.DRAFTER else mtp_slots(checkpoint.config)


def describe_draft(checkpoint: Checkpoint) -> str:
    """Say in one sentence what a checkpoint carries for speculative decoding."""
    stages = checkpoint.draft_stages
    if checkpoint.draft_kind == "dspark" and checkpoint.config.dspark is None:
        return f"carries {stages} DSpark stages, but config.json has no dspark_* keys"
    if checkpoint.draft_kind == "dspark":
        return f"carries a DSpark drafter of {stages} stages and no MTP head"
    if checkpoint.draft_kind == "mtp":
        return f"carries a classic MTP head ({stages} block) and no DSpark drafter"
    return "carries no drafter: it has no mtp.* tensors that lucebox knows"


def _draft_hint(checkpoint: Checkpoint) -> str:
    if checkpoint.draft_kind == "dspark":
        return "use --drafter" if checkpoint.config.dspark else "fetch config.json of the same release"
    return "use --mtp" if checkpoint.draft_kind == "mtp" else "take the drafter from a DSpark checkpoint"


class _Book:
    """Open accounts: tensors not yet assigned, and what is wrong so far."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._folder = checkpoint.folder
        self._config = checkpoint.config
        self.open = dict(checkpoint.tensors)
        self._missing: list[str] = []
        self.written = 0
        self.merged = 0
        self.skipped: Counter[str] = Counter()

    def take(self, source: str, target: str, slot: Slot) -> OutputTensor | None:
        """Move the inputs of one slot to the written side; None when it is absent and optional, or broken."""
        names = [source + slot.source, *([source + slot.beside] if slot.beside else [])]
        if slot.rule is Rule.EXPERTS:
            names = [source + slot.source.format(e=e) for e in range(self._config.n_routed_experts)]
        elif names[0] not in self.open and slot.alias in self.open:
            names = [slot.alias]
        shape = shape_of(slot, self._config)
        if slot.optional and names[0] not in self.open:
            return None
        parts = [part for name in names if (part := self._take_part(name, shape, slot.rule))]
        if len(parts) != len(names):
            return None
        kinds = {part.weight.dtype for part in parts}
        if len(kinds) > 1:
            raise self.fail(parts[0].weight, f"and its fellows have different dtypes: {sorted(kinds)}")
        if slot.rule is Rule.EXPERTS:
            shape = (len(parts), *shape)
        elif slot.beside:
            shape = (*shape[:-1], shape[-1] * 2)
        return OutputTensor(target + slot.target, shape, slot.rule, tuple(parts), bool(slot.beside))

    def _take_part(self, name: str, shape: tuple[int, ...], rule: Rule) -> Part | None:
        weight = self.open.pop(name, None)
        if weight is None:
            self._missing.append(name)
            return None
        if weight.dtype not in ACCEPTED[rule]:
            raise self.fail(weight, f"is {weight.dtype}, expected {' or '.join(ACCEPTED[rule])}")
        stored = (*shape[:-1], shape[-1] // 2) if weight.dtype == "I8" else shape
        if weight.shape != stored:
            raise self.fail(weight, f"has shape {list(weight.shape)}, expected {list(stored)}")
        self.written += 1
        return Part(weight, self._take_scale(weight, shape) if weight.dtype in SCALED else None)

    def _take_scale(self, weight: StoredTensor, shape: tuple[int, ...]) -> StoredTensor | None:
        name = weight.name.removesuffix(".weight") + ".scale"
        scale = self.open.pop(name, None)
        if scale is None:
            self._missing.append(name)
            return None
        if scale.dtype != "F8_E8M0":
            raise self.fail(scale, f"is {scale.dtype}, expected F8_E8M0")
        wanted = self._scale_shape(weight, shape)
        if scale.shape != wanted:
            raise self.fail(scale, f"has shape {list(scale.shape)}, expected {list(wanted)}")
        self.merged += 1
        return scale

    def _scale_shape(self, weight: StoredTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        if weight.dtype == "I8":
            if shape[-1] % FP4_GROUP:
                raise self.fail(weight, f"has rows of {shape[-1]}, no multiple of {FP4_GROUP}")
            return shape[0], shape[-1] // FP4_GROUP
        block = self._config.weight_block
        if block is None:
            raise self.fail(weight, "is FP8, but config.json has no quantization_config.weight_block_size")
        return -(-shape[0] // block[0]), -(-shape[1] // block[1])

    def skip(self, name: str, reason: str) -> None:
        del self.open[name]
        self.skipped[reason] += 1

    def finish_missing(self) -> None:
        if self._missing:
            raise RequestError(
                f"{self._folder}: {len(self._missing)} tensors are missing: {_listed(self._missing)}",
                hint="fetch the whole checkpoint again",
            )

    def finish_unknown(self) -> None:
        if not self.open:
            return
        names = sorted(self.open)
        scales = [
            n for n in names if n.endswith(".scale") and n.removesuffix(".scale") + ".weight" not in self.open
        ]
        if scales:
            raise RequestError(
                f"{self._folder}: {len(scales)} scales belong to no FP8 or FP4 weight: {_listed(scales)}",
                hint="fetch the whole checkpoint again",
            )
        raise RequestError(
            f"{self._folder}: {len(names)} tensors have no place in this model: {_listed(names)}",
            hint="check that config.json and the shards belong to one release",
        )

    def fail(self, tensor: StoredTensor, what: str) -> RequestError:
        return RequestError(
            f"{tensor.path}: tensor {tensor.name} {what}",
            hint="check that config.json and the shards belong together",
        )


def _skip(book: _Book, checkpoint: Checkpoint, role: Role) -> None:
    other = {slot.source for slot in ROOT}
    hash_biases = {f"layers.{layer}.ffn.gate.bias" for layer in range(checkpoint.config.num_hash_layers)}
    image_routing = {
        f"mtp.{stage}.ffn.gate.{name}"
        for stage in range(checkpoint.draft_stages)
        for name in ("bias_vl", "tid2eid")
    }
    for name in list(book.open):
        first = name.split(".", 1)[0]
        if role is Role.TARGET and name in hash_biases:
            book.skip(name, UNUSED_BIAS)
        elif role is not Role.TARGET and name in image_routing:
            book.skip(name, IMAGE_ROUTING)
        elif role is not Role.TARGET and (first == "layers" or name in other):
            book.skip(name, TARGET_PART)
        elif first in ELSEWHERE and (role is Role.TARGET or first not in ("mtp", MARKOV, CONFIDENCE)):
            book.skip(name, ELSEWHERE[first])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
