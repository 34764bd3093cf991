"""tools/check_device_code.py on planted kernels: each fault is found, and only where it is ours."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from conftest import lacking
from tool_modules import load_tool

from pylucebox.core.errors import MissingError
from pylucebox.core.paths import Layout

PLANTED = Path(__file__).parent / "planted_kernels.cu"
ARCHS = ("gfx1151", "gfx1201")
ELSEWHERE = Path("/nonexistent/overlay")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check_device_code")


@pytest.fixture(scope="module")
def shop(tool: ModuleType, layout: Layout, tmp_path_factory: pytest.TempPathFactory):
    """The compilers that the check has fetched; results of earlier runs are not used."""
    hip = cuda = None
    if not layout.prepared_dir.is_dir():
        lacking("native", "the prepared tree (run `lucebox build --target cpu`)")
    try:
        hip = tool.find_hip(layout.build_root / "device-code", fetch=False)
    except MissingError as bad:
        lacking("hip", f"{bad.message} (run `make device-code`)")
    made, _ = tool.workshop(layout, ())
    return replace(made, cache=tmp_path_factory.mktemp("cache"), hip=hip, cuda=cuda)


@pytest.fixture(scope="module", params=ARCHS)
def planted(request: pytest.FixtureRequest, tool: ModuleType, shop):
    done = tool.compile_file(shop, tool.Job(PLANTED, request.param))
    assert not done.error
    return done


def found(tool: ModuleType, done, claims=(), overlay: Path = ELSEWHERE) -> dict[str, set[str]]:
    """Faults by kernel, figures taken out: they are the compiler's to change."""
    faults: dict[str, set[str]] = {}
    for line in tool.judging.faults(done, claims, overlay):
        kernel, _, fault = line.removeprefix(f"{done.job.arch} ").partition(": ")
        faults.setdefault(kernel.partition("<")[0], set()).add(fault.lstrip("0123456789 "))
    return faults


def test_private_memory_of_ours_is_found(tool: ModuleType, planted) -> None:
    assert found(tool, planted) == {
        "rocmfpx_planted_scratch": {"bytes of scratch"},
        "rocmfpx_planted_spills": {"bytes of scratch", "VGPRs spilled"},
        "rocmfpx_planted_stack": {"bytes of scratch", "dynamic stack"},
    }


def test_a_kernel_defined_in_the_overlay_is_ours_whatever_its_name(tool: ModuleType, planted) -> None:
    assert "planted_upstream" in found(tool, planted, overlay=PLANTED.parent)


def test_claims(tool: ModuleType, planted) -> None:
    claim = tool.judging.Claim
    kept = [
        claim("planted_clean", needs=("v_perm_b32",), forbids=("v_dot4_i32_i8",), lds_bytes=0, max_vgprs=8)
    ]
    assert "rocmfpx_planted_clean" not in found(tool, planted, kept)
    broken = [
        claim("planted_lds", needs=("v_perm_b32",), lds_bytes=0, max_vgprs=1),
        claim("planted_clean", forbids=("v_perm_b32",)),
    ]
    faults = found(tool, planted, broken)
    assert len(faults["rocmfpx_planted_lds"]) == 3
    assert faults["rocmfpx_planted_clean"] == {"claimed to do without v_perm_b32, uses it"}
    assert found(tool, planted, [replace(broken[1], arch=("gfx1100",))]) == found(tool, planted)
    assert tool.judging.unmatched([*kept, claim("planted_gone")], [planted]) == [
        "claim 'planted_gone': no such kernel"
    ]


def test_results_are_kept_until_a_file_changes(tool: ModuleType, shop, tmp_path: Path) -> None:
    kernel, header = tmp_path / "kernel.cu", tmp_path / "value.cuh"
    kernel.write_text(
        '#include <hip/hip_runtime.h>\n#include "value.cuh"\n__global__ void k(int * x) { *x = VALUE; }\n'
    )
    header.write_text("#pragma once\n#define VALUE 1\n")
    job = tool.Job(kernel, "gfx1151")
    assert tool.compile_file(shop, job).seconds > 0
    assert tool.compile_file(shop, job).seconds == 0
    header.write_text("#pragma once\n#define VALUE *x + 1\n")
    import_module("kept_results").digest.cache_clear()  # a run of the check reads each file once
    again = tool.compile_file(shop, job)
    assert again.seconds > 0 and again.kernels[0].vgprs > 1


def test_a_header_that_leans_on_others_does_not_pass_alone(tool: ModuleType, shop, tmp_path: Path) -> None:
    header = tmp_path / "leaning.cuh"
    header.write_text("#pragma once\nstatic __device__ int low(const block_q4_0 * x) { return x->qs[0]; }\n")
    done = tool.compile_file(shop, tool.Job(header, "gfx1151"))
    assert "block_q4_0" in done.error
    assert tool.judging.faults(done, (), ELSEWHERE)[0].startswith("leaning.cuh gfx1151: does not compile\n")


def test_warnings_count_in_our_lines_alone(tool: ModuleType, shop, tmp_path: Path) -> None:
    kernel = tmp_path / "warned.cu"
    kernel.write_text('#include "common.cuh"\n__global__ void k(int * x, int unused) { *x = 1; }\n')
    done = tool.compile_file(shop, tool.Job(kernel, "gfx1151"))
    assert len(done.warnings) > 1  # upstream's header has its own
    assert [line for line in tool.judging.faults(done, (), tmp_path) if "unused parameter" in line]
    assert not tool.judging.faults(done, (), ELSEWHERE)


def test_nvcc_reports_spills(tool: ModuleType, shop) -> None:
    try:
        cuda = tool.find_cuda()
    except MissingError as bad:
        lacking("nvcc", bad.message)
    done = tool.compile_file(replace(shop, cuda=cuda), tool.Job(PLANTED, "sm_90a"))
    assert found(tool, done) == {"rocmfpx_planted_spills": {"bytes spilled, 1228 read back"}}
    assert tool.judging.is_ours(done.cuda_kernels[0], PLANTED.parent)
