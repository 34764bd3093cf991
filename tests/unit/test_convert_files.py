"""Whole conversions of synthetic checkpoints, compared with values decoded in the test by other code."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray
from synthetic_checkpoint import (
    CONFIG,
    DSPARK,
    TINY_MODEL,
    Stored,
    make_tensors,
    save_checkpoint,
    small_config,
    values_of,
)

from pylucebox.core.errors import IntegrityError, MissingError, RequestError
from pylucebox.formats import convert as convert_module
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import check_disk, convert, plan_conversion, write_conversion
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.ledger import Role

# Names below blk.N and where their values come from, spelled out a second time.
LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn_q_a.weight": "attn.wq_a.weight",
    "attn_q_a_norm.weight": "attn.q_norm.weight",
    "attn_q_b.weight": "attn.wq_b.weight",
    "attn_kv.weight": "attn.wkv.weight",
    "attn_kv_a_norm.weight": "attn.kv_norm.weight",
    "attn_output_a.weight": "attn.wo_a.weight",
    "attn_output_b.weight": "attn.wo_b.weight",
    "attn_sinks.weight": "attn.attn_sink",
    "hc_attn_fn.weight": "hc_attn_fn",
    "hc_attn_base.weight": "hc_attn_base",
    "hc_attn_scale.weight": "hc_attn_scale",
    "hc_ffn_fn.weight": "hc_ffn_fn",
    "hc_ffn_base.weight": "hc_ffn_base",
    "hc_ffn_scale.weight": "hc_ffn_scale",
    "ffn_gate_inp.weight": "ffn.gate.weight",
    "exp_probs_b.bias": "ffn.gate.bias",
    "exp_probs_b_vl.bias": "ffn.gate.bias_vl",
    "ffn_gate_tid2eid.weight": "ffn.gate.tid2eid",
    "ffn_gate_shexp.weight": "ffn.shared_experts.w1.weight",
    "ffn_down_shexp.weight": "ffn.shared_experts.w2.weight",
    "ffn_up_shexp.weight": "ffn.shared_experts.w3.weight",
    "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
    "attn_compressor_gate.weight": "attn.compressor.wgate.weight",
    "attn_compressor_ape.weight": "attn.compressor.ape",
    "attn_compressor_norm.weight": "attn.compressor.norm.weight",
    "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight",
    "indexer.proj.weight": "attn.indexer.weights_proj.weight",
    "indexer_compressor_kv.weight": "attn.indexer.compressor.wkv.weight",
    "indexer_compressor_gate.weight": "attn.indexer.compressor.wgate.weight",
    "indexer_compressor_ape.weight": "attn.indexer.compressor.ape",
    "indexer_compressor_norm.weight": "attn.indexer.compressor.norm.weight",
}
EXPERTS = {"ffn_gate_exps.weight": "w1", "ffn_down_exps.weight": "w2", "ffn_up_exps.weight": "w3"}
ROOT = {
    "token_embd.weight": "embed.weight",
    "output.weight": "head.weight",
    "output_norm.weight": "norm.weight",
    "output_hc_fn.weight": "hc_head_fn",
    "output_hc_base.weight": "hc_head_base",
    "output_hc_scale.weight": "hc_head_scale",
}
DRAFTER_ROOT = {
    "fc.weight": "mtp.0.main_proj.weight",
    "enc.output_norm.weight": "mtp.0.main_norm.weight",
    "output_norm.weight": "mtp.2.norm.weight",
    "output_hc_fn.weight": "mtp.2.hc_head_fn",
    "output_hc_base.weight": "mtp.2.hc_head_base",
    "output_hc_scale.weight": "mtp.2.hc_head_scale",
    "markov_w1.weight": "mtp.2.markov_head.markov_w1.weight",
    "markov_w2.weight": "mtp.2.markov_head.markov_w2.weight",
    "conf_proj.weight": "mtp.2.confidence_head.proj.weight",
    "conf_proj.bias": "mtp.2.confidence_head.proj.bias",
}
EXACT = 1e-6
# Largest error by type, relative to the largest value of a row: half a step of its codes.
STEP = {"F32": EXACT, "BF16": EXACT, "F16": EXACT, "I32": 0, "MXFP4": EXACT, "Q8_0": 0.5 / 127 + 1e-3}


REFERENCES: dict[tuple[int, str], tuple[dict[str, Stored], NDArray[Any]]] = {}


def cached_reference(tensors: dict[str, Stored], *where: Any) -> NDArray[Any]:
    """Decode once for all recipes; float32 holds these values exactly."""
    key = (id(tensors), str(where[:2]))
    if key not in REFERENCES:
        # The dictionary is kept alive, so that its id stays its own.
        REFERENCES[key] = tensors, reference(tensors, *where).astype(np.float32)
    return REFERENCES[key][1]


def reference(tensors: dict[str, Stored], name: str, layer_prefix: str, root: dict[str, str]) -> NDArray[Any]:
    """Return the values that tensor `name` of the output must hold."""
    if name in root:
        return values_of(tensors, root[name])
    _, layer, rest = name.split(".", 2)
    if rest in EXPERTS:
        prefix = f"{layer_prefix}.{layer}.ffn.experts."
        count = len({n.split(".")[4] for n in tensors if n.startswith(prefix)})
        return np.stack([values_of(tensors, f"{prefix}{e}.{EXPERTS[rest]}.weight") for e in range(count)])
    return values_of(tensors, f"{layer_prefix}.{layer}.{LAYER[rest]}")


def read_back(path: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    """Return every tensor of a file by name as (type, values), decoded by the gguf package."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        data = tensor.data
        values = data if data.dtype == np.int32 else dequantize(data, tensor.tensor_type)
        found[tensor.name] = (tensor.tensor_type.name, np.asarray(values).reshape(shape))
    return found


def compare(path: Path, tensors: dict[str, Stored], layer_prefix: str, root: dict[str, str]) -> None:
    for name, (kind, values) in read_back(path).items():
        wanted = cached_reference(tensors, name, layer_prefix, root)
        assert values.shape == wanted.shape, name
        scale = np.abs(wanted).max(axis=-1, keepdims=True) if kind == "Q8_0" else 1
        assert np.abs(values - wanted).max() <= STEP[kind] * np.max(scale), (name, kind)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Stored]]:
    tensors = make_tensors(CONFIG, "mtp")
    return save_checkpoint(tmp_path_factory.mktemp("full"), CONFIG, tensors), tensors


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Stored]]:
    config = small_config()
    tensors = make_tensors(config, "dspark")
    return save_checkpoint(tmp_path_factory.mktemp("small"), config, tensors), tensors


def test_counts_of_the_full_checkpoint(full: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    plan = plan_conversion(open_checkpoint(full[0]), Role.TARGET, "mxfp4", tmp_path / "x.gguf")
    assert (plan.ledger.inputs, len(plan.tensors)) == (1047 + 135, 236)
    assert plan.ledger.skipped == {"belongs to the drafter file": 135}
    assert plan.ledger.written + plan.ledger.merged == 1047


@pytest.mark.parametrize("recipe", ["f32", "mxfp4"])
def test_full_target_holds_the_right_values(
    full: tuple[Path, dict[str, Stored]], tmp_path: Path, recipe: str
) -> None:
    out = tmp_path / "x.gguf"
    result = convert(full[0], recipe, out)
    compare(out, full[1], "layers", ROOT)
    assert result.size_bytes == out.stat().st_size and result.warnings == ()


@pytest.mark.parametrize("recipe", ["bf16", "f16", "q8_0", "exact"])
def test_small_target_holds_the_right_values(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, recipe: str
) -> None:
    convert(small[0], recipe, tmp_path / "x.gguf")
    compare(tmp_path / "x.gguf", small[1], "layers", ROOT)


@pytest.mark.parametrize("recipe", ["f32", "mxfp4", "q8_0"])
def test_drafter_holds_the_right_values(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, recipe: str
) -> None:
    out = tmp_path / "x.gguf"
    convert(small[0], recipe, out, Role.DRAFTER)
    compare(out, small[1], "mtp", DRAFTER_ROOT)
    header = read_header(out)
    assert header.value("dflash.target_layers") == (2, 3, 4)
    assert header.value("dflash.has_confidence_head") is True
    assert (
        header.value("dflash.sample_from_anchor") is True and header.value("dflash.attention.causal") is False
    )
    assert header.value("tokenizer.ggml.mask_token_id") == DSPARK["dspark_noise_token_id"]


def test_mtp_head_joins_both_projections(full: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    convert(full[0], "f32", out, Role.MTP)
    found = read_back(out)
    joined = np.hstack([values_of(full[1], f"mtp.0.{n}_proj.weight") for n in "eh"])
    assert np.abs(found["blk.8.nextn.eh_proj.weight"][1] - joined).max() <= EXACT
    assert np.array_equal(found["output_hc_base.weight"][1], values_of(full[1], "mtp.0.hc_head_base"))
    assert np.array_equal(found["token_embd.weight"][1], values_of(full[1], "embed.weight"))
    norm = found["blk.8.nextn.shared_head_norm.weight"][1]
    assert np.array_equal(norm, values_of(full[1], "mtp.0.norm.weight"))
    header = read_header(out)
    assert header.value("deepseek4.nextn_predict_layers") == 1 and header.value("deepseek4.block_count") == 9
    assert len(header.value("deepseek4.attention.compress_ratios")) == 9


@pytest.mark.parametrize(("experts", "recipe"), [("fp8", "f32"), ("fp8", "exact"), ("bf16", "bf16")])
def test_other_expert_storage(tmp_path: Path, experts: str, recipe: str) -> None:
    config = small_config()
    tensors = make_tensors(config, None, experts)
    out = tmp_path / "x.gguf"
    convert(save_checkpoint(tmp_path / "c", config, tensors), recipe, out)
    compare(out, tensors, "layers", ROOT)
    assert read_back(out)["blk.0.ffn_up_exps.weight"][0] == ("F32" if recipe == "f32" else "BF16")


def test_vision_parts(tmp_path: Path) -> None:
    config = small_config(vision_n_layers=2)
    tensors = make_tensors(config, "dspark")
    one = Stored("F32", (4,), np.arange(4, dtype="<f4").tobytes())
    for prefix in [f"layers.{n}" for n in range(4)] + [f"mtp.{n}" for n in range(3)]:
        tensors[f"{prefix}.ffn.gate.bias_vl"] = one
        tensors.setdefault(f"{prefix}.ffn.gate.bias", one)
    tensors["mtp.0.ffn.gate.tid2eid"] = tensors["layers.0.ffn.gate.tid2eid"]
    tensors |= dict.fromkeys(("vision.blocks.0.x", "aligner.w", "image_start", "image_newline"), one)
    checkpoint = open_checkpoint(save_checkpoint(tmp_path / "c", config, tensors))
    target = plan_conversion(checkpoint, Role.TARGET, "f32", tmp_path / "t.gguf")
    assert target.ledger.skipped["image part, not in a text model file"] == 4
    assert target.ledger.skipped["gate bias of a hash-routed layer, which routes by token id"] == 2
    write_conversion(target)
    found = read_back(tmp_path / "t.gguf")
    assert all(np.array_equal(found[f"blk.{n}.exp_probs_b_vl.bias"][1], [0, 1, 2, 3]) for n in range(4))
    assert "blk.0.exp_probs_b.bias" not in found
    drafter = plan_conversion(checkpoint, Role.DRAFTER, "f32", tmp_path / "d.gguf")
    assert drafter.ledger.skipped["routing of image tokens, which the drafter does not see"] == 4
    write_conversion(drafter)
    found = read_back(tmp_path / "d.gguf")
    assert not any("vl" in name or "tid2eid" in name for name in found)
    assert np.array_equal(found["blk.1.exp_probs_b.bias"][1], values_of(tensors, "mtp.1.ffn.gate.bias"))


def test_drafter_without_confidence_and_with_a_bias(tmp_path: Path) -> None:
    config = small_config()
    tensors = make_tensors(config, "dspark")
    weight = tensors.pop("mtp.2.confidence_head.proj.weight")
    out = tmp_path / "x.gguf"
    convert(save_checkpoint(tmp_path / "none", config, tensors), "f32", out, Role.DRAFTER)
    assert read_header(out).value("dflash.has_confidence_head") is False
    tensors["mtp.2.confidence_head.proj.weight"] = weight
    tensors["mtp.2.confidence_head.proj.bias"] = Stored("F32", (1,), b"\0\0\x80\x3f")
    convert(save_checkpoint(tmp_path / "bias", config, tensors), "f32", out, Role.DRAFTER)
    assert read_back(out)["conf_proj.bias"][1].tolist() == [1]


def test_heads_under_flat_names_and_from_a_file_of_their_own(tmp_path: Path) -> None:
    config = small_config()
    tensors = make_tensors(config, "dspark")
    wanted = [values_of(tensors, f"mtp.2.markov_head.markov_w{n}.weight") for n in (1, 2)]
    heads = {
        f"dspark_markov_head.markov_w{n}.weight": tensors.pop(f"mtp.2.markov_head.markov_w{n}.weight")
        for n in (1, 2)
    }
    heads["dspark_confidence_head.weight"] = tensors.pop("mtp.2.confidence_head.proj.weight")
    apart = save_checkpoint(tmp_path / "apart", config, tensors)
    aux = save_checkpoint(tmp_path / "aux", config, heads, 1) / "model-00001-of-00001.safetensors"
    inside = save_checkpoint(tmp_path / "inside", config, tensors | heads)
    for number, checkpoint in enumerate((open_checkpoint(apart, aux), open_checkpoint(inside))):
        out = tmp_path / f"{number}.gguf"
        write_conversion(plan_conversion(checkpoint, Role.DRAFTER, "f32", out))
        found = read_back(out)
        assert np.array_equal(found["markov_w1.weight"][1], wanted[0]) and "conf_proj.weight" in found
        assert np.array_equal(found["markov_w2.weight"][1], wanted[1])
        plan_conversion(checkpoint, Role.TARGET, "f32", out)  # and the target leaves them aside
    with pytest.raises(RequestError, match="is in the checkpoint too"):
        open_checkpoint(inside, aux)


PROTECTED = {
    "hc_attn_fn.weight": "F32",
    "hc_ffn_base.weight": "F32",
    "attn_compressor_ape.weight": "F32",
    "attn_compressor_kv.weight": "BF16",
    "indexer_compressor_gate.weight": "BF16",
    "indexer.proj.weight": "BF16",
    "ffn_gate_inp.weight": "BF16",
    "attn_sinks.weight": "F32",
    "attn_norm.weight": "F32",
}


@pytest.mark.parametrize("recipe", ["q8_0", "mxfp4", "bf16", "f16", "exact"])
def test_small_precious_tensors_stay_as_stored(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, recipe: str
) -> None:
    plan = plan_conversion(open_checkpoint(small[0]), Role.TARGET, recipe, tmp_path / "x.gguf")
    types = {t.info.name: t.type.name for t in plan.tensors}
    for name, kind in PROTECTED.items():
        assert types[f"blk.1.{name}"] == kind, name
    assert types["blk.0.ffn_gate_tid2eid.weight"] == "I32"
    assert not [n for n, kind in types.items() if kind == "I32" and "tid2eid" not in n]


def test_keys_have_the_types_that_the_loader_wants(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path
) -> None:
    out = tmp_path / "x.gguf"
    convert(small[0], "f32", out)
    header = read_header(out)
    types = {
        k.removeprefix("deepseek4."): (e.type.name, e.item_type.name if e.item_type else None)
        for k, e in header.keys.items()
        if k.startswith("deepseek4.")
    }
    floats = {
        "rope.freq_base", "rope.scaling.factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "attention.layer_norm_rms_epsilon", "attention.compress_rope_freq_base", "expert_weights_scale",
        "hyper_connection.epsilon",
    }  # fmt: skip
    special = {
        "rope.scaling.type": ("STRING", None),
        "expert_weights_norm": ("BOOL", None),
        "attention.compress_ratios": ("ARRAY", "INT32"),
        "swiglu_clamp_exp": ("ARRAY", "FLOAT32"),
        "swiglu_clamp_shexp": ("ARRAY", "FLOAT32"),
    }
    for key, kind in types.items():
        wanted = special.get(key, ("FLOAT32", None) if key in floats else ("UINT32", None))
        assert kind == wanted, key
    assert len(types) == 39
    assert header.value("deepseek4.attention.compress_ratios") == (0, 4, 128, 4)
    assert header.value("deepseek4.swiglu_clamp_exp") == (2.0,) * 4
    assert header.value("deepseek4.expert_gating_func") == 4
    assert header.value("deepseek4.embedding_length_out") == 256
    assert header.value("deepseek4.rope.scaling.original_context_length") == 4096


def test_the_embedded_model(tmp_path: Path) -> None:
    for role, outputs in ((Role.TARGET, 240), (Role.DRAFTER, 81)):
        plan = plan_conversion(open_checkpoint(TINY_MODEL), role, "exact", tmp_path / "x.gguf")
        assert len(plan.tensors) == outputs and plan.notes == ()
    convert(TINY_MODEL, "exact", tmp_path / "x.gguf")
    header = read_header(tmp_path / "x.gguf")
    assert header.value("lucebox.default_thinking") is False and header.value("general.name") == "tiny-ds4"
    assert header.value("general.sampling.temp") == 0.0


def test_progress_reaches_the_size_and_the_same_input_gives_the_same_bytes(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    convert(small[0], "q8_0", tmp_path / "a.gguf", progress=lambda done, total: seen.append((done, total)))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert seen[-1][1] - 32 <= seen[-1][0] <= seen[-1][1] == (tmp_path / "a.gguf").stat().st_size
    checkpoint = open_checkpoint(small[0])
    plan = plan_conversion(checkpoint, Role.TARGET, "q8_0", tmp_path / "b.gguf", max_memory_bytes=32 << 20)
    write_conversion(plan)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def full_disk(after: int) -> Any:
    written = 0

    def write(self: Any, data: Any) -> int:
        nonlocal written
        written += memoryview(data).nbytes
        if written > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.stream.write(data))

    return write


@pytest.mark.parametrize("after", [0, 50_000, 200_000])
def test_a_full_disk_leaves_nothing(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    class Disk:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

        write = full_disk(after)

    inner = convert_module._write_all
    monkeypatch.setattr(
        convert_module, "_write_all", lambda plan, stream, *rest: inner(plan, Disk(stream), *rest)
    )
    with pytest.raises(MissingError, match="the disk is full"):
        convert(small[0], "q8_0", tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_file_size_limit_is_reported_like_a_full_disk(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(MissingError, match="the disk is full"):
            convert(small[0], "f32", tmp_path / "x.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_is_seen_before_writing(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2_000_000))
    plans = [
        plan_conversion(open_checkpoint(small[0]), role, "q8_0", tmp_path / f"{role.value}.gguf")
        for role in (Role.TARGET, Role.DRAFTER)
    ]
    assert all(p.size_bytes < 2_000_000 for p in plans) and sum(p.size_bytes for p in plans) > 2_000_000
    with pytest.raises(MissingError, match="bytes of disk are needed, 2000000 are free"):
        check_disk(plans)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_the_old_file(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    out.write_bytes(b"old")

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(small[0], "q8_0", out, progress=interrupt)
    assert out.read_bytes() == b"old" and list(tmp_path.iterdir()) == [out]


def test_a_file_that_does_not_read_back_is_not_kept(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = convert_module._write_all

    def flipped(plan: Any, stream: Any, *rest: Any) -> None:
        inner(plan, stream, *rest)
        stream.seek(len(plan.header) - 200)
        stream.write(b"\x01")

    monkeypatch.setattr(convert_module, "_write_all", flipped)
    with pytest.raises((IntegrityError, RequestError)):
        convert(small[0], "q8_0", tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("out", "what"), [("", "is a folder"), ("absent/x.gguf", "no such folder")])
def test_impossible_outputs(
    small: tuple[Path, dict[str, Stored]], tmp_path: Path, out: str, what: str
) -> None:
    with pytest.raises(RequestError, match=what):
        convert(small[0], "f32", tmp_path / out)


def test_a_shard_is_never_overwritten(small: tuple[Path, dict[str, Stored]]) -> None:
    with pytest.raises(RequestError, match="is part of the checkpoint"):
        convert(small[0], "f32", small[0] / "model-00001-of-00003.safetensors")


def test_two_conversions_do_not_share_a_file(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    tried: list[str] = []

    def again(done: int, total: int) -> None:
        if not tried:
            tried.append("")
            with pytest.raises(RequestError, match="another command is writing it"):
                convert(small[0], "bf16", out)

    convert(small[0], "q8_0", out, progress=again)
    assert tried and read_header(out).value("lucebox.recipe") == "q8_0" and list(tmp_path.iterdir()) == [out]


def test_a_stale_partial_is_no_obstacle(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    (tmp_path / "x.gguf.partial").write_bytes(bytes(10_000_000))
    result = convert(small[0], "q8_0", tmp_path / "x.gguf")
    assert (tmp_path / "x.gguf").stat().st_size == result.size_bytes
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_unknown_recipe_suggests_one(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no output type 'q8' \(did you mean q8_0\?\)"):
        convert(small[0], "q8", tmp_path / "x.gguf")


def test_rows_that_do_not_fit_the_block(tmp_path: Path) -> None:
    config = small_config(dspark_markov_rank=48, moe_intermediate_size=48)
    tensors = make_tensors(config, None, "bf16")
    with pytest.raises(RequestError, match=r"blk.0.ffn_down_shexp.weight cannot be Q8_0: 48 columns"):
        convert(save_checkpoint(tmp_path / "c", config, tensors), "q8_0", tmp_path / "x.gguf")


def patched(tensors: dict[str, Stored], name: str, position: int, value: bytes) -> dict[str, Stored]:
    old = tensors[name]
    data = old.data[:position] + value + old.data[position + len(value) :]
    return {**tensors, name: Stored(old.dtype, old.shape, data)}


BAD_VALUES = [
    ("layers.1.attn.wq_a.weight", 5, b"\x7f", "FP8 code that is not a number"),
    ("layers.1.attn.wq_a.weight", 5, b"\xff", "FP8 code that is not a number"),
    ("layers.1.attn.wq_a.scale", 0, b"\xff", "scale code 255"),
    ("layers.2.ffn.experts.1.w2.scale", 7, b"\xff", "scale code 255"),
    ("embed.weight", 10, b"\xc0\x7f", "infinity or a value that is not a number"),
    ("norm.weight", 2, b"\x80\xff", "infinity or a value that is not a number"),
    ("layers.3.ffn.gate.bias", 4, b"\x00\x00\xc0\x7f", "infinity or a value that is not a number"),
    ("layers.0.ffn.gate.tid2eid", 8, (4).to_bytes(8, "little"), "expert id 4, outside 0 to 3"),
    ("layers.0.ffn.gate.tid2eid", 16, b"\xff" * 8, "expert id -1, outside 0 to 3"),
]


@pytest.mark.parametrize("recipe", ["f32", "exact", "q8_0"])
@pytest.mark.parametrize(("name", "position", "value", "what"), BAD_VALUES)
def test_values_that_are_not_numbers(
    small: tuple[Path, dict[str, Stored]],
    tmp_path: Path,
    name: str,
    position: int,
    value: bytes,
    what: str,
    recipe: str,
) -> None:
    folder = save_checkpoint(tmp_path / "c", small_config(), patched(small[1], name, position, value))
    with pytest.raises(RequestError) as caught:
        convert(folder, recipe, tmp_path / "x.gguf")
    weight = name.replace(".scale", ".weight")
    assert (
        what in caught.value.message and weight in caught.value.message and "\n" not in caught.value.message
    )
    assert ".safetensors" in caught.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_repeated_expert_ids_are_a_warning(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    ids = np.frombuffer(small[1]["layers.1.ffn.gate.tid2eid"].data, "<i8").reshape(-1, 2).copy()
    ids[3:5] = 1
    tensors = {**small[1], "layers.1.ffn.gate.tid2eid": Stored("I64", ids.shape, ids.tobytes())}
    result = convert(save_checkpoint(tmp_path / "c", small_config(), tensors), "f32", tmp_path / "x.gguf")
    assert result.warnings == ("layers.1.ffn.gate.tid2eid: 2 tokens name an expert twice",)


def test_wrong_total_size_is_a_note(small: tuple[Path, dict[str, Stored]], tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "c", small_config(), small[1])
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["metadata"]["total_size"] = 7
    index.write_text(json.dumps(content))
    plan = plan_conversion(open_checkpoint(folder), Role.TARGET, "f32", tmp_path / "x.gguf")
    assert "total_size says 7" in plan.notes[0]
