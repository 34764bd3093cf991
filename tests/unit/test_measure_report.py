"""Result files: what is kept, what is refused on reading, and when a result is stale."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.measure.compare import Comparison
from pylucebox.measure.difference import compare_results
from pylucebox.measure.machine import Machine, describe_machine
from pylucebox.measure.report import Level, Quality, Result, load
from pylucebox.measure.sources import PATTERNS, Source

MACHINE = Machine("Some CPU", 4, ("avx2",), "Some OS 1", "6.1", "performance")
COMPARISON = Comparison(
    "decode 16, 1 thread",
    "tok/s",
    "a",
    "b",
    samples_a=((10.0, 10.5), (10.2, 9.9), (10.1, 10.0)),
    samples_b=((11.0, 11.4), (11.2, 11.0), (11.3, 11.1)),
    noise_a=((10.0, 10.1), (10.2, 10.1)),
    noise_b=((10.1, 10.0), (10.1, 10.2)),
)
LEVEL = Level("decode 16, 1 thread", "a", "tok/s", ((10.0, 10.5, 10.1, 10.2), (9.9, 10.3, 10.0, 10.1)))
QUALITY = Quality("tiny", "Q8_0", 30 << 20, 10.02, 12.3, 0.2, 0.004, 0.001, 0.07, 0.989, 0.002, 3302)


def result(**changes: Any) -> Result:
    base = Result("A thing", "2026-12-01", "lucebox bench ab a b", MACHINE, {"cpu": "ab" * 32}, Source())
    return replace(base, **changes)


def tree(root: Path) -> Path:
    """A repository with the files that a speed depends on."""
    for name in ("vendor/llama.cpp.lock.toml", "ggml_patches/series", "ggml_patches/0001-a.patch"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    for name in ("ggml-rocmfpx/dot.c", "ggml-cuda/rocmfpx.cu"):
        path = root / "ggml_patches/overlay/ggml/src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    return root


def test_result_reads_back_as_written(tmp_path: Path) -> None:
    kept = result(
        source=Source.read(tree(tmp_path), "speed"),
        settings={"backends": "CPU"},
        comparisons=(COMPARISON,),
        levels=(LEVEL,),
        qualities=(QUALITY, replace(QUALITY, bits_per_weight=None)),
    )
    path = tmp_path / "new" / "result.json"
    kept.save(path)
    assert load(path) == kept
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["schema"] == 1
    assert data["comparisons"][0]["ratio"]["n"] == 3
    assert data["comparisons"][0]["significant"] is True
    assert data["comparisons"][0]["ratio"]["value"] == pytest.approx(1.1039, abs=1e-4)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match=r"taken/r\.json: cannot be written"):
        result().save(tmp_path / "taken" / "r.json")
    os.mkfifo(tmp_path / "pipe")  # a rename onto it would replace it, as it would /dev/null for root
    with pytest.raises(RequestError, match="no ordinary file"):
        result().save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def edit(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(fields)


def brush_up(data: dict[str, Any]) -> None:
    data["comparisons"][0]["ratio"]["value"] = 1.5


def drop_sample(data: dict[str, Any]) -> None:
    data["comparisons"][0]["samples_a"].pop()


def claim(data: dict[str, Any]) -> None:
    data["comparisons"][0]["significant"] = False


def zero_sample(data: dict[str, Any]) -> None:
    data["levels"][0]["samples"][0][0] = 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit(schema=2), "field 'schema' is 2"),
        (edit(colour="red"), "colour"),
        (edit(machine={"cpu": "x"}), "field missing"),
        (edit(levels=None), "field missing, unknown or malformed"),
        (lambda data: data.pop("receipts"), "receipts"),
        (brush_up, r"field 'comparisons\[0\]\.ratio\.value' does not follow"),
        (claim, r"field 'comparisons\[0\]\.significant' does not follow"),
        (drop_sample, "rounds do not pair"),
        (zero_sample, "field missing, unknown or malformed"),
    ],
)
def test_files_that_do_not_add_up_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    path = tmp_path / "r.json"
    result(comparisons=(COMPARISON,), levels=(LEVEL,)).save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises((IntegrityError, RequestError), match=words):
        load(path)


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        load(tmp_path / "absent.json")
    (tmp_path / "half.json").write_text('{"schema": 1', encoding="utf-8")
    with pytest.raises(IntegrityError, match="not JSON"):
        load(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(IntegrityError, match="field 'schema' is None"):
        load(tmp_path / "list.json")


def test_source_follows_content_and_names(tmp_path: Path) -> None:
    root = tree(tmp_path)
    source = Source.read(root, "speed")
    assert not source.is_stale(root)
    kernel = root / "ggml_patches/overlay/ggml/src/ggml-rocmfpx/dot.c"
    kernel.write_text("changed", encoding="utf-8")
    assert source.is_stale(root)
    kernel.write_text("ggml-rocmfpx/dot.c", encoding="utf-8")
    assert not source.is_stale(root)
    kernel.rename(kernel.with_name("other.c"))
    assert source.is_stale(root)


def test_gpu_kernels_make_no_cpu_figure_stale(tmp_path: Path) -> None:
    root = tree(tmp_path)
    processor, device = Source.read(root, "speed"), Source.read(root, "speed", "gfx1151")
    (root / "ggml_patches/overlay/ggml/src/ggml-cuda/rocmfpx.cu").write_text("new", encoding="utf-8")
    assert not processor.is_stale(root)
    assert device.is_stale(root)


def test_every_pattern_belongs_to_this_repository() -> None:
    assert all(not p.startswith("/") and ".." not in p for found in PATTERNS.values() for p in found)


def test_unknown_sources(tmp_path: Path) -> None:
    assert not Source().is_stale(tmp_path)
    with pytest.raises(IntegrityError, match="none of the files"):
        Source.read(tmp_path, "kernels")


def test_machine_is_read_from_the_system(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor : 0\nmodel name : Fast 9000\nflags : sse avx2 avx512_vnni\n", encoding="utf-8"
    )
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Some OS 1"\n', encoding="utf-8")
    machine = describe_machine(tmp_path)
    assert (machine.cpu, machine.isa, machine.os) == ("Fast 9000", ("avx2", "avx512_vnni"), "Some OS 1")
    assert machine.governor is None
    assert machine.cores >= 1
    governor = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n", encoding="utf-8")
    assert "governor powersave" in str(describe_machine(tmp_path))


def test_two_files_are_matched_by_case() -> None:
    slow = result(levels=(LEVEL,))
    rounds = tuple(tuple(2 * x for x in r) for r in LEVEL.samples)
    quick = result(levels=(replace(LEVEL, arm="other", samples=rounds),))
    (found,) = compare_results(slow, quick)
    assert found.ratio.value == pytest.approx(2)
    assert (found.arm_a, found.arm_b, found.paired) == ("a", "other", False)


def test_two_files_are_matched_by_arm_when_there_are_several() -> None:
    first, second = result(comparisons=(COMPARISON,)), result(comparisons=(COMPARISON,))
    found = compare_results(first, second)
    assert [c.arm_b for c in found] == ["a (second file)", "b (second file)"]
    assert all(c.ratio.value == pytest.approx(1) and not c.significant for c in found)


def test_unlike_files_are_compared_only_on_request() -> None:
    here, there = result(levels=(LEVEL,)), result(levels=(LEVEL,), machine=replace(MACHINE, cpu="Other"))
    with pytest.raises(RequestError, match="cpu Some CPU against Other"):
        compare_results(here, there)
    assert len(compare_results(here, there, allow_unlike=True)) == 1
    with pytest.raises(RequestError, match="no measured case in common"):
        compare_results(here, result(levels=(replace(LEVEL, case="prompt"),)))
