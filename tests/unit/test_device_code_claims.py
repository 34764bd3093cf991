"""tools/device_code: the table of claims, names of kernels, the committed record, missing compilers."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool

from pylucebox.core.errors import IntegrityError, MissingError
from pylucebox.native.resource_report import Instructions, KernelResources

OVERLAY = Path("/nonexistent/overlay")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check_device_code")


def kernel(name: str, **fields) -> KernelResources:
    counts = {"vgprs": 8, "sgprs": 4, "vgpr_spills": 0, "sgpr_spills": 0, "scratch_bytes": 0, "lds_bytes": 0}
    more = {"dynamic_stack": False, "wavefront_size": 32, "occupancy": 16}
    return KernelResources(name=name, symbol=name, arch="gfx1151", **{**counts, **more, **fields})


def compiled(tool: ModuleType, *kernels: KernelResources):
    job = tool.Job(OVERLAY / "rocmfpx-a.cu", "gfx1151")
    said = {k.symbol: Instructions({"v_perm_b32": 12, "s_endpgm": 1}, {"BB0_1": 10}) for k in kernels}
    return tool.Compiled(job, kernels=kernels, instructions=said)


def test_the_claims_of_the_project_are_readable(tool: ModuleType) -> None:
    tool.judging.read_claims(tool.CLAIMS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[claim]]\nneeds = ['v_perm_b32']\n", "kernel"),
        ("[[claim]]\nkernel = 'a'\nneed = ['v_perm_b32']\n", "need"),
        ("[[claim]]\nkernel = 'a'\nneeds = 'v_perm_b32'\n", "field 'needs' is no list of names"),
        ("[[claim]]\nkernel = 'a'\nlds_bytes = '0'\n", "field 'lds_bytes' is no whole number"),
        ("[[claim]]\nkernel = '('\n", "unterminated"),
        ("[[claim]\n", "line 1"),
    ],
)
def test_claims_that_cannot_be_read(tool: ModuleType, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(text)
    with pytest.raises(IntegrityError, match=said) as caught:
        tool.judging.read_claims(path)
    assert caught.value.message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("copy_blocks(unsigned char const*, int)", "copy_blocks"),
        ("void get_rows<(ggml_type)100, float>(float*)", "get_rows<(ggml_type)100, float>"),
        ("(anonymous namespace)::rocmfpx_a(int)", "(anonymous namespace)::rocmfpx_a"),
        ("_Z9something", "_Z9something"),
    ],
)
def test_short_names(tool: ModuleType, name: str, short: str) -> None:
    assert tool.judging.short_name(name) == short


@pytest.mark.parametrize(
    ("name", "source", "ours"),
    [
        ("mul_mat_vec_rocmfp4(int)", "", True),
        ("ds4_compress(int)", "/elsewhere/a.cu:3", True),
        ("dsv4_hc_comb_f32(int)", "/elsewhere/dsv4-hc.cu:3", False),
        ("get_rows(int)", f"{OVERLAY}/ggml/a.cu:3", True),
        ("get_rows(int)", f"{OVERLAY}-other/a.cu:3", False),
    ],
)
def test_ours(tool: ModuleType, name: str, source: str, ours: bool) -> None:
    assert tool.judging.is_ours(kernel(name, source=source), OVERLAY) is ours


def test_kernels_that_the_overlay_defines(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(
        "template <int N> static __global__ void one(int x) {}\n"
        "__launch_bounds__(32, 1) __global__ void two(int x) {}\n"
        "static __global__ void __launch_bounds__(N * warp(1), 1)\nthree(int x) { four<<<1, 1>>>(x); }\n"
    )
    assert tool.judging.defined_kernels(tmp_path) == {"one", "two", "three"}


def test_wide_waves_are_a_fault(tool: ModuleType) -> None:
    faults = tool.judging.faults(compiled(tool, kernel("rocmfpx_a", wavefront_size=64)), (), OVERLAY)
    assert faults == ["gfx1151 rocmfpx_a: waves of 64 lanes, not 32"]


def test_warnings_of_a_patched_file_beyond_upstreams(tool: ModuleType, tmp_path: Path) -> None:
    def said(tree: str, *lines: int):
        source = tmp_path / tree / "ggml/a.cu"
        texts = tuple(f"{source}:{line}: unused parameter 'x' [-Wunused-parameter]" for line in lines)
        elsewhere = f"{tmp_path / tree}/ggml/common.cuh:1: other"
        return tool.Compiled(tool.Job(source, "gfx1151"), warnings=(*texts, elsewhere))

    trees = (tmp_path / "prepared", tmp_path / "pristine")
    beyond = tool.judging.patched_faults
    assert beyond(said("prepared", 12), said("pristine", 10), *trees) == []
    found = beyond(said("prepared", 12, 30), said("pristine", 10), *trees)
    assert found == [f"gfx1151: {trees[0]}/ggml/a.cu:30: unused parameter 'x' [-Wunused-parameter]"]


def test_record(tool: ModuleType, tmp_path: Path) -> None:
    claims = [tool.judging.Claim("rocmfpx_a", weights_per_loop=4)]
    done = compiled(tool, kernel("rocmfpx_a"), kernel("upstream"))
    record = tool.record_of([done], claims, OVERLAY, ["clang 1"])
    assert [(row.kernel, row.valu, row.valu_per_weight) for row in record.rows] == [("rocmfpx_a", 12, 2.5)]
    path = tmp_path / "kernels.json"
    assert tool.difference(path, record) == "not there"
    tool.save(path, record)
    assert tool.difference(path, record) == ""
    other = tool.record_of([compiled(tool, kernel("rocmfpx_a", vgprs=9))], claims, OVERLAY, ["clang 1"])
    assert tool.difference(path, other) == "out of date (rocmfpx_a)"
    newer = tool.record_of([compiled(tool, kernel("rocmfpx_a", vgprs=9))], claims, OVERLAY, ["clang 2"])
    assert tool.difference(path, newer) == ""


def test_claims_are_searched_without_the_return_type(tool: ModuleType) -> None:
    claim = tool.judging.Claim("^rocmfpx_a<", arch=("gfx1151",))
    assert claim.speaks_of("void rocmfpx_a<1>(int)", "gfx1151")
    assert not claim.speaks_of("void rocmfpx_a<1>(int)", "gfx1201")
    assert not claim.speaks_of("void the_rocmfpx_a<1>(int)", "gfx1151")


def test_the_page_holds_vector_kernels_against_the_memory(tool: ModuleType) -> None:
    """FP2: 10 bytes a block of 32, so 40 * 64 * 2.5e9 instructions and 256e9 / 0.3125 weights a second."""
    names = [f"void rocmfpx_mmv<(ggml_type)107, {shape}, 0>(int)" for shape in ("1, 4", "1, 2", "2, 4")]
    done = compiled(tool, *map(kernel, names))
    claims = [tool.judging.Claim("107, 1, 4", weights_per_loop=5)]
    claims += [tool.judging.Claim("107, (1, 2|2, 4)", weights_per_loop=2)]
    page = import_module("device_code.record").page(tool.record_of([done], claims, OVERLAY, ["clang 1"]))
    assert "| type | fit | 1 column | 2 columns |" in page
    assert "| FP2 | 7.8 | 5.00 (64%) | 5.00 (64%) |" in page


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": 2, "compilers": [], "rows": []}', '{"schema": 1, "rows": [{}]}']
)
def test_records_that_cannot_be_read(tool: ModuleType, tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(text)
    with pytest.raises(IntegrityError, match=str(path)):
        tool.difference(path, tool.record_of([], (), OVERLAY, []))


def test_a_compiler_that_is_required_here(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = MissingError("nvcc: not found", hint="install it")
    monkeypatch.setenv("LUCEBOX_REQUIRE", "native,hip")
    assert tool.not_run("nvcc", absent) == "not run: nvcc (nvcc: not found; install it)"
    monkeypatch.setenv("LUCEBOX_REQUIRE", "native,nvcc")
    with pytest.raises(MissingError, match="required here: nvcc: not found"):
        tool.not_run("nvcc", absent)


def test_isa_numbers(tool: ModuleType) -> None:
    number = import_module("device_code.toolchain")._isa_number
    assert [number(isa) for isa in ("1036", "1100", "1151", "1201", "90a")] == [
        10306,
        11000,
        11501,
        12001,
        9010,
    ]
