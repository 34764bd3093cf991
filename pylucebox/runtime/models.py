"""Finds the model to serve and its drafter, and tells whether the two fit each other.

A drafter lies beside its model, found in this order: NAME-dspark.gguf, dspark-NAME.gguf (upstream's way), the
only file of the folder with "dspark" in its name. NAME is the model file's without .gguf and shard number.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import MissingError, RequestError, did_you_mean
from pylucebox.core.receipts import fingerprint, sha256_file
from pylucebox.formats.gguf_reader import GgufHeader, read_header

EMBEDDED_NAME = "tiny-ds4"
TARGET_ARCHITECTURE = "deepseek4"
DRAFTER_ARCHITECTURE = "dflash"
DRAFTER_MARK = "dspark"
THINKING_KEY = "lucebox.default_thinking"  # bool; absent: the chat template's own default
SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
CHECKPOINT_FILES = ("*.safetensors", "*.json")


@dataclass(frozen=True)
class ModelFile:
    """What serving needs to know of a GGUF model, from its headers.

    paths: all shards, the first one first. types: ggml type name -> tensors. context_tokens: as trained.
    default_thinking: form the model was trained in, None for the template's default. Of a drafter only:
    draft_tokens, drafts a cycle, and target_layers, numbers from 1 of the layers whose output it reads.
    """

    paths: tuple[Path, ...]
    name: str
    architecture: str
    types: Mapping[str, int]
    size_bytes: int
    context_tokens: int
    embedding_length: int
    layers: int
    vocab_size: int
    has_template: bool
    default_thinking: bool | None
    draft_tokens: int | None
    target_layers: tuple[int, ...]

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def type_summary(self) -> str:
        """Types by number of tensors, for people: "BF16 130, F32 110"."""
        return ", ".join(f"{name} {self.types[name]}" for name in sorted(self.types, key=self._rank))

    def _rank(self, name: str) -> tuple[int, str]:
        return -self.types[name], name

    @classmethod
    def read(cls, path: Path) -> "ModelFile":
        """Read the model at `path`, the first shard if there are several.

        Raises RequestError for a file that is no GGUF model, is damaged or lacks a shard.
        """
        paths = find_shards(path)
        headers = [read_header(part) for part in paths]
        head = headers[0]
        architecture = str(head.value("general.architecture", ""))
        if not architecture or head.value(f"{architecture}.block_count") is None:
            raise RequestError(f"{path}: not a language model (general.architecture or block_count missing)")

        def key(name: str, default: int = 0) -> int:
            return int(head.value(f"{architecture}.{name}", default))

        thinking = head.value(THINKING_KEY)
        return cls(
            paths=paths,
            name=str(head.value("general.name") or _stem(path)),
            architecture=architecture,
            types=Counter(t.type.name for header in headers for t in header.tensors),
            size_bytes=sum(header.file_bytes for header in headers),
            context_tokens=key("context_length"),
            embedding_length=key("embedding_length"),
            layers=key("block_count"),
            vocab_size=key("vocab_size") or _vocab_size(head),
            has_template=head.value("tokenizer.chat_template") is not None,
            default_thinking=None if thinking is None else bool(thinking),
            draft_tokens=key("block_size") or None,
            target_layers=tuple(int(n) for n in head.value(f"{architecture}.target_layers", ())),
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


def find_model(name: str, models_dir: Path) -> Path:
    """Return the GGUF file meant by a path or by a name of the models folder.

    Raises RequestError for a path that is no file, MissingError for a name that the folder lacks.
    """
    path = Path(name).expanduser()
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
            found.setdefault(_stem(path), path)
    return found


def find_shards(path: Path) -> tuple[Path, ...]:
    """Return all files of a model. Raises RequestError when one is missing or `path` is not the first."""
    shard = SHARD.search(path.stem)
    if shard is None:
        return (path,)
    if int(shard[1]) != 1:
        raise RequestError(f"{path}: shard {int(shard[1])} of {int(shard[2])}", hint="give the first shard")
    count = int(shard[2])
    paths = [path.with_name(f"{_stem(path)}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if absent := [p.name for p in paths if not p.is_file()]:
        raise RequestError(f"{path.parent}: missing {', '.join(absent)}", hint="fetch every shard")
    return tuple(paths)


def find_drafter(model: Path) -> Path | None:
    """Return the drafter beside a model, by the rule at the top of this file; None when there is none."""
    stem = _stem(model)
    for name in (f"{stem}-{DRAFTER_MARK}.gguf", f"{DRAFTER_MARK}-{stem}.gguf"):
        if (path := model.with_name(name)) != model and path.is_file():
            return path
    marked = [p for p in model.parent.glob(f"*{DRAFTER_MARK}*.gguf") if p != model]
    return marked[0] if len(marked) == 1 else None


def drafter_misfit(model: ModelFile, drafter: ModelFile) -> str | None:
    """Return in one phrase why `drafter` cannot draft for `model`, None when it can."""
    if model.architecture != TARGET_ARCHITECTURE:
        return f"the model is {model.architecture}, not {TARGET_ARCHITECTURE}"
    if drafter.architecture != DRAFTER_ARCHITECTURE:
        return f"it is {drafter.architecture}, not {DRAFTER_ARCHITECTURE}"
    for what in ("embedding_length", "vocab_size"):
        ours, theirs = getattr(model, what), getattr(drafter, what)
        if ours != theirs:
            return f"its {what} is {theirs}, the model's {ours}"
    if not drafter.draft_tokens or not drafter.target_layers:
        return "its block size or target layers are missing"
    return _layers_misfit(model.layers, drafter.target_layers)


def _layers_misfit(layers: int, wanted: Sequence[int]) -> str | None:
    if max(wanted) > layers or min(wanted) < 1:
        return f"it reads layers {', '.join(map(str, wanted))}, the model has {layers}"
    return None


def _vocab_size(head: GgufHeader) -> int:
    return len(head.value("tokenizer.ggml.tokens", ()))


def _stem(path: Path) -> str:
    return SHARD.sub("", path.stem)
