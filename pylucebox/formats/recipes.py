"""Recipes: what `--to NAME` means, rule by rule. A new recipe is one row; a new type is one encoder."""

from dataclasses import dataclass
from types import MappingProxyType

from pylucebox.core.errors import RequestError, did_you_mean
from pylucebox.formats.ds4_tensors import Rule
from pylucebox.formats.gguf_types import TYPES, TensorType

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

    def type_for(self, rule: Rule, stored_dtype: str) -> TensorType:
        """Return the type in which a tensor stored as `stored_dtype` is written.

        Norms, sinks, biases and hyper-connection bases are F32 and expert ids I32 in every recipe.
        """
        if rule is Rule.VECTOR:
            return TYPES["F32"]
        if rule is Rule.IDS:
            return TYPES["I32"]
        name = str(getattr(self, rule.value))
        if name == AS_STORED:
            name = STORED_AS[stored_dtype]
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


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`. Raises RequestError with a suggestion."""
    recipe = RECIPES.get(name.lower())
    if recipe is None:
        raise RequestError(
            f"no output type {name!r}{did_you_mean(name, list(RECIPES))}",
            hint=f"known are {', '.join(RECIPES)}",
        )
    return recipe
