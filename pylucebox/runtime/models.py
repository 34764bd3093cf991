"""Finds the model to serve and its drafter, and tells whether the two fit each other.

A drafter lies beside its model, found in this order: NAME-dspark.gguf, dspark-NAME.gguf (upstream's way), the
only file of the folder with "dspark" in its name. NAME is the model file's without .gguf and shard number.
"""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.core.errors import MissingError, RequestError, did_you_mean
from pylucebox.core.receipts import fingerprint, sha256_file
from pylucebox.formats.inspect import ModelInfo, TypeShare, check_pair, inspect
from pylucebox.formats.shards import SHARD, find_shards, model_stem

EMBEDDED_NAME = "tiny-ds4"
DRAFTER_MARK = "dspark"
CONVERSION = re.compile(rf"{EMBEDDED_NAME}-[0-9a-f]{{12}}")  # folder of a converted embedded model
CHECKPOINT_FILES = ("*.safetensors", "*.json")


def inspect_model(path: Path) -> ModelInfo:
    """Return the facts of a model, all its shards taken together.

    Raises RequestError for a file that is no GGUF model, is damaged or lacks a shard.
    """
    first, *rest = [inspect(shard) for shard in find_shards(path)]
    types = dict(first.types)
    for info in rest:
        for name, share in info.types.items():
            before = types.get(name, TypeShare(0, 0))
            types[name] = TypeShare(before.tensors + share.tensors, before.size_bytes + share.size_bytes)
    everything = (first, *rest)
    return replace(
        first,
        types=types,
        file_bytes=sum(info.file_bytes for info in everything),
        tensor_bytes=sum(info.tensor_bytes for info in everything),
        tensors=sum(info.tensors for info in everything),
        parameters=sum(info.parameters for info in everything),
    )


@dataclass(frozen=True)
class EmbeddedModel:
    """The model that comes with the package, as files in the user's cache: there once `is_converted`."""

    source: Path
    model: Path
    drafter: Path

    @property
    def is_converted(self) -> bool:
        return self.model.is_file() and self.drafter.is_file()


def embedded_model(source: Path, models_dir: Path, converter: str) -> EmbeddedModel:
    """Return where the embedded checkpoint's conversion belongs: a folder named by what it is made from.

    converter: identifies program and target type. Raises MissingError when the package lacks the checkpoint.
    """
    files = sorted(p for pattern in CHECKPOINT_FILES for p in source.glob(pattern))
    if not files:
        raise MissingError(f"{source}: the embedded model is missing", hint="install the package again")
    inputs = {"converter": converter, "files": {p.name: sha256_file(p) for p in files}}
    folder = models_dir / f"{EMBEDDED_NAME}-{fingerprint(inputs)[:12]}"
    return EmbeddedModel(
        source, folder / f"{EMBEDDED_NAME}.gguf", folder / f"{EMBEDDED_NAME}-{DRAFTER_MARK}.gguf"
    )


def remove_stale_conversions(embedded: EmbeddedModel) -> None:
    """Remove earlier conversions beside this one; a running server keeps the files it has open."""
    folder = embedded.model.parent
    for other in folder.parent.glob(f"{EMBEDDED_NAME}-*"):
        if other != folder and CONVERSION.fullmatch(other.name):
            shutil.rmtree(other, ignore_errors=True)


def named_path(name: str) -> Path:
    """Return the path that a name means when it is one, ~ expanded unless there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def find_model(name: str, models_dir: Path) -> Path:
    """Return the GGUF file meant by a path or by a name of the models folder.

    Raises RequestError for a path that is no file, MissingError for a name that the folder lacks.
    """
    path = named_path(name)
    if path.is_file():
        return path
    if path.suffix == ".gguf" or len(path.parts) > 1:
        what = "is a folder, not a GGUF file" if path.is_dir() else "no such file"
        raise RequestError(f"{name}: {what}", hint="give the path of a .gguf file")
    known = stored_models(models_dir)
    if name not in known:
        raise MissingError(
            f"no model named '{name}' in {models_dir}{did_you_mean(name, list(known))}",
            hint="give a path, or convert one: lucebox convert SRC --to TYPE --out FILE.gguf",
        )
    return known[name]


def stored_models(models_dir: Path) -> dict[str, Path]:
    """Return the models of a folder and of the folders in it by name, without drafters and further shards."""
    found: dict[str, Path] = {}
    for path in sorted([*models_dir.glob("*.gguf"), *models_dir.glob("*/*.gguf")]):
        shard = SHARD.search(path.stem)
        if DRAFTER_MARK not in path.name and (shard is None or int(shard[1]) == 1):
            found.setdefault(model_stem(path), path)
    return found


def find_drafter(model: Path) -> Path | None:
    """Return the drafter beside a model, by the rule at the top of this file; None when there is none."""
    stem = model_stem(model)
    for name in (f"{stem}-{DRAFTER_MARK}.gguf", f"{DRAFTER_MARK}-{stem}.gguf"):
        if (path := model.with_name(name)) != model and path.is_file():
            return path
    marked = [p for p in model.parent.glob(f"*{DRAFTER_MARK}*.gguf") if p != model]
    return marked[0] if len(marked) == 1 else None


@dataclass(frozen=True)
class Speculation:
    """Whether a drafter is used, and why. draft_tokens: drafts a cycle, 0 without a drafter."""

    drafter: ModelInfo | None
    draft_tokens: int
    why: str


def choose_speculation(
    wish: str, model: ModelInfo, drafter: ModelInfo | None, *, named: bool, draft_tokens: int | None
) -> Speculation:
    """Decide on speculation. wish: "auto", "on" or "off"; named: the user chose this drafter.

    A drafter that does not fit is an error if it was named or speculation demanded, else a reason for none.
    Raises RequestError.
    """
    if wish == "off":
        return Speculation(None, 0, "--spec off")
    findings = ("no drafter beside the model",) if drafter is None else check_pair(model, drafter)
    if drafter is None or findings:
        why = "; ".join(findings)
        if named and drafter:
            raise RequestError(f"{drafter.path}: cannot draft for {model.path}: {why}", hint="--spec off")
        if wish == "on" or draft_tokens:
            asked = "--spec on" if wish == "on" else f"--draft-max {draft_tokens}"
            raise RequestError(f"{model.path}: {asked}, but {why}", hint="name one: --drafter FILE")
        return Speculation(None, 0, why)
    block = drafter.dspark.block_size if drafter.dspark else 0
    if draft_tokens and draft_tokens > block:
        raise RequestError(f"--draft-max {draft_tokens}: {drafter.path} drafts at most {block} tokens")
    return Speculation(drafter, draft_tokens or block, "the drafter fits the model")
