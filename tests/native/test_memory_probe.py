"""The memory plan asked of the build against the buffers that the server then takes, as its log says."""

import re
from pathlib import Path

import pytest
from fixture_maker import make_fixture
from served_pair import command_for, convert_pair, served

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.inspect import inspect
from pylucebox.formats.memory_plan import predict
from pylucebox.runtime.memory import HOST, ask_build

MIB = 1 << 20
BUFFER = re.compile(r"(model|KV|state|output|compute) buffer size = +([0-9.]+) MiB")
ROUNDING = 0.006 * MIB  # the log prints two digits for each buffer
PAIR = [
    ("bf16", 512, ()),
    ("bf16", 2048, ("-np", "2", "-ub", "64", "-b", "256")),
    ("bf16", 2048, ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on")),
    ("mxfp4", 2048, ("-np", "1")),
]
FIXTURES = [
    ("A", 4096, ("-np", "4", "--kv-unified")),
    ("C", 8192, ("-fa", "off", "-np", "1")),
    ("E", 512, ()),
    ("E", 512, ("--no-repack",)),
]


def taken(log: str, *kinds: str) -> float:
    """Bytes of the buffers of these kinds, of all models together."""
    return sum(float(found[2]) * MIB for found in BUFFER.finditer(log) if found[1] in kinds)


def check(
    build: BuildReceipt,
    tmp_path: Path,
    target: Path,
    drafter: Path | None,
    context: int,
    extra: tuple[str, ...],
) -> None:
    command = command_for(
        build, target, drafter, context, "--no-warmup", "--load-mode", "none", "-lv", "4", *extra
    )
    demand = ask_build(command)
    with served(build, command, tmp_path) as server:
        if drafter:
            server.client.complete("a", n_predict=2)  # drafting reserves its buffers at the first batch
        log = server.log_path.read_text(errors="replace")
    (place,) = demand.places
    assert place.name == HOST and demand.measured
    weights, caches = taken(log, "model"), taken(log, "KV", "state", "output")
    plan = [place.target, place.drafter]
    assert sum(s.weights_bytes for s in plan) == pytest.approx(weights, rel=0.001, abs=4 * ROUNDING)
    assert sum(s.context_bytes for s in plan) == pytest.approx(caches, rel=0.001, abs=20 * ROUNDING)
    sizes = {round(float(f[2]), 2) for f in BUFFER.finditer(log) if f[1] == "compute"}
    for share in plan[: 2 if drafter else 1]:
        assert round(share.compute_bytes / MIB, 2) in sizes


# Context, micro-batch, sequences, shared cache, cache type, flash attention.
SETTINGS = [
    (200, 512, 4, True, "f16", "auto"),  # no multiple of 256, which the server rounds contexts up to
    (300, 2048, 1, False, "f16", "off"),
    (512, 512, 4, True, "f16", "auto"),
    (4096, 64, 1, False, "f16", "on"),
    (4096, 2048, 2, False, "f16", "off"),
    (8192, 256, 3, True, "q8_0", "on"),
    (8192, 512, 1, True, "f32", "on"),
    (32768, 512, 4, True, "f16", "auto"),
    (32768, 2048, 1, True, "bf16", "auto"),
]


@pytest.mark.parametrize("model", ["A", "B", "C", "D", "E", "pair"])
def test_headers_alone_say_the_same(build: BuildReceipt, tmp_path: Path, model: str) -> None:
    """The target's lines to the byte but for padding, the drafter's compute buffer within 5 %."""
    target, drafter = tmp_path / f"{model}.gguf", None
    if model == "pair":
        target, drafter = convert_pair(tmp_path, "bf16")
    else:
        assert make_fixture.main(["--variant", model, "--out", str(target)]) == 0
    facts = inspect(target), inspect(drafter) if drafter else None
    for context, ubatch, parallel, unified, kind, flash in SETTINGS:
        shared = "--kv-unified" if unified else "--no-kv-unified"
        extra = ["-ub", str(ubatch), "-np", str(parallel), shared, "-ctk", kind, "-ctv", kind, "-fa", flash]
        (place,) = ask_build(command_for(build, target, drafter, context, *extra)).places
        plan = predict(
            *facts,
            context_tokens=context,
            ubatch=ubatch,
            parallel=parallel,
            kv_type=kind.upper(),
            unified=unified,
            flash_attention=flash != "off",
        )
        found = (plan.weights_bytes, plan.cache_bytes, plan.compute_bytes)
        taken = (place.target.weights_bytes, place.target.context_bytes, place.target.compute_bytes)
        assert found == pytest.approx(taken, rel=1e-4), (context, ubatch, parallel, kind, flash)
        if drafter:
            assert plan.drafter_cache_bytes == place.drafter.context_bytes
            assert plan.drafter_compute_bytes == pytest.approx(place.drafter.compute_bytes, rel=0.05)
        assert plan.total_bytes == pytest.approx(place.needed_bytes, rel=0.05)


@pytest.mark.parametrize(("kind", "context", "extra"), PAIR)
def test_the_embedded_pair(
    build: BuildReceipt, tmp_path: Path, kind: str, context: int, extra: tuple[str, ...]
) -> None:
    check(build, tmp_path, *convert_pair(tmp_path, kind), context, extra)


@pytest.mark.parametrize(("variant", "context", "extra"), FIXTURES)
def test_fixtures(
    build: BuildReceipt, tmp_path: Path, variant: str, context: int, extra: tuple[str, ...]
) -> None:
    target = tmp_path / f"{variant}.gguf"
    assert make_fixture.main(["--variant", variant, "--out", str(target)]) == 0
    check(build, tmp_path, target, None, context, extra)
