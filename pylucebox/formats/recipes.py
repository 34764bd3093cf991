"""Recipes: what `--to NAME` means, rule by rule. A new recipe is one row; a new type is one encoder."""

from dataclasses import dataclass, replace
from types import MappingProxyType

from pylucebox.core.errors import RequestError, did_you_mean
from pylucebox.formats.ds4_tensors import Rule
from pylucebox.formats.gguf_types import TYPES, TensorType
from pylucebox.formats.ledger import OutputTensor
from pylucebox.formats.presets import ALIASES, FILE_TYPES, OURS, FileType, fitting

AS_STORED = "as stored"
# Stored dtype -> the smallest ggml type that holds every such value. I8 is packed FP4.
STORED_AS = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F8_E4M3": "BF16", "I8": "MXFP4"}


@dataclass(frozen=True)
class Recipe:
    """Type names by rule. AS_STORED changes no value: FP4 becomes MXFP4, FP8 becomes BF16, the rest stays."""

    name: str
    about: str
    file_type: int  # label of llama.h, general.file_type
    dense: str
    experts: str
    embedding: str
    output: str
    kept: str = AS_STORED
    mix: FileType | None = None  # decides every matrix that is not kept, instead of the names above
    is_pure: bool = False  # the mix's base type for each of these

    def type_of(self, output: OutputTensor, layers: int, experts: int) -> TensorType:
        """Return the type in which a tensor is written. layers, experts: of the model.

        Norms, sinks, biases and hyper-connection bases are F32 and expert ids I32 in every recipe.
        """
        if output.rule is Rule.VECTOR:
            return TYPES["F32"]
        if output.rule is Rule.IDS:
            return TYPES["I32"]
        if self.mix and output.rule is not Rule.KEPT:
            chosen = self.mix.base if self.is_pure else self.mix.type_of(output.name, layers, experts)
            return fitting(chosen, output.shape[-1])
        name = str(getattr(self, output.rule.value))
        if name == AS_STORED:
            name = STORED_AS[output.stored_dtype]
        return TYPES[name]


RECIPES = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("f32", "every value exact, largest", 0, "F32", "F32", "F32", "F32", "F32"),
            Recipe("bf16", "every value exact, all matrices BF16", 32, "BF16", "BF16", "BF16", "BF16"),
            Recipe("f16", "all large matrices F16", 1, "F16", "F16", "F16", "F16"),
            Recipe("q8_0", "all large matrices Q8_0", 7, "Q8_0", "Q8_0", "Q8_0", "Q8_0"),
            Recipe("mxfp4", "experts MXFP4, dense Q8_0, rest BF16", 38, "Q8_0", "MXFP4", "BF16", "BF16"),
            Recipe("exact", "every value exact, smallest", 38, AS_STORED, AS_STORED, AS_STORED, AS_STORED),
        )
    }
)


# The mixes of the ROCmFPX types, as llama-quantize makes them.
MIXES = MappingProxyType(
    {
        t.name.lower(): Recipe(
            t.name.lower(), t.about, t.number, AS_STORED, AS_STORED, AS_STORED, AS_STORED, mix=t
        )
        for t in OURS
    }
)


def find_recipe(name: str, is_pure: bool = False) -> Recipe:
    """Return the recipe called `name`. is_pure: of a mix the base type alone.

    Raises RequestError with a suggestion.
    """
    lower = ALIASES.get(name.lower(), name).lower()
    recipe = RECIPES.get(lower) or MIXES.get(lower)
    if recipe is not None:
        if is_pure and recipe.mix is None:
            raise RequestError(f"--pure has no meaning with --to {recipe.name}", hint="it is for mixes")
        return replace(recipe, is_pure=is_pure)
    if lower in FILE_TYPES:
        raise RequestError(
            f"{name}: a conversion writes no such file",
            hint=f"convert --to exact, then `lucebox quantize IN OUT --to {lower}`",
        )
    known = [*RECIPES, *MIXES]
    raise RequestError(
        f"no output type {name!r}{did_you_mean(name, [*known, *ALIASES])}",
        hint=f"known are {', '.join(known)}",
    )
