"""The ledger: a checkpoint with anything missing, extra, misshapen or foreign is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_checkpoint import CONFIG, Stored, make_tensors, save_checkpoint, small_config

from pylucebox.core.errors import RequestError
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.ledger import Role, account

Tensors = dict[str, Stored]
WQ_A = "layers.1.attn.wq_a"
EXPERT = "layers.2.ffn.experts.3.w2"


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return make_tensors(small_config(), "dspark")


def one(dtype: str, *shape: int) -> Stored:
    size = {"F32": 4, "BF16": 2, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F64": 8}[dtype]
    total = size
    for extent in shape:
        total *= extent
    return Stored(dtype, shape, bytes(total))


def refuse(folder: Path, role: Role = Role.TARGET) -> RequestError:
    with pytest.raises(RequestError) as caught:
        account(open_checkpoint(folder), role)
    assert "\n" not in caught.value.message and str(folder) in caught.value.message and caught.value.hint
    return caught.value


# Tensor, what replaces it (nothing: it is removed), what the message says.
Change = tuple[str, tuple[Any, ...] | None, str]
CHANGES: list[Change] = [
    ("layers.3.attn.wkv.weight", None, "missing: layers.3.attn.wkv.weight"),
    ("layers.0.attn.q_norm.weight", None, "missing: layers.0.attn.q_norm.weight"),
    (EXPERT + ".weight", None, f"missing: {EXPERT}.weight"),
    ("layers.1.ffn.gate.tid2eid", None, "missing: layers.1.ffn.gate.tid2eid"),
    ("layers.2.ffn.gate.bias", None, "missing: layers.2.ffn.gate.bias"),
    (WQ_A + ".scale", None, f"missing: {WQ_A}.scale"),
    (EXPERT + ".scale", None, f"missing: {EXPERT}.scale"),
    (WQ_A + ".weight", ("BF16", 64, 64), f"no FP8 or FP4 weight: {WQ_A}.scale"),
    ("layers.0.x.scale", ("F8_E8M0", 1, 1), "no FP8 or FP4 weight: layers.0.x.scale"),
    ("layers.0.attn.wq_c.weight", ("F32", 3), "no place in this model: layers.0.attn.wq_c"),
    ("layers.4.attn_norm.weight", ("BF16", 64), "no place in this model: layers.4"),
    ("layers.0.ffn.experts.4.w1.weight", ("BF16", 1), "no place in this model: layers.0.ffn.experts.4.w1"),
    ("layers.0.attn.compressor.ape", ("F32", 4, 128), "no place in this model"),  # ratio 0 has none
    ("layers.2.attn.indexer.wq_b.weight", ("BF16", 4), "no place in this model"),  # nor has ratio 128
    ("layers.0.hc_attn.scale", ("F32", 3), "layers.0.hc_attn.scale"),  # not hc_attn_scale
    (WQ_A + ".weight", ("F8_E4M3", 64, 65), "shape [64, 65], expected [64, 64]"),
    ("embed.weight", ("BF16", 64, 320), "shape [64, 320], expected [320, 64]"),
    (WQ_A + ".scale", ("F8_E8M0", 1, 2), "shape [1, 2], expected [1, 1]"),
    (EXPERT + ".scale", ("F8_E8M0", 64, 1), "shape [64, 1], expected [64, 2]"),
    (EXPERT + ".weight", ("I8", 64, 64), "shape [64, 64], expected [64, 32]"),
    ("norm.weight", ("BF16", 64, 1), "shape [64, 1], expected [64]"),
    ("norm.weight", ("F8_E4M3", 64), "is F8_E4M3, expected F32 or BF16 or F16"),
    ("layers.0.ffn.gate.tid2eid", ("F32", 320, 2), "is F32, expected I64 or I32"),
    (WQ_A + ".scale", ("F32", 1, 1), "is F32, expected F8_E8M0"),
    ("head.weight", ("F64", 320, 64), "is F64, expected"),
    (EXPERT + ".weight", ("BF16", 64, 64), "different dtypes: ['BF16', 'I8']"),
]


def changed(tensors: Tensors, name: str, replacement: tuple[Any, ...] | None) -> Tensors:
    if replacement is None:
        return {n: t for n, t in tensors.items() if n != name}
    return {**tensors, name: one(*replacement)}


@pytest.mark.parametrize(("name", "replacement", "what"), CHANGES)
def test_one_thing_wrong(
    tensors: Tensors, tmp_path: Path, name: str, replacement: tuple[Any, ...] | None, what: str
) -> None:
    folder = save_checkpoint(tmp_path, small_config(), changed(tensors, name, replacement))
    assert what in refuse(folder).message


def test_names_are_listed_up_to_ten(tensors: Tensors, tmp_path: Path) -> None:
    strange = {f"strange.{n:02}": one("F32", 1) for n in range(25)}
    message = refuse(save_checkpoint(tmp_path, small_config(), tensors | strange)).message
    assert (
        "25 tensors have no place" in message
        and "strange.09 and 15 more" in message
        and "strange.10" not in message
    )


DRAFTER_CHANGES: list[Change] = [
    ("mtp.2.markov_head.markov_w2.weight", None, "missing: mtp.2.markov_head.markov_w2"),
    ("mtp.2.confidence_head.proj.weight", ("BF16", 1, 64), "expected [1, 128]"),
    ("mtp.2.markov_head.gate.weight", ("BF16", 4), "no place in this model"),
    ("mtp.1.norm.weight", ("BF16", 64), "no place in this model: mtp.1.norm"),
    ("mtp.1.attn.attn_sink", None, "missing: mtp.1.attn.attn_sink"),
    ("mtp.0.ffn.gate.bias", None, "missing: mtp.0.ffn.gate.bias"),
    ("mtp.0.main_proj.weight", ("F8_E4M3", 64, 128), "expected [64, 192]"),
]


@pytest.mark.parametrize(("name", "replacement", "what"), DRAFTER_CHANGES)
def test_drafter_has_the_same_rules(
    tensors: Tensors, tmp_path: Path, name: str, replacement: tuple[Any, ...] | None, what: str
) -> None:
    folder = save_checkpoint(tmp_path, small_config(), changed(tensors, name, replacement))
    assert what in refuse(folder, Role.DRAFTER).message


def test_asking_a_dspark_checkpoint_for_an_mtp_head(tensors: Tensors, tmp_path: Path) -> None:
    error = refuse(save_checkpoint(tmp_path, small_config(), tensors), Role.MTP)
    assert "carries a DSpark drafter of 3 stages and no MTP head" in error.message
    assert error.hint == "use --drafter"


def test_asking_an_mtp_checkpoint_for_a_dspark_drafter(tmp_path: Path) -> None:
    config = {k: v for k, v in small_config().items() if not k.startswith("dspark_")}
    error = refuse(save_checkpoint(tmp_path, config, make_tensors(config, "mtp")), Role.DRAFTER)
    assert "carries a classic MTP head (1 block) and no DSpark drafter" in error.message
    assert error.hint == "use --mtp"


@pytest.mark.parametrize("role", [Role.DRAFTER, Role.MTP])
def test_asking_a_checkpoint_without_either(tmp_path: Path, role: Role) -> None:
    config = small_config()
    assert (
        "carries no drafter"
        in refuse(save_checkpoint(tmp_path, config, make_tensors(config, None)), role).message
    )


def test_dspark_tensors_without_their_config(tensors: Tensors, tmp_path: Path) -> None:
    config = {k: v for k, v in small_config().items() if not k.startswith("dspark_")}
    assert "no dspark_* keys" in refuse(save_checkpoint(tmp_path, config, tensors), Role.DRAFTER).message


def test_every_input_is_in_exactly_one_account(tmp_path: Path) -> None:
    tensors = make_tensors(CONFIG, "mtp")
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, CONFIG, tensors))
    for role in (Role.TARGET, Role.MTP):
        ledger = account(checkpoint, role)
        assert ledger.written + ledger.merged + sum(ledger.skipped.values()) == ledger.inputs == len(tensors)
        parts = [p.weight.name for o in ledger.outputs for p in o.parts]
        assert len(parts) == len(set(parts)) == ledger.written


def edit_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_missing_shards_are_listed(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, small_config(), tensors)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "1 of 3 shards are missing: model-00002-of-00003.safetensors" in refuse(folder).message


def test_extra_shards_are_listed(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, small_config(), tensors)
    (folder / "model-00004-of-00003.safetensors").write_bytes(b"")
    assert "1 shards are not in the index: model-00004-of-00003" in refuse(folder).message


def test_truncated_shard(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, small_config(), tensors)
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    message = refuse(folder).message
    assert "truncated" in message and shard.name in message


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.pop("embed.weight"), "which the index places in nowhere"),
        (lambda m: m.update({"ghost": "model-00001-of-00003.safetensors"}), "in no shard: ghost"),
        (lambda m: m.update({"embed.weight": "../x.safetensors"}), "not the name of a shard"),
        (lambda m: m.update({"embed.weight": "/etc/x.safetensors"}), "not the name of a shard"),
        (lambda m: m.update({"embed.weight": "sub/x.safetensors"}), "not the name of a shard"),
        (lambda m: m.update({"embed.weight": "passwd"}), "not the name of a shard"),
        (lambda m: m.update({"embed.weight": 3}), "not the name of a shard"),
        (lambda m: m.clear(), "weight_map is missing or empty"),
    ],
)
def test_index_and_shards_must_agree(
    tensors: Tensors, tmp_path: Path, change: Callable[[dict[str, Any]], Any], what: str
) -> None:
    folder = save_checkpoint(tmp_path, small_config(), tensors)
    edit_index(folder, lambda index: change(index["weight_map"]))
    assert what in refuse(folder).message


def test_a_tensor_in_two_shards(tensors: Tensors, tmp_path: Path) -> None:
    from synthetic_checkpoint import save_safetensors

    folder = save_checkpoint(tmp_path, small_config(), tensors)
    save_safetensors(folder / "twice.safetensors", {"embed.weight": tensors["embed.weight"]})
    edit_index(folder, lambda index: index["weight_map"].update({"x": "twice.safetensors"}))
    assert "embed.weight is in another shard too" in refuse(folder).message


def test_a_single_file_needs_no_index(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, small_config(), tensors, 1)
    (folder / "model-00001-of-00001.safetensors").rename(folder / "model.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    assert account(open_checkpoint(folder), Role.TARGET).inputs == len(tensors)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_a_proj.weight",
        "layers.0.self_attn.sinks",
        "layers.0.mlp.experts.gate_up_proj",
        "lm_head.weight",
        "layers.0.attn.wq_a.weight_scale_inv",
    ],
)
def test_resaved_checkpoints_are_refused(tmp_path: Path, name: str) -> None:
    folder = save_checkpoint(tmp_path, small_config(), {name: one("BF16", 4)}, 1)
    error = refuse(folder)
    assert f"{name} has a name of the transformers library" in error.message


CONFIG_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["DeepseekV41ForCausalLM"]}, "this is DeepSeek-V4.1"),
    ({"engram_layers": [1]}, "this is DeepSeek-V4.1"),
    ({"text_config": {}}, "this is DeepSeek-V4.1"),
    ({"kv_source_layer_ids": []}, "this is DeepSeek-V4.1"),
    ({"architectures": ["LlamaForCausalLM"]}, "architectures is ['LlamaForCausalLM']"),
    ({"architectures": None}, "architectures is None"),
    ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'"),
    ({"hidden_size": "64"}, "hidden_size is '64', not a number"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"hidden_size": -4}, "hidden_size is -4, out of range"),
    ({"hidden_size": True}, "hidden_size is True, not a number"),
    ({"norm_topk_prob": 1}, "norm_topk_prob is 1, not true or false"),
    ({"hc_mult": 2}, "hc_mult is 2, supported is 4"),
    ({"compress_ratios": [0, 4]}, "compress_ratios has 2 values"),
    ({"compress_ratios": [0, 4, 128, 8]}, "compress_ratios holds 8"),
    ({"compress_ratios": 4}, "compress_ratios is 4, not a list"),
    ({"rope_scaling": None}, "rope_scaling is None"),
    ({"rope_scaling": {**CONFIG["rope_scaling"], "type": "linear"}}, "rope_scaling.type is 'linear'"),
    ({"quantization_config": {"weight_block_size": [128]}}, "weight_block_size is [128]"),
    ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
    ({"num_hash_layers": 9}, "num_hash_layers is 9"),
    ({"o_groups": 7}, "o_groups is 7"),
    ({"dspark_block_size": 17}, "dspark_block_size is 17"),
    ({"dspark_noise_token_id": 320}, "dspark_noise_token_id is 320"),
    ({"dspark_target_layer_ids": [1, 4]}, "dspark_target_layer_ids is [1, 4]"),
    ({"dspark_target_layer_ids": [2, 1]}, "dspark_target_layer_ids is [2, 1]"),
    ({"quantization_config": None}, "no quantization_config.weight_block_size"),
]


@pytest.mark.parametrize(("change", "what"), CONFIG_CHANGES)
def test_config_values(tensors: Tensors, tmp_path: Path, change: dict[str, Any], what: str) -> None:
    assert what in refuse(save_checkpoint(tmp_path, small_config(**change), tensors)).message


def test_missing_config_key_and_rope_type_spelling(tensors: Tensors, tmp_path: Path) -> None:
    config = small_config()
    del config["o_lora_rank"]
    assert "o_lora_rank is missing" in refuse(save_checkpoint(tmp_path / "a", config, tensors)).message
    scaling = {("rope_type" if k == "type" else k): v for k, v in CONFIG["rope_scaling"].items()}
    account(
        open_checkpoint(save_checkpoint(tmp_path / "b", small_config(rope_scaling=scaling), tensors)),
        Role.TARGET,
    )


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, what in (
        (tmp_path / "absent", "no such folder"),
        (tmp_path / "file", "is a file"),
        (tmp_path, "no such file"),
    ):
        with pytest.raises(RequestError, match=what):
            open_checkpoint(path)
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    with pytest.raises(RequestError, match=r"has neither model.safetensors.index.json nor model.safetensors"):
        open_checkpoint(tmp_path)
