"""Memory predictions against what the server printed for the embedded model."""

import re
from dataclasses import replace

import pytest
from synthetic_checkpoint import TINY_MODEL

from pylucebox.core.errors import RequestError
from pylucebox.formats.convert import convert
from pylucebox.formats.inspect import ModelInfo, inspect
from pylucebox.formats.ledger import Role
from pylucebox.formats.memory_plan import predict

MIB = 1 << 20
# Compute buffers the server printed: flash attention, context, micro-batch -> target, drafter, in MiB.
COMPUTE = [
    (False, 2048, 128, 6.18, 4.64),
    (False, 2048, 512, 26.52, 19.55),
    (False, 8192, 512, 51.27, 19.55),
    (False, 32768, 128, 46.68, 4.64),
    (False, 32768, 512, 160.02, 19.55),
    (True, 2048, 128, 5.52, 4.64),
    (True, 8192, 512, 26.58, 18.52),
    (True, 32768, 512, 63.33, 18.52),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelInfo, ModelInfo]:
    folder = tmp_path_factory.mktemp("pair")
    convert(TINY_MODEL, "f32", folder / "t.gguf")
    convert(TINY_MODEL, "f32", folder / "d.gguf", Role.DRAFTER)
    return inspect(folder / "t.gguf"), inspect(folder / "d.gguf")


def test_caches_equal_the_servers(pair: tuple[ModelInfo, ModelInfo]) -> None:
    """llama-server -c 2048 -np 1 -fa off -ctk f32 -ctv f32 --spec-draft-n-max 5, read off its log."""
    plan = predict(*pair, context_tokens=2048, kv_type="F32", flash_attention=False)
    assert round(plan.weights_bytes / MIB, 2) == 90.89 and round(plan.drafter_weights_bytes / MIB, 2) == 29.27
    assert plan.window_cache_bytes == 12 * MIB
    assert plan.compressed_cache_bytes == (3 + 1.5 + 0.75) * MIB
    assert plan.compressor_state_bytes == (1.125 + 9 + 0.28125) * MIB
    assert plan.drafter_cache_bytes == 4.5 * MIB
    assert plan.context_tokens == 2048


@pytest.mark.parametrize(("flash", "context", "ubatch", "target", "drafter"), COMPUTE)
def test_compute_equals_the_servers(
    pair: tuple[ModelInfo, ModelInfo], flash: bool, context: int, ubatch: int, target: float, drafter: float
) -> None:
    plan = predict(*pair, context_tokens=context, ubatch=ubatch, flash_attention=flash)
    assert round(plan.compute_bytes / MIB, 2) == pytest.approx(target, rel=0.001)
    assert plan.drafter_compute_bytes / MIB == pytest.approx(drafter, rel=0.05)


def test_sequences_and_drafting(pair: tuple[ModelInfo, ModelInfo]) -> None:
    target, drafter = pair
    one = predict(target, context_tokens=8192)
    four = predict(target, context_tokens=8192, parallel=4)
    shared = predict(target, context_tokens=8192, parallel=4, unified=True)
    assert (one.context_tokens, four.context_tokens, shared.context_tokens) == (8192, 2048, 8192)
    assert shared.cache_bytes == 4 * one.cache_bytes
    assert four.compressor_state_bytes == 4 * one.compressor_state_bytes
    assert one.drafter_weights_bytes == one.drafter_cache_bytes == 0
    drafting = predict(target, drafter, context_tokens=8192, draft_tokens=2)
    assert drafting.compressor_state_bytes == 3 * one.compressor_state_bytes
    assert (
        predict(target, context_tokens=8192, kv_type="F32").window_cache_bytes == 2 * one.window_cache_bytes
    )
    total = sum(v for k, v in drafting.as_dict().items() if k not in ("context_tokens", "total_bytes"))
    assert drafting.total_bytes == total


def test_small_contexts_are_padded(pair: tuple[ModelInfo, ModelInfo]) -> None:
    plan = predict(pair[0], context_tokens=100)
    assert plan.context_tokens == 256 and plan.window_cache_bytes == 8 * 256 * 1024


def test_a_drafter_cannot_be_served_alone(pair: tuple[ModelInfo, ModelInfo]) -> None:
    with pytest.raises(RequestError, match=r"key general.architecture is dflash, only deepseek4"):
        predict(pair[1], context_tokens=2048)


PLANNED = [
    "block_count",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "attention.sliding_window",
    "attention.head_count",
    "attention.key_length",
    "attention.compress_ratios",
    "attention.q_lora_rank",
    "attention.output_lora_rank",
    "attention.output_group_count",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "hyper_connection.count",
]
OF_THE_DRAFTER = [
    "block_count",
    "embedding_length",
    "expert_used_count",
    "expert_feed_forward_length",
    "attention.sliding_window",
    "attention.head_count",
    "attention.key_length",
    "hyper_connection.count",
]
UNUSABLE = (None, "4", (), (1, 2), 0, -1, 0.5, True)


def changed(model: ModelInfo, key: str, value: object) -> ModelInfo:
    """The model with one key of another value, or none, as a reader without checks would give it."""
    name = f"{model.architecture}.{key}"
    keys = {k: v for k, v in model.keys.items() if k != name}
    return replace(model, keys=keys if value is None else {**keys, name: value})


@pytest.mark.parametrize("key", PLANNED)
def test_the_plan_names_every_key_it_cannot_use(pair: tuple[ModelInfo, ModelInfo], key: str) -> None:
    for value in UNUSABLE:
        with pytest.raises(RequestError, match=re.escape(f"key deepseek4.{key} ")) as refused:
            predict(changed(pair[0], key, value), context_tokens=2048)
        assert refused.value.hint and refused.value.message.startswith(f"{pair[0].path}: "), value


@pytest.mark.parametrize("key", OF_THE_DRAFTER)
def test_the_plan_names_every_key_of_a_drafter(pair: tuple[ModelInfo, ModelInfo], key: str) -> None:
    for value in UNUSABLE:
        with pytest.raises(RequestError, match=re.escape(f"key dflash.{key} ")):
            predict(pair[0], changed(pair[1], key, value), context_tokens=2048)


def test_a_vocabulary_is_needed(pair: tuple[ModelInfo, ModelInfo]) -> None:
    with pytest.raises(RequestError, match=r"key deepseek4.vocab_size is missing"):
        predict(replace(changed(pair[0], "vocab_size", None), vocab_size=0), context_tokens=2048)


def test_lists_by_layer_plan_for_the_largest(pair: tuple[ModelInfo, ModelInfo]) -> None:
    target = pair[0]
    used = target.count("expert_used_count")
    listed = changed(target, "expert_used_count", (1, *[used] * (target.layers - 1)))
    assert predict(listed, context_tokens=2048) == predict(target, context_tokens=2048)


def test_rows_that_a_cache_type_cannot_hold(pair: tuple[ModelInfo, ModelInfo]) -> None:
    odd = changed(pair[0], "attention.key_length", 24)
    with pytest.raises(RequestError, match=r"key deepseek4.attention.key_length: 24 columns"):
        predict(odd, context_tokens=2048, kv_type="Q8_0")
