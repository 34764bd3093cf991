"""File types: their names, and the mixes as the format's table states them, layer by layer."""

from pathlib import Path

import pytest

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.presets import ALIASES, FILE_TYPES, OURS, find_file_type, fitting, kind_of
from pylucebox.formats.recipes import MIXES, RECIPES, find_recipe

# A mix, a tensor, layers of the model -> its type. Without an entry the type is the mix's main one.
TABLE = [
    ("q4_0_rocmfp4", "output.weight", 32, "Q6_K"),
    ("q4_0_rocmfp4", "blk.0.attn_v.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4", "blk.0.attn_k.weight", 32, "Q4_0_ROCMFP4"),
    ("q4_0_rocmfp4", "blk.20.ffn_down.weight", 32, "Q6_K"),
    ("q4_0_rocmfp4", "blk.21.ffn_down.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4", "blk.3.ffn_gate.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4", "blk.4.ffn_gate.weight", 32, "Q4_0_ROCMFP4"),
    ("q4_0_rocmfp4", "blk.6.ffn_gate.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4", "blk.28.ffn_gate_exps.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4_lean", "token_embd.weight", 32, "Q5_K"),
    ("q4_0_rocmfp4_lean", "output.weight", 32, "Q4_0_ROCMFP4"),
    ("q4_0_rocmfp4_coherent", "token_embd.weight", 32, "Q6_K"),
    ("q4_0_rocmfp4_fast", "token_embd.weight", 32, "Q4_0_ROCMFP4_FAST"),
    ("q4_0_rocmfp4_fast_coherent", "token_embd.weight", 32, "Q6_K"),
    ("q4_0_rocmfp4_strix", "blk.9.attn_k.weight", 32, "Q4_0_ROCMFP4"),
    ("q4_0_rocmfp4_strix", "blk.9.attn_q.weight", 32, "Q4_0_ROCMFP4_FAST"),
    ("q4_0_rocmfp4_strix_lean", "token_embd.weight", 32, "Q5_K"),
    ("q6_0_rocmfpx", "blk.1.attn_q.weight", 32, "Q8_0_ROCMFPX"),
    ("q6_0_rocmfpx", "blk.2.attn_q.weight", 32, "Q6_0_ROCMFPX"),
    ("q6_0_rocmfpx", "blk.9.attn_qkv.weight", 32, "Q8_0_ROCMFPX"),
    ("q6_0_rocmfpx", "blk.27.ffn_down.weight", 32, "Q6_0_ROCMFPX"),
    ("q6_0_rocmfpx", "blk.28.ffn_down.weight", 32, "Q8_0_ROCMFPX"),
    ("q8_0_rocmfpx", "blk.0.attn_qkv.weight", 32, "Q8_0"),
    ("q3_0_rocmfpx", "token_embd.weight", 32, "Q4_0_ROCMFP4_FAST"),
    ("q3_0_rocmfpx", "blk.15.attn_v.weight", 32, "Q5_K"),
    ("q3_0_rocmfpx", "blk.16.attn_v.weight", 32, "Q4_K"),
    ("q3_0_rocmfpx", "blk.16.attn_output.weight", 32, "Q5_K"),
    ("q3_0_rocmfpx", "blk.4.ffn_down.weight", 32, "Q3_0_ROCMFPX"),
    ("q3_0_rocmfpx", "blk.21.ffn_down.weight", 32, "Q5_K"),
    ("q3_0_rocmfpx", "blk.21.ffn_gate.weight", 32, "Q6_0_ROCMFPX"),
    ("q3_0_rocmfpx", "blk.22.ffn_gate.weight", 32, "Q3_0_ROCMFPX"),
    ("q2_0_rocmfp2", "output.weight", 32, "Q6_K"),
    ("q2_0_rocmfp2_strix", "blk.5.ffn_gate_exps.weight", 43, "Q2_0_ROCMFP2"),
    ("q2_0_rocmfp2_strix", "blk.5.ffn_up_exps.weight", 43, "Q2_0_ROCMFP2"),
    ("q2_0_rocmfp2_strix", "blk.5.ffn_down_exps.weight", 43, "Q3_0_ROCMFPX"),
    ("q2_0_rocmfp2_strix", "blk.5.ffn_up_shexp.weight", 43, "Q4_0_ROCMFP4_FAST"),
    ("q2_0_rocmfp2_strix", "blk.5.attn_kv.weight", 43, "Q4_0_ROCMFP4_FAST"),
    ("q2_0_rocmfp2_strix", "token_embd.weight", 43, "Q6_K"),
    ("q2_0_rocmfp2_strix", "blk.43.nextn.eh_proj.weight", 44, "Q8_0"),
    ("q6_0_rocmfpx", "blk.43.nextn.eh_proj.weight", 44, "Q6_0_ROCMFPX"),
    ("q3_0_rocmfpx", "fc.weight", 3, "Q8_0"),
]


@pytest.mark.parametrize(("mix", "tensor", "layers", "wanted"), TABLE)
def test_the_table(mix: str, tensor: str, layers: int, wanted: str) -> None:
    assert find_file_type(mix).type_of(tensor, layers, 8 if "exp" in tensor else 0) == wanted


def test_a_model_without_experts_has_its_weight_in_plain_ffns() -> None:
    strix = find_file_type("q2_0_rocmfp2_strix")
    assert [strix.type_of(f"blk.0.ffn_{part}.weight", 4, 0) for part in ("gate", "up", "down")] == [
        "Q2_0_ROCMFP2",
        "Q2_0_ROCMFP2",
        "Q3_0_ROCMFPX",
    ]
    assert strix.type_of("blk.0.ffn_up.weight", 4, 8) == "Q4_0_ROCMFP4_FAST"


def test_rows_that_do_not_fit_fall_back_as_llama_quantize_does() -> None:
    found = {
        name: [fitting(name, columns).name for columns in (256, 96, 40)] for name in ("Q4_K", "Q5_K", "Q6_K")
    }
    assert found == {
        "Q4_K": ["Q4_K", "Q5_0", "F16"],
        "Q5_K": ["Q5_K", "Q5_1", "F16"],
        "Q6_K": ["Q6_K", "Q8_0", "F16"],
    }
    assert [fitting("Q2_0_ROCMFP2", columns).name for columns in (96, 40)] == ["Q2_0_ROCMFP2", "F16"]


def test_twelve_mixes_of_known_numbers_and_types() -> None:
    numbers = {t.number for t in OURS}
    assert len(OURS) == 12 and numbers == {*range(100, 107), 110, 111, 112, 118, 119}
    assert len({t.number for t in FILE_TYPES.values()}) == len(FILE_TYPES)
    used = {t.base for t in FILE_TYPES.values()}
    used |= {c.type for t in OURS for c in (t.exceptions or {}).values()}
    assert used <= set(TYPES)


def test_the_page_lists_every_mix() -> None:
    page = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    assert all(f"| `{t.name.lower()}` | {t.number} |" in page for t in OURS)


def test_names_in_any_case_and_short() -> None:
    assert find_file_type("Q4_K_M") is FILE_TYPES["q4_k_m"]
    assert find_file_type("rocmfp2_strix").number == 119
    assert all(find_file_type(alias).name == name for alias, name in ALIASES.items())
    assert find_recipe("ROCmFP3").name == "q3_0_rocmfpx"
    assert not set(RECIPES) & set(MIXES)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("q2_0_rocmfp3", "q2_0_rocmfp2"), ("rocmfp", "rocmfp"), ("q4km", "q4_k_m"), ("Q4_K_X", "q4_k_s")],
)
def test_an_unknown_name_gets_a_suggestion(name: str, nearest: str) -> None:
    with pytest.raises(RequestError, match=f"no output type '{name}' \\(did you mean {nearest}") as failed:
        find_file_type(name)
    assert failed.value.hint == "lucebox quantize --list-types"


def test_a_type_that_only_quantize_writes_is_named_to_convert() -> None:
    with pytest.raises(RequestError, match="Q4_K_M: a conversion writes no such file") as failed:
        find_recipe("Q4_K_M")
    assert failed.value.hint == "convert --to exact, then `lucebox quantize IN OUT --to q4_k_m`"


def test_every_matrix_of_deepseek_v4_outside_the_ffn_is_of_no_special_kind() -> None:
    """As in upstream, whose table knows other names: attn_kv is neither K nor V."""
    for name in ("attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "indexer.attn_q_b"):
        assert kind_of(f"blk.2.{name}.weight").name == "REST"
