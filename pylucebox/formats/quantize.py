"""A GGUF model in other types: plan with llama-quantize's own policy, run it, read back, rename."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pylucebox import __version__
from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.formats.encoding import require_use
from pylucebox.formats.gguf_reader import GgufHeader, read_header
from pylucebox.formats.gguf_types import TYPES, TensorType, align
from pylucebox.formats.imatrix import ImportanceMatrix
from pylucebox.formats.model_keys import check_keys
from pylucebox.formats.output_file import check_disk, free_disk, partial_file
from pylucebox.formats.presets import FLOATS, FP2, NEED_IMATRIX, SEARCH_KEY, FileType
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY, Dialect, examine_file
from pylucebox.formats.rules import TypeRule, TypeRules
from pylucebox.formats.shards import find_shards

Progress = Callable[[int, int], None]

RECIPE_KEY, VERSION_KEY = "lucebox.recipe", "lucebox.version"
EXACT_RECIPE = "exact"  # a conversion whose quantised tensors hold the checkpoint's own values
NEED_NONE = ("token_embd.weight", "output.weight")
LINE = re.compile(r"\[ *(\d+)/ *\d+\] (\S+) +- \[.*\], type = *(\w+), ")
NEW_TYPE = re.compile(r"\((\w+)\)$")
HEADER_SLACK_BYTES = 1 << 16  # keys that llama-quantize adds


@dataclass(frozen=True)
class Wish:
    """What is asked for. pure: the file type's base everywhere. search: the opt-in encoder for our types.

    allow_requantize: quantised tensors of the model may lose precision a second time.
    """

    model: Path
    out: Path
    file_type: FileType
    rules: TypeRules | None = None
    imatrix: ImportanceMatrix | None = None
    threads: int = 1
    pure: bool = False
    search: bool = False
    allow_requantize: bool = False


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor before and after. shape: rows first."""

    name: str
    shape: tuple[int, ...]
    old: TensorType
    new: TensorType

    @property
    def size_bytes(self) -> int:
        return prod(self.shape[:-1]) * self.new.row_bytes(self.shape[-1])


@dataclass(frozen=True)
class QuantizationPlan:
    """Everything decided before the first byte. options: of llama-quantize; forced: types that rules gave."""

    wish: Wish
    program: Path
    tensors: tuple[PlannedTensor, ...]
    options: tuple[str, ...]
    forced: Mapping[str, TypeRule]
    header_bytes: int
    free_disk_bytes: int
    notes: tuple[str, ...]

    @property
    def out(self) -> Path:
        return self.wish.out

    @property
    def data_bytes(self) -> int:
        return sum(align(t.size_bytes) for t in self.tensors)

    @property
    def size_bytes(self) -> int:
        """Bound on the size of the file; its header may be a little smaller."""
        return self.header_bytes + HEADER_SLACK_BYTES + self.data_bytes

    @property
    def weights(self) -> int:
        return sum(prod(t.shape) for t in self.tensors)

    @property
    def bits(self) -> float:
        """Bits a weight, of the whole model."""
        return sum(t.size_bytes for t in self.tensors) * 8 / self.weights

    @property
    def types(self) -> dict[str, tuple[int, int]]:
        """Type name -> (tensors, bytes), largest first."""
        count: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for tensor in self.tensors:
            count[tensor.new.name] += 1
            size[tensor.new.name] += tensor.size_bytes
        return {name: (count[name], size[name]) for name in sorted(count, key=lambda n: -size[n])}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        return {
            "model": str(self.wish.model),
            "to": self.wish.file_type.name.lower(),
            "out": str(self.out),
            "data_bytes": self.data_bytes,
            "bits_per_weight": round(self.bits, 4),
            "free_disk_bytes": self.free_disk_bytes,
            "types": {n: {"tensors": c, "bytes": s} for n, (c, s) in self.types.items()},
            "tensors": {t.name: t.new.name.lower() for t in self.tensors},
            "notes": list(self.notes),
        }


def plan_quantization(program: Path, wish: Wish) -> QuantizationPlan:
    """Ask `program`, the build's llama-quantize, which type every tensor gets. Reads headers only.

    Raises RequestError for a model, rule or importance matrix that cannot be used.
    """
    shards = find_shards(wish.model)
    headers = [read_header(path) for path in shards]
    check_keys(headers[0])
    known = [examine_file(header) for header in headers]
    if wish.out.resolve() in {path.resolve() for path in shards}:
        raise RequestError(f"{wish.out}: is the model itself", hint="write to another file")
    source = {t.name: t for header in headers for t in header.tensors}
    matrices = {name: t.shape for name, t in source.items() if len(t.shape) > 1 and t.type.name != "I32"}
    forced = _forced(wish, matrices)
    options = _options(wish, headers[0], known[0])
    given = _dry_run(program, wish, options, forced)
    if given.keys() != source.keys():
        raise IntegrityError(
            f"{program}: plans other tensors than {wish.model} has", hint="run `lucebox build`"
        )
    if wish.rules:
        wish.rules.require_effect(forced, given)
    tensors = tuple(PlannedTensor(t.name, t.shape, t.type, given[t.name]) for t in source.values())
    _check_source(wish, headers[0], tensors)
    written = {t.new.name for t in tensors if t.new is not t.old}
    require_use(written, wish.imatrix is not None, wish.search)
    return QuantizationPlan(
        wish=wish,
        program=program,
        tensors=tensors,
        options=options,
        forced=forced,
        header_bytes=headers[0].data_offset + sum(h.data_offset for h in headers[1:]),
        free_disk_bytes=free_disk(wish.out),
        notes=_importance_notes(wish, tensors),
    )


def write_quantization(plan: QuantizationPlan, progress: Progress | None = None) -> Path:
    """Write the planned file as NAME.partial, read its header back, rename it. A failure leaves nothing.

    progress: called with (bytes written, bytes in all). Returns the file. Raises MissingError for too little
    disk, RequestError when llama-quantize fails, IntegrityError when the file is not as planned.
    """
    check_disk([plan])
    done = 0
    sizes = {t.name: t.size_bytes for t in plan.tensors}

    def follow(line: str) -> None:
        nonlocal done
        if progress and (found := LINE.match(line)):
            progress(done, plan.data_bytes)
            done += align(sizes.get(found[2], 0))

    with partial_file(plan.out) as (partial, stream):
        _run(plan.program, plan.wish, plan.options, plan.forced, partial, follow)
        os.fsync(stream.fileno())
        _verify(plan, partial)
    return plan.out


def _forced(wish: Wish, matrices: Mapping[str, tuple[int, ...]]) -> dict[str, TypeRule]:
    if wish.rules is None:
        return {}
    if wish.file_type.base in FLOATS:
        raise RequestError(
            f"{wish.rules.path}: rules have no effect with --to {wish.file_type.name.lower()}",
            hint="choose a quantised type",
        )
    return wish.rules.resolve(matrices)


def _options(wish: Wish, header: GgufHeader, dialect_known: bool) -> tuple[str, ...]:
    keys = {RECIPE_KEY: f"str:{wish.file_type.name.lower()}", VERSION_KEY: f"str:{__version__}"}
    if any(t.type.name == FP2 for t in header.tensors) and not dialect_known:
        keys[DIALECT_KEY] = f"str:{Dialect.A}"  # examined just now
    if wish.search:
        keys[SEARCH_KEY] = "bool:true"
    options = [word for key, value in keys.items() for word in ("--override-kv", f"{key}={value}")]
    if wish.allow_requantize or header.value(RECIPE_KEY) == EXACT_RECIPE:
        options.append("--allow-requantize")
    if wish.pure:
        options.append("--pure")
    if wish.imatrix:
        options += ["--imatrix", str(wish.imatrix.path.resolve())]
    return tuple(options)


def _dry_run(
    program: Path, wish: Wish, options: Sequence[str], forced: Mapping[str, TypeRule]
) -> dict[str, TensorType]:
    given = {}
    for line in _run(program, wish, ("--dry-run", *options), forced, None, None).lines:
        if found := LINE.match(line):
            new = NEW_TYPE.search(line)
            given[found[2]] = TYPES[(new[1] if new else found[3]).upper()]
    return given


def _run(
    program: Path,
    wish: Wish,
    options: Sequence[str],
    forced: Mapping[str, TypeRule],
    out: Path | None,
    on_line: Callable[[str], None] | None,
) -> processes.Output:
    """Run llama-quantize. Paths are absolute: it takes a name that starts with a number for a file type."""
    with tempfile.TemporaryDirectory(prefix="lucebox-quantize-") as folder:
        words: list[str | Path] = [program, *options]
        if forced:
            types = Path(folder) / "types.txt"
            types.write_text("".join(f"^{re.escape(n)}$={r.type.name.lower()}\n" for n, r in forced.items()))
            words += ["--tensor-type-file", types]
        words.append(wish.model.resolve())
        if out:
            words.append(out.resolve())
        words += [wish.file_type.name, str(wish.threads)]
        return processes.run(words, on_line=on_line, error=RequestError)


def _check_source(wish: Wish, header: GgufHeader, tensors: Sequence[PlannedTensor]) -> None:
    """Refuse to round numbers a second time unless they are the checkpoint's own, or it is allowed."""
    twice = [t for t in tensors if t.old is not t.new and t.old.name not in (*FLOATS, "I32")]
    if twice and not wish.allow_requantize and header.value(RECIPE_KEY) != EXACT_RECIPE:
        raise RequestError(
            f"{wish.model}: {len(twice)} tensors are quantised already, such as {twice[0].name}"
            f" ({twice[0].old.name})",
            hint="start from `lucebox convert --to exact`, or accept a worse model with --allow-requantize",
        )


def _importance_notes(wish: Wish, tensors: Sequence[PlannedTensor]) -> tuple[str, ...]:
    """Check the importance matrix against the plan; say what it does not cover."""
    needing = NEED_IMATRIX | ({"Q2_K"} if wish.file_type.name == "Q2_K_S" else set())
    quantised = [t for t in tensors if t.old is not t.new and t.new.name not in FLOATS]
    covered = set(wish.imatrix.entries) if wish.imatrix else set()
    for tensor in quantised:
        if wish.imatrix and tensor.name in covered:
            wish.imatrix.slices(tensor.name, tensor.shape)
        elif tensor.name not in NEED_NONE and tensor.new.name in needing:
            raise RequestError(
                f"{tensor.name}: type {tensor.new.name} needs an importance matrix",
                hint="make one with `lucebox imatrix MODEL -f TEXT`, then give it with --imatrix",
            )
    return wish.imatrix.gaps([t.name for t in quantised]) if wish.imatrix else ()


def _verify(plan: QuantizationPlan, partial: Path) -> None:
    header = read_header(partial)
    found = {t.name: (_bare(t.shape), t.type) for t in header.tensors}
    wanted = {t.name: (_bare(t.shape), t.new) for t in plan.tensors}
    dialect = Dialect.A if any(t.new.name == FP2 for t in plan.tensors) else None
    if (
        found != wanted
        or header.value(DIALECT_KEY) != dialect
        or header.value("general.file_type") != plan.wish.file_type.number
    ):
        raise IntegrityError(
            f"{partial}: does not read back as it was planned",
            hint="check the disk, then run the command again",
        )


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading ones, which llama-quantize does not write."""
    lead = next((i for i, extent in enumerate(shape[:-1]) if extent != 1), len(shape) - 1)
    return shape[lead:]
