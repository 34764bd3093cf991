"""CUDA and ROCm in all the places where people have them, whole and in part."""

from pathlib import Path

import pytest
from fake_toolkits import FAMILY_HEADERS, make_cublas, make_cuda, make_rocm, places, program, text
from small_upstream import make_layout

from pylucebox.core.errors import MissingError
from pylucebox.core.processes import run
from pylucebox.native.checks import Check, lacking, require, space_checks, unneeded, version_tuple
from pylucebox.native.cuda import DRIVER_SYMBOLS, CudaKit, cuda_checks, find_cuda, make_link_stub
from pylucebox.native.preflight import find_kit, preflight
from pylucebox.native.rocm import FAMILIES, RocmKit, find_rocm, rocm_checks
from pylucebox.native.targets import find_target

GFX1151 = find_target("gfx1151")
SM_90 = find_target("sm_90")


def rocm(home: Path, **env: str) -> RocmKit:
    kit = find_rocm(places(home, **env))
    assert kit is not None
    return kit


def cuda(home: Path, **env: str) -> CudaKit:
    kit = find_cuda(places(home, **env))
    assert kit is not None
    return kit


def named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_whole_rocm_lacks_nothing(tmp_path: Path) -> None:
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    checks = rocm_checks(GFX1151, places(tmp_path))
    assert lacking(checks) == () and unneeded(checks) == ()
    assert "7.2.4 at" in named(checks, "ROCm").found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_hidden_header_family_is_named(tmp_path: Path, family: object) -> None:
    name = str(getattr(family, "name", ""))
    root = make_rocm(tmp_path / "opt/rocm-7.2.4")
    (root / "include" / FAMILY_HEADERS[name]).unlink()
    checks = rocm_checks(GFX1151, places(tmp_path))
    check = named(checks, name)
    assert check.found == "not found" and check.remedy.startswith("install ")
    if getattr(family, "needed", True):
        assert lacking(checks) == (check,)
        with pytest.raises(MissingError, match=rf"target gfx1151 cannot be built on this machine: {name}$"):
            require(checks, "gfx1151")
    else:
        assert unneeded(checks) == (check,)
        require(checks, "gfx1151")


def test_what_is_called_unneeded_is_included_nowhere() -> None:
    from pylucebox.core.paths import find_layout

    layout = find_layout()
    folders = [layout.patches_dir / "overlay/ggml", layout.prepared_dir / "ggml/src/ggml-cuda"]
    files = [path for folder in folders for path in folder.rglob("*.cu*") if path.is_file()]
    for family in FAMILIES:
        start = f"#include <{family.header.split('/')[0]}/"
        users = [path for path in files if start in path.read_text(encoding="utf-8").replace('"', "<")]
        assert family.needed or users == [], f"{family.name} is used"


def test_hipblas_without_its_common_part_or_its_package(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "opt/rocm-7.2.4")
    (root / "include/hipblas-common/hipblas-common.h").unlink()
    (root / "lib/cmake/rocblas/rocblas-config.cmake").unlink()
    checks = rocm_checks(GFX1151, places(tmp_path))
    assert [check.name for check in lacking(checks)] == ["hipBLAS", "rocBLAS"]
    assert "hipblas-common" in named(checks, "hipBLAS").remedy
    assert "no rocblas-config.cmake" in named(checks, "rocBLAS").found


def test_the_newest_rocm_is_chosen_and_shown(tmp_path: Path) -> None:
    make_rocm(tmp_path / "opt/rocm-6.4.2", "6.4.2")
    make_rocm(tmp_path / "opt/rocm-7.10.0", "7.10.0")
    make_rocm(tmp_path / "opt/rocm-7.2.4", "7.2.4")
    (tmp_path / "opt/rocm").symlink_to("rocm-6.4.2")
    kit = rocm(tmp_path)
    assert (kit.version, kit.root.name) == ("7.10.0", "rocm-7.10.0")
    shown = named(rocm_checks(GFX1151, places(tmp_path)), "ROCm").found
    assert "7.10.0 at" in shown and "newer than 6.4.2 at" in shown and "7.2.4 at" in shown
    assert shown.count("6.4.2 at") == 1  # reached by its link and by its name


def test_a_variable_wins_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    old = make_rocm(tmp_path / "opt/rocm-6.4.2", "6.4.2")
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    assert rocm(tmp_path, ROCM_PATH=str(old)).version == "6.4.2"
    assert rocm(tmp_path, HIP_PATH=str(old)).version == "6.4.2"
    assert "from ROCM_PATH" in named(rocm_checks(GFX1151, places(tmp_path, ROCM_PATH=str(old))), "ROCm").found
    checks = rocm_checks(GFX1151, places(tmp_path, ROCM_PATH=str(tmp_path / "typo")))
    assert f"not in ROCM_PATH={tmp_path}/typo" in named(checks, "ROCm").found
    assert {check.name for check in lacking(checks)} >= {"ROCm", "HIP compiler", "hipBLAS", "rocBLAS"}


def test_rocm_from_pip_is_found_in_its_parts(tmp_path: Path) -> None:
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    make_rocm(packages / "_rocm_sdk_devel", "7.10.0", compiler="unused")
    program(packages / "_rocm_sdk_core/lib/llvm/bin/clang++", "exit 0")
    text(packages / "_rocm_sdk_libraries_gfx1151/lib/librocblas.so")
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    kit = rocm(tmp_path)
    assert kit.root == packages / "_rocm_sdk_devel" and kit.version == "7.10.0"
    assert kit.compiler == packages / "_rocm_sdk_core/lib/llvm/bin/clang++"
    defines = kit.defines(tmp_path)
    assert defines["CMAKE_PREFIX_PATH"].split(";")[1] == str(packages / "_rocm_sdk_core")
    assert str(packages / "_rocm_sdk_libraries_gfx1151/lib") in defines["CMAKE_INSTALL_RPATH"]
    assert lacking(rocm_checks(GFX1151, places(tmp_path))) == ()


def test_rocm_unpacked_into_a_venv_is_found(tmp_path: Path) -> None:
    make_rocm(tmp_path / "venv", "7.2.4", compiler="lib/llvm/bin/clang++")
    kit = rocm(tmp_path)
    assert kit.root == tmp_path / "venv" and kit.environment()["ROCM_PATH"] == str(tmp_path / "venv")


def test_rocm_from_pip_that_is_still_packed(tmp_path: Path) -> None:
    text(tmp_path / "venv/lib/python3.12/site-packages/rocm_sdk_devel/_devel.tar.xz")
    check = named(rocm_checks(GFX1151, places(tmp_path)), "ROCm")
    assert "not unpacked from" in check.found and check.remedy == "rocm-sdk init"


def test_a_rocm_without_compiler_or_too_old(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "opt/rocm-6.0.2", "6.0.2")
    (root / "llvm/bin/clang++").unlink()
    checks = rocm_checks(GFX1151, places(tmp_path))
    assert [check.name for check in lacking(checks)] == ["ROCm", "HIP compiler"]
    assert named(checks, "ROCm").needed == "6.1 or newer"


def test_a_compiler_that_does_not_know_the_gpu_is_told_by_trial(tmp_path: Path) -> None:
    from dataclasses import replace

    make_rocm(tmp_path / "opt/rocm-7.2.4")
    checks = rocm_checks(replace(GFX1151, arch="gfx9999"), places(tmp_path))
    (check,) = lacking(checks)
    assert check.name == "HIP compiler" and "unsupported HIP gpu architecture: gfx9999" in check.found


def test_hipcxx_is_respected(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "opt/rocm-7.2.4")
    mine = program(tmp_path / "mine/clang++", "exit 0")
    kit = rocm(tmp_path, HIPCXX=str(mine), PATH="")
    assert kit.compiler == mine and kit.defines(tmp_path)["CMAKE_HIP_FLAGS"] == f"--rocm-path={root}"


def test_no_rocm_names_every_part(tmp_path: Path) -> None:
    checks = preflight(GFX1151, make_layout(tmp_path / "home"), places(tmp_path))
    with pytest.raises(MissingError) as caught:
        require(checks, "gfx1151")
    assert caught.value.exit_code == 3 and caught.value.hint == "lucebox doctor --target gfx1151"
    lines = "\n".join(caught.value.log_tail)
    assert all(f"{name}: not found" in lines for name in ("ROCm", "HIP compiler", *FAMILY_HEADERS))
    assert not (tmp_path / "home/build").exists()


def test_cuda_with_cublas_of_its_own_needs_no_more_words(tmp_path: Path) -> None:
    root = make_cuda(tmp_path / "local/cuda-13.0")
    make_cublas(root / "include", root / "lib64")
    text(root / "lib64/stubs/libcuda.so")
    text(tmp_path / "usr/lib64/libcuda.so.1")
    kit = cuda(tmp_path)
    assert kit.toolkit == "CUDA 13.0.88" and not kit.link_stub
    assert kit.defines(tmp_path) == {
        "CMAKE_CUDA_COMPILER": str(root / "bin/nvcc"),
        "CUDAToolkit_ROOT": str(root),
        "CMAKE_INSTALL_RPATH": f"$ORIGIN;{root / 'lib64'}",
    }
    assert lacking(cuda_checks(SM_90, places(tmp_path))) == ()


def test_cublas_from_pip_is_found_and_told(tmp_path: Path) -> None:
    make_cuda(tmp_path / "local/cuda-13.0")
    wheel = tmp_path / "venv/lib/python3.12/site-packages/nvidia/cu13"
    make_cublas(wheel / "include", wheel / "lib", suffix=".13")
    defines = cuda(tmp_path).defines(tmp_path / "build")
    assert defines["CMAKE_CUDA_FLAGS"] == f"-I{wheel / 'include'}"
    assert defines["CUDA_cublas_LIBRARY"] == str(wheel / "lib/libcublas.so.13")
    assert defines["CUDA_cublasLt_LIBRARY"] == str(wheel / "lib/libcublasLt.so.13")
    assert defines["CUDA_cuda_driver_LIBRARY"] == str(tmp_path / "build/link/libcuda.so")
    assert defines["CMAKE_INSTALL_RPATH"].endswith(str(wheel / "lib"))


def test_cublas_of_another_cuda_is_not_taken(tmp_path: Path) -> None:
    make_cuda(tmp_path / "local/cuda-13.0")
    make_cublas(tmp_path / "usr/include", tmp_path / "usr/lib64", major=12)
    (check,) = lacking(cuda_checks(SM_90, places(tmp_path)))
    assert check.name == "cuBLAS" and check.found == f"only 12 at {tmp_path / 'usr/include'}"
    assert "nvidia-cublas==13.*" in check.remedy


def test_the_systems_cublas_adds_no_include_flag(tmp_path: Path) -> None:
    make_cuda(tmp_path / "local/cuda-13.0")
    make_cublas(tmp_path / "usr/include", tmp_path / "usr/lib64")
    defines = cuda(tmp_path).defines(tmp_path)
    assert "CMAKE_CUDA_FLAGS" not in defines and "CUDA_cublas_LIBRARY" in defines


def test_the_drivers_library_is_linked_where_it_is(tmp_path: Path) -> None:
    make_cuda(tmp_path / "local/cuda-13.0")
    driver = text(tmp_path / "usr/lib64/libcuda.so.1")
    kit = cuda(tmp_path)
    assert not kit.link_stub and kit.defines(tmp_path)["CUDA_cuda_driver_LIBRARY"] == str(driver)


def test_of_several_cudas_the_newest_unless_one_is_named(tmp_path: Path) -> None:
    make_cuda(tmp_path / "local/cuda-12.9", "12090")
    make_cuda(tmp_path / "local/cuda-13.0")
    (tmp_path / "local/cuda").symlink_to("cuda-12.9")
    wrapper = program(tmp_path / "usr-local/bin/nvcc", "exec elsewhere")  # no toolkit around it
    assert cuda(tmp_path, PATH=str(wrapper.parent)).version == "13.0"
    assert cuda(tmp_path, CUDA_PATH=str(tmp_path / "local/cuda-12.9")).version == "12.9"
    nvcc = tmp_path / "local/cuda-12.9/bin/nvcc"
    assert cuda(tmp_path, CUDACXX=str(nvcc)).nvcc == nvcc
    assert cuda(tmp_path, PATH=str(nvcc.parent)).version == "12.9"
    (check, _) = lacking(cuda_checks(SM_90, places(tmp_path, CUDACXX="/no/nvcc")))
    assert check.found == "not in CUDACXX=/no/nvcc"


def test_blackwell_needs_a_newer_cuda(tmp_path: Path) -> None:
    root = make_cuda(tmp_path / "local/cuda-12.4", "12040")
    make_cublas(root / "include", root / "lib64", major=12)
    assert lacking(cuda_checks(SM_90, places(tmp_path))) == ()
    (check,) = lacking(cuda_checks(find_target("sm_120"), places(tmp_path)))
    assert (check.name, check.needed) == ("nvcc", "CUDA 12.8 or newer")


def test_an_nvcc_that_does_not_run_is_named(tmp_path: Path) -> None:
    root = make_cuda(tmp_path / "local/cuda-13.0", nvcc="echo broken; exit 1")
    make_cublas(root / "include", root / "lib64")
    (check,) = lacking(cuda_checks(SM_90, places(tmp_path)))
    assert check.name == "nvcc" and "not a working compiler" in check.found


def test_a_replaced_toolkit_changes_the_stamp(tmp_path: Path) -> None:
    root = make_cuda(tmp_path / "local/cuda-13.0")
    before = cuda(tmp_path).stamp()
    make_cublas(root / "include", root / "lib64")
    assert cuda(tmp_path).stamp() != before
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    first = rocm(tmp_path).stamp()
    program(tmp_path / "opt/rocm-7.2.4/llvm/bin/clang++", "echo newer")
    assert rocm(tmp_path).stamp() != first


def test_the_link_stub_has_the_drivers_name_and_symbols(tmp_path: Path) -> None:
    path = CudaKit.stub_path(tmp_path)
    make_link_stub(path, Path("/usr/bin/cc"))
    data = path.read_bytes()
    assert b"libcuda.so.1\0" in data and all(name.encode() in data for name in DRIVER_SYMBOLS)
    assert path.with_name("libcuda.so.1").resolve() == path
    make_link_stub(path, Path("/usr/bin/cc"))  # again, over the first
    existing = text(tmp_path / "toolkit/stubs/libcuda.so", "stub")
    make_link_stub(path, Path("/no/compiler"), existing)
    assert path.with_name("libcuda.so.1").read_text() == "stub"


def test_programs_link_without_a_driver(tmp_path: Path) -> None:
    """A program that takes a library which needs libcuda.so.1: the linker must be shown one."""
    root = make_cuda(tmp_path / "local/cuda-13.0")
    kit, folder, cc = cuda(tmp_path), tmp_path / "build", Path("/usr/bin/cc")
    kit.prepare(folder, cc)
    library = text(tmp_path / "g.c", "int cuMemCreate(void); int g(void) { return cuMemCreate(); }")
    main = text(tmp_path / "m.c", "int g(void); int main(void) { return g(); }")
    driver = kit.defines(folder)["CUDA_cuda_driver_LIBRARY"]
    run([cc, "-shared", "-fPIC", "-o", tmp_path / "libg.so", library, driver])
    words = [cc, "-o", tmp_path / "m", main, tmp_path / "libg.so"]
    with pytest.raises(MissingError, match="failed"):
        run(words, error=MissingError)
    run([*words, kit.defines(folder)["CMAKE_EXE_LINKER_FLAGS_INIT"]])
    text(root / "lib64/stubs/libcuda.so")  # the toolkit's stub, whose name is not the one that is needed
    assert "rpath-link" in cuda(tmp_path).defines(folder)["CMAKE_EXE_LINKER_FLAGS_INIT"]
    text(tmp_path / "usr/lib64/libcuda.so.1")  # a driver, which the linker finds by itself
    assert "CMAKE_EXE_LINKER_FLAGS_INIT" not in cuda(tmp_path).defines(folder)


def test_a_target_takes_its_own_kind_of_kit(tmp_path: Path) -> None:
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    assert find_kit(find_target("cpu"), places(tmp_path)) is None
    assert find_kit(SM_90, places(tmp_path)) is None
    assert isinstance(find_kit(GFX1151, places(tmp_path)), RocmKit)


def test_disk_and_memory_are_measured(tmp_path: Path) -> None:
    meminfo = text(tmp_path / "meminfo", "MemAvailable:  524288 kB\nSwapFree:  0 kB\n")
    disk, memory = space_checks(tmp_path / "not/yet/there", 1 << 60, meminfo)
    assert not disk.ok and "free at" in disk.found and not memory.ok and "swap" in memory.remedy
    meminfo.write_text("MemAvailable:  524288 kB\nSwapFree:  1048576 kB\n")
    assert all(check.ok for check in space_checks(tmp_path, 1, meminfo))
    assert [check.name for check in space_checks(tmp_path, 1, tmp_path / "none")] == ["disk"]


def test_versions_compare_by_number() -> None:
    assert version_tuple("7.10.0-71") > version_tuple("7.2.4") > version_tuple("6.4")


@pytest.mark.parametrize("nvcc", ["echo 'V2 garbage'", "exit 1", "sleep 60"])
def test_an_nvcc_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvcc: str) -> None:
    monkeypatch.setattr("pylucebox.native.cuda.TRIAL_S", 0.3)
    make_cuda(tmp_path / "local/cuda-13.0", nvcc=nvcc)
    check = named(cuda_checks(SM_90, places(tmp_path)), "nvcc")
    assert not check.ok and "nvcc: not a working compiler" in check.found


def test_a_hip_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylucebox.native.rocm.TRIAL_S", 0.3)
    root = make_rocm(tmp_path / "opt/rocm-7.2.4")
    program(root / "llvm/bin/clang++", "sleep 60")  # a child of the shell, which a kill of the shell leaves
    check = named(rocm_checks(GFX1151, places(tmp_path)), "HIP compiler")
    assert not check.ok and "did not end in 0.3 s" in check.found


def test_a_named_hip_compiler_is_not_replaced(tmp_path: Path) -> None:
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    check = named(rocm_checks(GFX1151, places(tmp_path, HIPCXX="/no/clang++", PATH="")), "HIP compiler")
    assert not check.ok and check.found == "HIPCXX=/no/clang++: no such program"
