"""Conversions to ROCmFPX types in Python: importance by expert and group, rules, keys, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imatrix_maker import write_imatrix
from synthetic_checkpoint import CONFIG, make_tensors, save_checkpoint, small_config

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.formats import convert as stage
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import ConversionPlan, plan_conversion
from pylucebox.formats.encoders import NumpyEncoder
from pylucebox.formats.encoding import Encoding
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.ledger import Role
from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY
from pylucebox.formats.rocmfpx_search import search_scales
from pylucebox.formats.rules import read_rules

GROUPED, EXPERTS, JOINED = "blk.1.attn_output_a.weight", "blk.1.ffn_down_exps.weight", "nextn.eh_proj.weight"
LAYERS = small_config()["num_hidden_layers"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config()
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    return save_checkpoint(folder, config, make_tensors(config, "mtp"))


def encoded(source: Path, role: Role, mix: str, suffix: str, encoding: Encoding | None = None) -> np.ndarray:
    """The bytes of the tensor whose name ends so, (rows, bytes a row), encoded some rows at a time."""
    plan = plan_conversion(open_checkpoint(source), role, mix, source.parent / "x", encoding=encoding)
    (tensor,) = (t for t in plan.tensors if t.info.name.endswith(suffix))
    step = replace(plan, chunk_values=37 * tensor.info.shape[-1])
    return np.concatenate(list(stage._chunks(step, tensor, [])))


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize(
    ("role", "mix", "suffix", "type_id", "slices"),
    [
        (Role.TARGET, "q2_0_rocmfp2_strix", EXPERTS, 104, 4),
        (Role.TARGET, "q4_0_rocmfp4_fast", GROUPED, 101, 2),
        (Role.MTP, "q6_0_rocmfpx", JOINED, 102, 1),
    ],
    ids=["experts", "groups", "joined"],
)
def test_every_slice_reaches_its_rows(
    source: Path, tmp_path: Path, role: Role, mix: str, suffix: str, type_id: int, slices: int, search: bool
) -> None:
    values = encoded(source, role, "f32", suffix).view(np.float32)
    rng = np.random.default_rng(4)
    sums = rng.gamma(0.5, 9, (slices, values.shape[1])).astype(np.float32)
    counts = rng.integers(1, 9, (slices, 1)).astype(np.float32)
    stored = (sums, counts) if suffix == EXPERTS else (sums.reshape(1, -1), counts[:1])
    name = f"blk.{LAYERS}.{JOINED}" if suffix == JOINED else suffix
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {name: stored}))
    found = encoded(source, role, mix, suffix, Encoding(NumpyEncoder(search), matrix))
    importance, step = sums / (counts if suffix == EXPERTS else counts[:1]), len(values) // slices
    codec = Codec.by_id[type_id]
    encode = search_scales if search else lambda codec, x, w: codec.encode(x, w)
    wanted = [encode(codec, values[i * step : (i + 1) * step], importance[i]) for i in range(slices)]
    assert np.array_equal(found, np.concatenate(wanted))
    assert not np.array_equal(found, encoded(source, role, mix, suffix)), "importance changed nothing"


def test_keys_say_what_was_done(source: Path, tmp_path: Path) -> None:
    ones = np.ones((1, 64))
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {"blk.0.attn_q_a.weight": (ones, ones[:, :1])}))
    encoding = Encoding(NumpyEncoder(True), matrix)
    plan = plan_conversion(open_checkpoint(source), Role.TARGET, "rocmfp2", tmp_path / "x", encoding=encoding)
    assert any("no entry for" in note for note in plan.notes)
    keys = keys_of(plan, tmp_path)
    wanted = {
        DIALECT_KEY: "A",
        "general.file_type": 118,
        "lucebox.recipe": "q2_0_rocmfp2",
        "lucebox.quantize.search": True,
        "quantize.imatrix.file": "i.gguf",
        "quantize.imatrix.dataset": "some.txt",
        "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 4,
    }
    assert {key: keys.get(key) for key in wanted} == wanted
    plain = plan_conversion(open_checkpoint(source), Role.TARGET, "rocmfp4_fast", tmp_path / "x")
    assert not keys_of(plain, tmp_path).keys() & {
        DIALECT_KEY,
        "lucebox.quantize.search",
        "quantize.imatrix.file",
    }


def keys_of(plan: ConversionPlan, folder: Path) -> dict[str, Any]:
    path = folder / "header.gguf"
    path.write_bytes(plan.header.ljust(plan.size_bytes, b"\0"))
    return {key: entry.value for key, entry in read_header(path).keys.items()}


def types_of(source: Path, folder: Path, mix: str, rules: str, is_pure: bool = False) -> dict[str, str]:
    (folder / "r").write_text(rules)
    encoding = Encoding(rules=read_rules(folder / "r") if rules else None)
    plan = plan_conversion(
        open_checkpoint(source), Role.TARGET, mix, folder / "x", encoding=encoding, is_pure=is_pure
    )
    return {t.info.name: t.type.name for t in plan.tensors}


def test_rules_change_what_the_recipe_gives(source: Path, tmp_path: Path) -> None:
    plain = types_of(source, tmp_path, "rocmfp4_fast", "")
    ruled = types_of(source, tmp_path, "rocmfp4_fast", "blk.0.*_exps = q3_0_rocmfpx\n. = q8_0_rocmfpx\n")
    changed = {name for name in plain if plain[name] != ruled[name]}
    assert {ruled[name] for name in changed if "blk.0.ffn" in name and "exps" in name} == {"Q3_0_ROCMFPX"}
    assert {plain[name] for name in changed} == {"Q4_0_ROCMFP4_FAST"}
    kept = {name for name in plain if "hc_" in name or "gate_inp" in name or "compressor" in name}
    assert kept and all(plain[name] == ruled[name] for name in kept)
    assert types_of(source, tmp_path, "f16", "attn_kv\\. = q8_0\n")["blk.1.attn_kv.weight"] == "Q8_0"


def test_pure_is_one_type(source: Path, tmp_path: Path) -> None:
    found = types_of(source, tmp_path, "rocmfp2_strix", "", is_pure=True)
    assert set(found.values()) == {"F32", "BF16", "I32", "Q2_0_ROCMFP2"}


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ("hc_ = q8_0\n", RequestError, "'hc_' matches only tensors that stay as stored"),
        ("exps = q4_k\n", RequestError, "cannot make blk.0.ffn_gate_exps.weight Q4_K: rows of 64"),
        (
            "exps = q4_0\n",
            MissingError,
            "blk.0.ffn_gate_exps.weight: type Q4_0 needs the encoders of a build",
        ),
        ("attn_q_a.w = nothing\n", RequestError, "r:1: no tensor type 'nothing'"),
    ],
)
def test_rules_that_cannot_be_met(
    source: Path, tmp_path: Path, rules: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as failed:
        types_of(source, tmp_path, "rocmfp4_fast", rules)
    assert message in str(failed.value)


def test_options_without_effect_are_refused(source: Path, tmp_path: Path) -> None:
    ones = np.ones((1, 64))
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {"blk.0.attn_q_a.weight": (ones, ones[:, :1])}))
    checkpoint, out = open_checkpoint(source), tmp_path / "x"
    for recipe, encoding in (("bf16", Encoding(imatrix=matrix)), ("q8_0", Encoding(NumpyEncoder(True)))):
        with pytest.raises(RequestError, match=r"--(imatrix|search) has no effect on BF16, F32"):
            plan_conversion(checkpoint, Role.TARGET, recipe, out, encoding=encoding)
    with pytest.raises(RequestError, match="--pure has no meaning with --to mxfp4"):
        plan_conversion(checkpoint, Role.TARGET, "mxfp4", out, is_pure=True)


def test_a_type_without_encoder_names_the_build(tmp_path: Path) -> None:
    few = {"num_hidden_layers": 1, "compress_ratios": [0, 0], "num_hash_layers": 0, "n_routed_experts": 4}
    config = {**CONFIG, **few}
    folder = save_checkpoint(tmp_path / "wide", config, make_tensors(config, None))
    with pytest.raises(MissingError, match=r"token_embd\.weight: type Q5_K needs the encoders of a build"):
        plan_conversion(open_checkpoint(folder), Role.TARGET, "q4_0_rocmfp4_lean", tmp_path / "x.gguf")


def test_importance_of_another_model_is_refused_before_writing(source: Path, tmp_path: Path) -> None:
    ones = np.ones((3, 64))
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {EXPERTS: (ones, ones[:, :1])}))
    with pytest.raises(RequestError, match="needs"):
        plan_conversion(
            open_checkpoint(source), Role.TARGET, "rocmfp3", tmp_path / "x", encoding=Encoding(imatrix=matrix)
        )
