"""Memory predictions against what the server printed for the embedded model."""

from pathlib import Path

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
    with pytest.raises(RequestError, match="architecture dflash cannot be planned"):
        predict(pair[1], context_tokens=2048)


def test_the_plan_names_a_missing_key(pair: tuple[ModelInfo, ModelInfo], tmp_path: Path) -> None:
    from dataclasses import replace

    keys = {k: v for k, v in pair[0].keys.items() if k != "deepseek4.attention.sliding_window"}
    with pytest.raises(RequestError, match=r"key deepseek4.attention.sliding_window is missing"):
        predict(replace(pair[0], keys=keys), context_tokens=2048)
