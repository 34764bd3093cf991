"""What a conversion may be told beyond its recipe: an encoder, an importance matrix, rules for tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.formats.ds4_tensors import Rule
from pylucebox.formats.encoders import NumpyEncoder, RowEncoder
from pylucebox.formats.gguf_types import KeyValue, TensorType, boolean, string, u32
from pylucebox.formats.imatrix import Importance, ImportanceMatrix
from pylucebox.formats.ledger import OutputTensor
from pylucebox.formats.presets import FLOATS, FP2, NEED_IMATRIX, ROCMFPX, SEARCH_KEY
from pylucebox.formats.recipes import Recipe
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY, Dialect
from pylucebox.formats.rules import TypeRules

# These keep the type the recipe gives them, whatever a rules file says.
FIXED = (Rule.VECTOR, Rule.IDS, Rule.KEPT)


def require_use(types: Iterable[str], imatrix: bool, search: bool) -> None:
    """Raise RequestError when an importance matrix or the search was asked for and no type can use it."""
    names = set(types)
    for given, option, able in (
        (imatrix, "--imatrix", names - FLOATS - {"I32"}),
        (search, "--search", names & ROCMFPX),
    ):
        if given and not able:
            raise RequestError(f"{option} has no effect on {', '.join(sorted(names))}", hint="leave it out")


@dataclass(frozen=True)
class Encoding:
    """How values become bytes."""

    encoder: RowEncoder = field(default_factory=NumpyEncoder)
    imatrix: ImportanceMatrix | None = None
    rules: TypeRules | None = None

    def choose_types(
        self, outputs: Sequence[OutputTensor], recipe: Recipe, layers: int, experts: int
    ) -> dict[str, TensorType]:
        """Return the type of every tensor. layers, experts: of the model.

        Raises RequestError for a rule without effect or a matrix of another model, MissingError for a type
        that nothing here can encode.
        """
        types = {o.name: recipe.type_of(o, layers, experts) for o in outputs}
        if self.rules:
            matrices = {o.name: o.shape for o in outputs if len(o.shape) > 1 and o.rule is not Rule.IDS}
            wanted = self.rules.resolve(matrices)
            fixed = {o.name for o in outputs if o.rule in FIXED}
            types.update({name: rule.type for name, rule in wanted.items() if name not in fixed})
            self.rules.require_effect(wanted, types)
        for output in outputs:
            self._check(output, types[output.name])
        require_use({t.name for t in types.values()}, self.imatrix is not None, self.encoder.search)
        return types

    def _check(self, output: OutputTensor, kind: TensorType) -> None:
        if kind.name != "I32" and not self.encoder.can_encode(kind):
            raise MissingError(
                f"{output.name}: type {kind.name} needs the encoders of a build, there is none",
                hint="run `lucebox build`, or choose a type without it",
            )
        if self.imatrix and output.name in self.imatrix.entries and kind.name not in (*FLOATS, "I32"):
            self.imatrix.slices(output.name, output.shape)
        elif kind.name in NEED_IMATRIX:
            raise RequestError(
                f"{output.name}: type {kind.name} needs an importance matrix",
                hint="make one of a converted model with `lucebox imatrix`, then give it with --imatrix",
            )

    def importance_of(self, output: OutputTensor, kind: TensorType) -> Importance | None:
        """Return the importance of a tensor's columns, read from the file now; None when there is none."""
        if self.imatrix is None or kind.name in (*FLOATS, "I32"):
            return None
        return self.imatrix.find(output.name, output.shape)

    def notes(self, types: dict[str, TensorType]) -> tuple[str, ...]:
        """Say what the importance matrix does not cover."""
        names = [name for name, kind in types.items() if kind.name not in (*FLOATS, "I32")]
        return self.imatrix.gaps(names) if self.imatrix else ()

    def keys(self, types: dict[str, TensorType]) -> list[KeyValue]:
        """Return the keys that record all this in the file, named as llama-quantize names them."""
        keys = [boolean(SEARCH_KEY, True)] if self.encoder.search else []
        if any(kind.name == FP2 for kind in types.values()):
            keys.append(string(DIALECT_KEY, Dialect.A))
        if self.imatrix:
            keys += [
                string("quantize.imatrix.file", self.imatrix.path.name),
                string("quantize.imatrix.dataset", ", ".join(self.imatrix.datasets)),
                u32("quantize.imatrix.entries_count", len(self.imatrix.entries)),
                u32("quantize.imatrix.chunks_count", self.imatrix.chunks),
            ]
        return keys

    @property
    def memory_bytes(self) -> int:
        """Bound on what the importance of one tensor takes."""
        if self.imatrix is None:
            return 0
        return 4 * max(sums.size_bytes for sums, _ in self.imatrix.entries.values())
