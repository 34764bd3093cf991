"""File types: what `--to NAME` means for llama-quantize; the mixes of the ROCmFPX types, tensor by tensor.

The mixes are those of overlay/src/lucebox-quantize-policy.cpp, which llama-quantize asks; a conversion asks
here. A test holds the two against each other for every mix, layer count and kind of tensor.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType

from pylucebox.core.errors import RequestError, did_you_mean
from pylucebox.formats.gguf_types import TYPES, TensorType

FP2, FP3, FP4 = "Q2_0_ROCMFP2", "Q3_0_ROCMFPX", "Q4_0_ROCMFP4"
FP4_FAST, FP6, FP8 = "Q4_0_ROCMFP4_FAST", "Q6_0_ROCMFPX", "Q8_0_ROCMFPX"
ROCMFPX = frozenset((FP2, FP3, FP4, FP4_FAST, FP6, FP8))
FLOATS = frozenset(("F32", "F16", "BF16"))
# Types that are garbage without an importance matrix.
NEED_IMATRIX = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"))
SEARCH_KEY = "lucebox.quantize.search"  # true in files of the opt-in encoder
BELOW_5_BITS = frozenset((FP2, FP3, FP4, FP4_FAST))


class Kind(Enum):
    """What a tensor does, as far as a mix looks at it."""

    TOKEN_EMBD = auto()
    OUTPUT = auto()
    DRAFT_PROJ = auto()  # joins hidden state and token of an MTP head or a drafter
    ATTN_QKV = auto()
    ATTN_K = auto()
    ATTN_V = auto()
    ATTN_Q = auto()
    ATTN_OUT = auto()
    EXPERT_DOWN = auto()  # routed experts; in a model without experts its only FFN
    EXPERT_GATE = auto()
    EXPERT_UP = auto()
    FFN_DOWN = auto()  # every other FFN, shared experts too
    FFN_GATE = auto()
    FFN_UP = auto()
    REST = auto()


K = Kind
# Part of a name -> kind; the first that is found decides.
KINDS = (
    ("token_embd.weight", K.TOKEN_EMBD),
    ("nextn.eh_proj.weight", K.DRAFT_PROJ),
    ("nextn.pre_projection.weight", K.DRAFT_PROJ),
    ("nextn.post_projection.weight", K.DRAFT_PROJ),
    ("attn_qkv.weight", K.ATTN_QKV),
    ("attn_kv_b.weight", K.ATTN_V),
    ("attn_k.weight", K.ATTN_K),
    ("attn_v.weight", K.ATTN_V),
    ("attn_q.weight", K.ATTN_Q),
    ("attn_output.weight", K.ATTN_OUT),
    ("ffn_down_exps", K.EXPERT_DOWN),
    ("ffn_gate_exps", K.EXPERT_GATE),
    ("ffn_up_exps", K.EXPERT_UP),
    ("ffn_down", K.FFN_DOWN),
    ("ffn_gate", K.FFN_GATE),
    ("ffn_up", K.FFN_UP),
)
WHOLE_NAMES = {"output.weight": K.OUTPUT, "fc.weight": K.DRAFT_PROJ}
PAIRS = ((K.EXPERT_DOWN, K.FFN_DOWN), (K.EXPERT_GATE, K.FFN_GATE), (K.EXPERT_UP, K.FFN_UP))

Layers = Callable[[int, int], bool]


def more_bits(i: int, n: int) -> bool:
    """Return whether layer i of n is one that mixes treat better: both ends and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _wide_ends(i: int, n: int) -> bool:
    return i < n // 16 or more_bits(i, n)


@dataclass(frozen=True)
class Choice:
    """A type, and another one for the layers that `layers` (layer, layer count) selects."""

    type: str
    layers: Layers | None = None
    in_layers: str = ""

    def at(self, layer: int | None, count: int) -> str:
        """Return the type in layer `layer` of `count`; None: the tensor belongs to no layer."""
        selected = self.layers is not None and layer is not None and self.layers(layer, count)
        return self.in_layers if selected else self.type


@dataclass(frozen=True)
class FileType:
    """One name of `--to`. number: general.file_type. base: type of most of the weights.

    exceptions: what differs from `base`, for a mix of ours; upstream's mixes are in llama-quantize alone.
    rest: the type of everything else, when it is not `base`.
    """

    name: str
    number: int
    base: str
    about: str = ""
    exceptions: Mapping[Kind, Choice] | None = field(default=None)
    rest: str = ""

    @property
    def bits(self) -> float:
        """Bits a weight of `base`."""
        kind = TYPES[self.base]
        return kind.block_bytes * 8 / kind.block_values

    @property
    def is_ours(self) -> bool:
        return self.exceptions is not None

    def type_of(self, tensor: str, layers: int, experts: int) -> str:
        """Return the type name a mix of ours gives to a matrix, before its shape is considered.

        layers, experts: of the model. Source: lucebox_quantize_type of the overlay.
        """
        assert self.exceptions is not None
        kind = kind_of(tensor)
        choice = self._choice(self.exceptions, kind, experts)
        block = re.match(r"blk\.(\d+)\.", tensor)
        chosen = choice.at(int(block[1]) if block else None, layers) if choice else self.rest or self.base
        return "Q8_0" if kind is K.DRAFT_PROJ and chosen in BELOW_5_BITS else chosen

    @staticmethod
    def _choice(exceptions: Mapping[Kind, Choice], kind: Kind, experts: int) -> Choice | None:
        for expert, plain in PAIRS:
            if kind is expert or (kind is plain and not experts):
                return exceptions.get(expert) or exceptions.get(plain)
        return exceptions.get(kind)


def kind_of(tensor: str) -> Kind:
    """Return what a tensor does, by its name."""
    if tensor in WHOLE_NAMES:
        return WHOLE_NAMES[tensor]
    return next((kind for part, kind in KINDS if part in tensor), K.REST)


def fitting(name: str, columns: int) -> TensorType:
    """Return type `name`, or what llama-quantize takes instead when rows are no multiple of its block."""
    replaced = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
    for candidate in (name, replaced.get(name, name)):
        if columns % TYPES[candidate].block_values == 0:
            return TYPES[candidate]
    return TYPES["F16"]


def _attention(attn_type: str, layers: Layers | None, in_layers: str, *kinds: Kind) -> dict[Kind, Choice]:
    return {kind: Choice(attn_type, layers, in_layers) for kind in kinds}


def _strix(embedding: str) -> dict[Kind, Choice]:
    return {K.TOKEN_EMBD: Choice(embedding), K.ATTN_K: Choice(FP4), K.ATTN_V: Choice(FP4)}


OURS = (
    FileType(
        FP4,
        100,
        FP4,
        "4-bit with two scales a block, Q5_K and Q6_K where it counts",
        {
            K.OUTPUT: Choice("Q6_K"),
            K.ATTN_V: Choice("Q5_K"),
            K.ATTN_OUT: Choice("Q5_K"),
            K.FFN_DOWN: Choice("Q6_K", lambda i, n: i >= 2 * n // 3, "Q5_K"),
            K.FFN_GATE: Choice(FP4, more_bits, "Q5_K"),
        },
    ),
    FileType(FP4 + "_LEAN", 101, FP4, "all 4-bit, embedding Q5_K", {K.TOKEN_EMBD: Choice("Q5_K")}),
    FileType(FP4 + "_COHERENT", 102, FP4, "all 4-bit, embedding Q6_K", {K.TOKEN_EMBD: Choice("Q6_K")}),
    FileType(FP4_FAST, 103, FP4_FAST, "all 4-bit with one scale a block", {}),
    FileType(
        FP4_FAST + "_COHERENT", 104, FP4_FAST, "the same, embedding Q6_K", {K.TOKEN_EMBD: Choice("Q6_K")}
    ),
    FileType(FP4 + "_STRIX", 105, FP4_FAST, "the same, K and V with two scales", _strix("Q6_K")),
    FileType(FP4 + "_STRIX_LEAN", 106, FP4_FAST, "the same, embedding Q5_K", _strix("Q5_K")),
    FileType(
        FP6,
        110,
        FP6,
        "6-bit, 8-bit at both ends of the model",
        {
            **_attention(FP6, lambda i, n: i < n // 16, FP8, K.ATTN_K, K.ATTN_V, K.ATTN_Q, K.ATTN_OUT),
            K.ATTN_QKV: Choice(FP8),
            K.FFN_DOWN: Choice(FP6, lambda i, n: i < n // 16 or i >= 7 * n // 8, FP8),
        },
    ),
    FileType(FP8, 111, FP8, "8-bit", {K.ATTN_QKV: Choice("Q8_0")}),
    FileType(
        FP3,
        112,
        FP3,
        "3-bit, much of it in 4 to 6 bits",
        {
            K.TOKEN_EMBD: Choice(FP4_FAST),
            K.OUTPUT: Choice(FP4_FAST),
            **_attention("Q4_K", lambda i, n: i < n // 2, "Q5_K", K.ATTN_K, K.ATTN_V),
            **_attention("Q5_K", None, "", K.ATTN_Q, K.ATTN_OUT),
            K.ATTN_QKV: Choice("Q4_K"),
            K.FFN_DOWN: Choice(FP3, lambda i, n: _wide_ends(i, n) or i >= 2 * n // 3, "Q5_K"),
            K.FFN_GATE: Choice(FP3, _wide_ends, FP6),
        },
    ),
    FileType(FP2, 118, FP2, "all 2-bit, output Q6_K", {K.OUTPUT: Choice("Q6_K")}),
    FileType(
        FP2 + "_STRIX",
        119,
        FP2,
        "routed experts 2-bit (gate, up) and 3-bit (down), the rest 4-bit",
        {
            **_strix("Q6_K"),
            K.EXPERT_GATE: Choice(FP2),
            K.EXPERT_UP: Choice(FP2),
            K.EXPERT_DOWN: Choice(FP3),
        },
        FP4_FAST,
    ),
)

# Upstream's, as llama-quantize lists them: name, general.file_type, type of most of the weights.
_UPSTREAM = (
    ("F32", 0, "F32"),
    ("BF16", 32, "BF16"),
    ("F16", 1, "F16"),
    ("Q8_0", 7, "Q8_0"),
    ("Q6_K", 18, "Q6_K"),
    ("Q5_K_M", 17, "Q5_K"),
    ("Q5_K_S", 16, "Q5_K"),
    ("Q5_1", 9, "Q5_1"),
    ("Q5_0", 8, "Q5_0"),
    ("Q4_K_M", 15, "Q4_K"),
    ("Q4_K_S", 14, "Q4_K"),
    ("Q4_1", 3, "Q4_1"),
    ("Q4_0", 2, "Q4_0"),
    ("IQ4_NL", 25, "IQ4_NL"),
    ("IQ4_XS", 30, "IQ4_XS"),
    ("MXFP4_MOE", 38, "MXFP4"),
    ("Q3_K_L", 13, "Q3_K"),
    ("Q3_K_M", 12, "Q3_K"),
    ("Q3_K_S", 11, "Q3_K"),
    ("IQ3_M", 27, "IQ3_S"),
    ("IQ3_S", 26, "IQ3_S"),
    ("IQ3_XS", 22, "IQ3_S"),
    ("IQ3_XXS", 23, "IQ3_XXS"),
    ("Q2_K", 10, "Q2_K"),
    ("Q2_K_S", 21, "Q2_K"),
    ("IQ2_M", 29, "IQ2_S"),
    ("IQ2_S", 28, "IQ2_XS"),
    ("IQ2_XS", 20, "IQ2_XS"),
    ("IQ2_XXS", 19, "IQ2_XXS"),
    ("Q2_0", 41, "Q2_0"),
    ("TQ2_0", 37, "TQ2_0"),
    ("TQ1_0", 36, "TQ1_0"),
    ("IQ1_M", 31, "IQ1_M"),
    ("IQ1_S", 24, "IQ1_S"),
    ("Q1_0", 40, "Q1_0"),
)
UPSTREAM = tuple(FileType(*row) for row in _UPSTREAM)
FILE_TYPES = MappingProxyType({t.name.lower(): t for t in (*OURS, *UPSTREAM)})
# Short names people use.
ALIASES = {
    "rocmfp2": FP2,
    "rocmfp2_strix": FP2 + "_STRIX",
    "rocmfp3": FP3,
    "rocmfp4": FP4,
    "rocmfp4_fast": FP4_FAST,
    "rocmfp4_strix": FP4 + "_STRIX",
    "rocmfp6": FP6,
    "rocmfp8": FP8,
    "q3_k": "Q3_K_M",
    "q4_k": "Q4_K_M",
    "q5_k": "Q5_K_M",
}


def find_file_type(name: str) -> FileType:
    """Return the file type called `name`, in any case. Raises RequestError with a suggestion."""
    lower = name.lower()
    found = FILE_TYPES.get(ALIASES.get(lower, name).lower())
    if found is None:
        raise RequestError(
            f"no output type '{name}'{did_you_mean(name, [*FILE_TYPES, *ALIASES])}",
            hint="lucebox quantize --list-types",
        )
    return found
