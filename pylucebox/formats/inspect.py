"""What a GGUF file is, from its header alone: architecture, types, sizes, chat template, drafter facts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_reader import GgufHeader, read_header
from pylucebox.formats.model_keys import REMEDY, SHOWN, check_keys
from pylucebox.formats.rocmfpx_dialect import examine_file

TARGET_ARCHITECTURE = "deepseek4"
DRAFTER_ARCHITECTURE = "dflash"
FOREIGN_DRAFTER = "deepseek4-dflash-draft"
LONG_ARRAY = 512  # longer arrays (tokens, merges) are left out of ModelInfo.keys


@dataclass(frozen=True)
class TypeShare:
    """How much of a file is stored in one type."""

    tensors: int
    size_bytes: int


@dataclass(frozen=True)
class DsparkInfo:
    """A drafter's head. target_layers: counted by layer input, one more than the layer's number."""

    block_size: int
    target_layers: tuple[int, ...]
    markov_rank: int
    has_confidence_head: bool
    mask_token_id: int


@dataclass(frozen=True)
class ModelInfo:
    """A model file. Sizes in bytes, context in tokens; types: by share, largest first.

    default_thinking: whether the model answers with reasoning by default; None when the file does not say.
    keys: every metadata value but long arrays.
    """

    path: Path
    architecture: str
    name: str
    file_bytes: int
    tensor_bytes: int
    tensors: int
    parameters: int
    types: Mapping[str, TypeShare]
    context_tokens: int
    layers: int
    hidden_size: int
    vocab_size: int
    has_tokenizer: bool
    has_chat_template: bool
    default_thinking: bool | None
    recipe: str | None
    dspark: DsparkInfo | None
    keys: Mapping[str, Any]

    @property
    def is_drafter(self) -> bool:
        return self.architecture == DRAFTER_ARCHITECTURE

    @property
    def is_target(self) -> bool:
        return self.architecture == TARGET_ARCHITECTURE

    def number(self, key: str, default: float | None = None) -> Any:
        """Return the value of `<architecture>.<key>`. Raises RequestError without a value or default."""
        value = self.keys.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self._refuse(key, "is missing")
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of the model; of a list with one a layer, the largest.

        Raises RequestError naming file and key when there is neither value nor default, or no such number.
        """
        value = self.number(key, default)
        return (
            max(self.counts(key, least=least)) if isinstance(value, tuple) else self._whole(key, value, least)
        )

    def counts(self, key: str, *, least: int = 0) -> tuple[int, ...]:
        """Return a list of whole numbers, one a layer. Raises RequestError naming file and key."""
        values, layers = self.number(key), self._whole("block_count", self.number("block_count"), 1)
        if not isinstance(values, tuple):
            raise self._refuse(key, f"is no list: {_shown(values)}")
        if len(values) < layers:
            raise self._refuse(key, f"has {len(values)} values for {layers} layers")
        return tuple(self._whole(key, value, least) for value in values[:layers])

    @property
    def vocabulary(self) -> int:
        """Tokens, from the tokenizer or a key. Raises RequestError when the file has neither."""
        return self.vocab_size or self.count("vocab_size")

    def _whole(self, key: str, value: Any, least: int) -> int:
        if type(value) is not int or value < least:
            raise self._refuse(key, f"is no whole number from {least}: {_shown(value)}")
        return value

    def _refuse(self, key: str, what: str) -> RequestError:
        return RequestError(f"{self.path}: key {self.architecture}.{key} {what}", hint=REMEDY)

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain values for JSON."""
        plain = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("path", "types", "dspark", "keys")
        }
        plain["path"] = str(self.path)
        plain["types"] = {n: {"tensors": t.tensors, "bytes": t.size_bytes} for n, t in self.types.items()}
        plain["dspark"] = None
        if self.dspark:
            plain["dspark"] = {**vars(self.dspark), "target_layers": list(self.dspark.target_layers)}
        return plain


def inspect(path: Path) -> ModelInfo:
    """Read the header of the GGUF file at `path`. Raises RequestError naming file, field and remedy."""
    header = read_header(path)
    check_keys(header)
    examine_file(header)
    architecture = str(header.value("general.architecture"))
    if architecture == FOREIGN_DRAFTER:
        raise RequestError(
            f"{path}: is a drafter in Lucebox's own layout ({FOREIGN_DRAFTER})",
            hint="make one with `lucebox convert CHECKPOINT --drafter`",
        )
    keys = {
        k: e.value
        for k, e in header.keys.items()
        if not isinstance(e.value, tuple) or len(e.value) <= LONG_ARRAY
    }
    tokens = header.value("tokenizer.ggml.tokens")
    return ModelInfo(
        path=path,
        architecture=architecture,
        name=str(header.value("general.name", path.stem)),
        file_bytes=header.file_bytes,
        tensor_bytes=sum(t.size_bytes for t in header.tensors),
        tensors=len(header.tensors),
        parameters=sum(_values(t.shape) for t in header.tensors),
        types=_types(header),
        context_tokens=int(header.value(f"{architecture}.context_length", 0)),
        layers=int(header.value(f"{architecture}.block_count", 0)),
        hidden_size=int(header.value(f"{architecture}.embedding_length", 0)),
        vocab_size=len(tokens) if tokens else int(header.value(f"{architecture}.vocab_size", 0)),
        has_tokenizer=tokens is not None,
        has_chat_template=bool(header.value("tokenizer.chat_template")),
        default_thinking=header.value("lucebox.default_thinking"),
        recipe=header.value("lucebox.recipe"),
        dspark=_dspark(header) if architecture == DRAFTER_ARCHITECTURE else None,
        keys=MappingProxyType(keys),
    )


def check_pair(target: ModelInfo, drafter: ModelInfo) -> tuple[str, ...]:
    """Return why `drafter` cannot serve `target`, one sentence each; empty when they fit. Headers only."""
    if not target.is_target:
        return (f"{target.path} has the architecture {target.architecture}, not {TARGET_ARCHITECTURE}",)
    if not drafter.is_drafter or drafter.dspark is None:
        return (f"{drafter.path} is no DSpark drafter (architecture {drafter.architecture})",)
    findings = []
    for what, key in (
        ("hidden size", "embedding_length"),
        ("hyper-connection streams", "hyper_connection.count"),
    ):
        ours, theirs = target.number(key, 0), drafter.number(key, 0)
        if ours != theirs:
            findings.append(f"{what}: {ours} in the target, {theirs} in the drafter")
    if target.number("rope.freq_base", 0) != drafter.number("rope.freq_base", 0):
        findings.append("rope base of the drafter differs from the target's")
    if target.vocab_size != drafter.vocab_size:
        findings.append(f"vocabulary: {target.vocab_size} in the target, {drafter.vocab_size} in the drafter")
    if drafter.dspark.mask_token_id >= target.vocab_size:
        findings.append(f"mask token {drafter.dspark.mask_token_id} is outside the target's vocabulary")
    beyond = [layer for layer in drafter.dspark.target_layers if not 0 < layer <= target.layers]
    if beyond:
        findings.append(f"features of layer {beyond[0]} are wanted, the target has {target.layers} layers")
    return tuple(findings)


def _types(header: GgufHeader) -> Mapping[str, TypeShare]:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for tensor in header.tensors:
        count[tensor.type.name] += 1
        size[tensor.type.name] += tensor.size_bytes
    return MappingProxyType({n: TypeShare(count[n], size[n]) for n in sorted(count, key=lambda n: -size[n])})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _values(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _dspark(header: GgufHeader) -> DsparkInfo | None:
    """Facts of the DSpark head; None for a plain DFlash drafter. Tensors decide, a wrong flag is an error."""
    tensors = {t.name: t for t in header.tensors}
    markov = tensors.get("markov_w1.weight")
    if markov is None:
        return None
    if "markov_w2.weight" not in tensors:
        raise RequestError(
            f"{header.path}: has markov_w1.weight but no markov_w2.weight", hint="convert it again"
        )
    has_confidence = "conf_proj.weight" in tensors
    if header.value("dflash.has_confidence_head", has_confidence) and not has_confidence:
        raise RequestError(
            f"{header.path}: says it has a confidence head, but conf_proj.weight is missing",
            hint="convert it again",
        )
    return DsparkInfo(
        block_size=int(header.value("dflash.block_size", 0)),
        target_layers=tuple(header.value("dflash.target_layers", ())),
        markov_rank=markov.shape[-1],
        has_confidence_head=has_confidence,
        mask_token_id=int(header.value("tokenizer.ggml.mask_token_id", -1)),
    )
