"""Configure and compile with stand-ins for cmake and ninja: what runs, what is checked, what is reported."""

import json
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_toolkits import FATBIN, make_cublas, make_cuda, make_rocm, places, write_elf
from small_upstream import make_layout, moved

from pylucebox.core import paths, processes
from pylucebox.core.builds import find_build, list_builds
from pylucebox.core.errors import BuildError, IntegrityError, MissingError, RequestError
from pylucebox.core.hints import find_hint
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native import cmake
from pylucebox.native.preflight import find_kit
from pylucebox.native.targets import PRODUCTS, find_target
from pylucebox.native.toolchain import Toolchain

CMAKE = """
while [ $# -gt 0 ]; do
  case $1 in -S) source=$2; shift;; -B) folder=$2; shift;; esac
  shift
done
echo configure >> "$(dirname "$0")/calls"
if [ -f "$(dirname "$0")/fail-configure" ]; then echo "CMake Error: HIP compiler not found"; exit 1; fi
echo "-- git ceiling $GIT_CEILING_DIRECTORIES"
mkdir -p "$folder"
cat > "$folder/CMakeCache.txt" <<END
// comment
CMAKE_HOME_DIRECTORY:INTERNAL=$source
CMAKE_CACHEFILE_DIR:INTERNAL=$folder
GGML_CPU:BOOL=ON
GGML_RPC:BOOL=$(cat "$(dirname "$0")/rpc")
GGML_AVAILABLE_BACKENDS:INTERNAL=ggml-cpu;ggml-rpc
END
touch "$folder/build.ninja"
"""
NINJA = """
echo compile >> "$(dirname "$0")/calls"
folder=$2
mkdir -p "$folder/bin"
echo "[1/3] first"
if [ -f "$(dirname "$0")/fail-compile" ]; then
  printf 'FAILED: x.o\\nx.c:1: error: broken\\nNo space left on device\\n'; i=0
  while [ $i -lt 30 ]; do echo "noise $i"; i=$((i+1)); done
  echo "ninja: build stopped"; exit 1
fi
echo "[3/3] last"
for name in $(cat "$(dirname "$0")/products"); do echo x > "$folder/bin/$name"; done
"""


@dataclass
class Small:
    """A layout, a source and stand-in tools; `calls` is what they were asked to do."""

    home: Path
    layout: Layout
    source: cmake.Source
    tools: Path

    @property
    def calls(self) -> list[str]:
        path = self.tools / "calls"
        return path.read_text().split() if path.exists() else []

    def build(self, **options: object) -> cmake.Built:
        return cmake.build(self.layout, find_target("cpu"), self.source, jobs=1, **options)  # type: ignore[arg-type]


def program(path: Path, script: str) -> Path:
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    tools, layout = tmp_path / "tools", make_layout(tmp_path / "home")
    tools.mkdir()
    layout.prepared_dir.mkdir()
    chain = Toolchain(
        cmake=program(tools / "cmake", CMAKE),
        ninja=program(tools / "ninja", NINJA),
        cc=program(tools / "cc", "echo cc 1.0"),
        cxx=program(tools / "c++", "echo c++ 1.0"),
    )
    (tools / "rpc").write_text("ON")
    (tools / "products").write_text(" ".join(PRODUCTS))
    monkeypatch.setattr(cmake, "find_toolchain", lambda: replace(chain))
    source = cmake.Source(layout.prepared_dir, "id1", "names1", 7, "b7", "series1")
    return Small(tmp_path / "home", layout, source, tools)


def test_a_build_reports_its_steps_and_leaves_a_receipt(small: Small) -> None:
    steps: list[str] = []
    progress: list[tuple[int, int]] = []
    built = small.build(
        on_step=lambda name, what, seconds: steps.append(f"{name}: {what}"),
        progress=lambda done, total: progress.append((done, total)),
    )
    assert steps == ["configure: cpu, rpc on, c++ 1.0", "compile: 3 steps"]
    assert progress == [(1, 3), (3, 3)] and built.changed and built.steps == 3
    receipt = find_build(small.layout, "cpu")
    assert receipt == built.receipt
    assert (receipt.target, receipt.upstream_build, receipt.series_sha256) == ("cpu", 7, "series1")
    assert receipt.backends == ("cpu", "rpc") and receipt.server_path.is_file()
    log = (small.layout.build_dir("cpu") / "log" / "configure.log").read_text()
    assert f"-- git ceiling {small.layout.work_dir}" in log
    assert "-DLLAMA_BUILD_NUMBER=7 -DLLAMA_BUILD_COMMIT=b7" in log


def test_a_second_build_starts_nothing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small.build()

    def no_process(*words: object, **_: object) -> None:
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(processes, "run", no_process)
    second = small.build()
    assert not second.changed and second.receipt == first.receipt
    assert cmake.find_current(small.layout, find_target("cpu"), small.source) == first.receipt


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ({"id": "id2"}, ["compile"]),  # content of a file: ninja sees which
        ({"names": "names2", "id": "id2"}, ["configure", "compile"]),  # a new file: cmake must glob again
        ({"series_sha256": "series2", "id": "id2"}, ["configure", "compile"]),
    ],
)
def test_what_changed_decides_what_runs(small: Small, change: dict[str, str], calls: list[str]) -> None:
    first = small.build().receipt
    (small.tools / "calls").unlink()
    small.source = replace(small.source, **change)
    second = small.build().receipt
    assert small.calls == calls and second.id != first.id


def test_a_removed_or_replaced_binary_is_noticed(small: Small) -> None:
    receipt = small.build().receipt
    receipt.server_path.unlink()
    assert small.build().changed
    receipt.library_path.write_text("other content")
    assert small.build().changed


@pytest.mark.parametrize("name", ["llama-server", "libggml.so"])
def test_a_changed_binary_is_refused_and_made_again(small: Small, name: str) -> None:
    """Ninja takes a changed file for a newer one and would leave it; so it must be gone before ninja runs."""
    (small.tools / "products").write_text(" ".join([*PRODUCTS, "libggml.so"]))
    program(small.tools / "ninja", NINJA.replace("echo x >", "[ -e $folder/bin/$name ] || echo x >"))
    changed = small.build().receipt.bin_dir / name
    changed.write_text("another program")
    with pytest.raises(IntegrityError, match=f"{name}: changed since the build") as caught:
        find_build(small.layout)
    assert caught.value.hint == "lucebox build --target cpu"
    assert small.build().changed and changed.read_text() == "x\n"
    changed.unlink()
    with pytest.raises(IntegrityError, match=f"{name}: removed since the build"):
        find_build(small.layout, "cpu")
    assert small.build().changed and changed.is_file()
    assert not small.build().changed and find_build(small.layout).target == "cpu"


def test_a_newer_compiler_configures_again(small: Small) -> None:
    first = small.build().receipt
    (small.tools / "calls").unlink()
    program(small.tools / "c++", "echo c++ 2.0")
    second = small.build().receipt
    assert small.calls == ["configure", "compile"] and second.id != first.id
    assert second.compiler == "c++ 2.0 + cc 1.0"


def test_flags_from_the_environment_count(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small.build().receipt
    monkeypatch.setenv("CXXFLAGS", "-O0")
    second = small.build()
    assert second.changed and second.receipt.id != first.id and small.calls.count("configure") == 2


def test_fresh_empties_the_folder(small: Small) -> None:
    small.build()
    stray = small.layout.build_dir("cpu") / "stray.o"
    stray.write_text("")
    assert small.build(fresh=True).changed
    assert not stray.exists()


def test_a_moved_clone_keeps_its_build(small: Small, tmp_path: Path) -> None:
    first = small.build().receipt
    small.layout = moved(small.layout, small.home, tmp_path / "elsewhere")
    small.source = replace(small.source, tree=small.layout.prepared_dir)
    (small.tools / "calls").unlink()
    again = small.build()
    assert small.calls == [] and not again.changed
    assert again.receipt.id == first.id and again.receipt.bin_dir == tmp_path / "elsewhere/build/cpu/bin"


def test_a_cache_of_another_place_is_not_reused(small: Small, tmp_path: Path) -> None:
    small.build()
    stray = small.layout.build_dir("cpu") / "stale.o"
    stray.write_text("")
    small.layout = moved(small.layout, small.home, tmp_path / "elsewhere")
    small.source = replace(small.source, tree=small.layout.prepared_dir, id="id2")
    (small.tools / "calls").unlink()
    small.build()
    assert small.calls == ["configure", "compile"]
    assert not (small.layout.build_dir("cpu") / "stale.o").exists()
    home = cmake.read_cache(small.layout.build_dir("cpu"))["CMAKE_HOME_DIRECTORY"]
    assert home == str(small.layout.prepared_dir)


def test_a_backend_that_is_off_stops_the_build(small: Small) -> None:
    (small.tools / "rpc").write_text("OFF")
    with pytest.raises(BuildError, match="configure asked for RPC, but the build tree has it off") as caught:
        small.build()
    assert caught.value.exit_code == 5 and caught.value.log_path
    assert small.calls == ["configure"] and list_builds(small.layout) == []


def test_a_failed_configure_shows_log_and_hint(small: Small) -> None:
    (small.tools / "fail-configure").touch()
    with pytest.raises(BuildError, match=r"configure failed \(exit 1\)") as caught:
        small.build()
    assert caught.value.log_path == small.layout.build_dir("cpu") / "log" / "configure.log"
    assert caught.value.log_tail == ("CMake Error: HIP compiler not found",)
    assert "ROCM_PATH" in (caught.value.hint or "")


def test_a_failed_compile_shows_its_first_error_and_voids_the_receipt(small: Small) -> None:
    small.build()
    small.source = replace(small.source, id="id2")
    (small.tools / "fail-compile").touch()
    with pytest.raises(BuildError, match=r"compile failed \(exit 1\)") as caught:
        small.build()
    assert caught.value.log_tail[:2] == ("FAILED: x.o", "x.c:1: error: broken")
    assert "disk space" in (caught.value.hint or "")
    with pytest.raises(MissingError, match="no finished build of target 'cpu'"):
        find_build(small.layout, "cpu")
    (small.tools / "fail-compile").unlink()
    assert small.build().changed


def test_a_product_that_ninja_did_not_make_is_named(small: Small) -> None:
    (small.tools / "products").write_text("llama-server")
    with pytest.raises(BuildError, match="llama-quantize: ninja ended well but did not make it"):
        small.build()
    assert list_builds(small.layout) == []


def test_the_identity_depends_on_nothing_but_inputs(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    target, chain = find_target("cpu"), cmake.find_toolchain()
    first = cmake.build_id(target, small.source, chain)
    assert cmake.build_id(target, replace(small.source, tree=Path("/other")), chain) == first
    assert cmake.build_id(replace(target, native=False), small.source, chain) != first
    monkeypatch.setattr(cmake, "cpu_features", lambda: "another processor")
    assert cmake.build_id(target, small.source, chain) != first


def test_finding_builds(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    with pytest.raises(MissingError, match="nothing is built yet") as caught:
        find_build(small.layout)
    assert caught.value.hint == "lucebox build"
    receipt = small.build().receipt
    assert find_build(small.layout) == receipt
    with pytest.raises(MissingError, match=r"'cpuu' \(did you mean cpu\?\)"):
        find_build(small.layout, "cpuu")
    shutil.copytree(small.layout.build_dir("cpu"), small.layout.build_dir("gfx1151"))
    replace(receipt, target="gfx1151").save(small.layout.build_dir("gfx1151"))
    with pytest.raises(RequestError, match="several builds: cpu, gfx1151"):
        find_build(small.layout)
    monkeypatch.setenv("LUCEBOX_TARGET", "gfx1151")
    assert find_build(small.layout).target == "gfx1151"


def test_a_damaged_receipt_is_an_integrity_error(small: Small) -> None:
    small.build()
    path = small.layout.build_dir("cpu") / "receipt.json"
    path.write_text('{"id": "x"}')
    with pytest.raises(Exception, match=r"receipt\.json: field 'target' is missing") as caught:
        BuildReceipt.load(path.parent)
    assert getattr(caught.value, "exit_code", 0) == 4


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("write failed: No space left on device", "disk space"),
        ("all is well", None),
    ],
)
def test_hints(line: str, word: str | None) -> None:
    hint = find_hint(["noise", line, "more noise"])
    assert (word is None and hint is None) or (word is not None and hint is not None and word in hint)


def test_two_builds_of_one_target_take_turns(small: Small) -> None:
    waiting = threading.Event()
    results: list[cmake.Built] = []
    second = threading.Thread(target=lambda: results.append(small.build(on_wait=waiting.set)))
    with paths.lock(small.layout.build_root / "cpu.lock"):
        second.start()
        assert waiting.wait(timeout=30)
        assert small.calls == []
    second.join(timeout=30)
    assert [one.changed for one in results] == [True]
    assert not small.build(on_wait=lambda: pytest.fail("the lock was not given back")).changed


def test_portable_is_another_build_in_the_same_folder(small: Small) -> None:
    """The option given decides, not what the folder was before; both are told by the receipt."""
    native = small.build().receipt
    target = find_target("cpu", portable=True)
    built = cmake.build(small.layout, target, small.source, jobs=1)
    assert built.changed and built.receipt.portable and built.receipt.id != native.id
    assert "-DGGML_NATIVE=OFF" in (small.layout.build_dir("cpu") / "log" / "configure.log").read_text()
    assert cmake.find_current(small.layout, target, small.source) == built.receipt
    assert cmake.find_current(small.layout, find_target("cpu"), small.source) is None
    assert built.receipt.build_command == "lucebox build --target cpu --portable"
    assert small.build().receipt.id == native.id and small.calls.count("configure") == 3


CUDA_LINE = "nvcc -O3 -gencode arch=compute_90a,code=sm_90a -c /src/a.cu"


@pytest.fixture
def small_cuda(small: Small, monkeypatch: pytest.MonkeyPatch) -> Small:
    """The stand-ins with a CUDA toolkit: cmake turns CUDA on, ninja makes a library with a real fatbin."""
    make_cuda(small.tools.parent / "local/cuda-13.0")
    make_cublas(small.tools.parent / "usr/include", small.tools.parent / "usr/lib64")
    where = places(small.tools.parent)
    monkeypatch.setattr(cmake, "find_kit", lambda target: find_kit(target, where))
    write_elf(small.tools / "libggml-cuda.so", ".nv_fatbin", FATBIN)
    rows = [{"directory": "/", "command": CUDA_LINE, "file": "/src/a.cu"}]
    (small.tools / "commands.json").write_text(json.dumps(rows))
    on = CMAKE.replace("ggml-cpu;ggml-rpc", "ggml-cpu;ggml-rpc;ggml-cuda\nGGML_CUDA:BOOL=ON")
    copy = 'cp "$(dirname "$0")/commands.json" "$folder/compile_commands.json"\n'
    program(small.tools / "cmake", on + copy)
    program(small.tools / "ninja", NINJA + 'cp "$(dirname "$0")/libggml-cuda.so" "$folder/bin/"\n')
    program(small.tools / "cc", CC)
    return small


CC = """
while [ $# -gt 1 ]; do case $1 in -o) echo stub > "$2";; esac; shift; done
echo "cc 1.0"
"""


def build_cuda(small: Small, name: str = "sm_90") -> cmake.Built:
    return cmake.build(small.layout, find_target(name), small.source, jobs=1)


def test_a_cuda_build_proves_itself_and_tells_how(small_cuda: Small) -> None:
    receipt = build_cuda(small_cuda).receipt
    assert BuildReceipt.load(small_cuda.layout.build_dir("sm_90")) == receipt
    assert (receipt.arch, receipt.toolkit, receipt.link_stub) == ("90a", "CUDA 13.0.88", True)
    assert receipt.device_code == {"sm_90a": 1} and receipt.flags == {"optimisation": "-O3"}
    assert receipt.is_gpu and receipt.backends == ("cpu", "rpc", "cuda")
    assert (small_cuda.layout.build_dir("sm_90") / "link/libcuda.so").is_file()
    log = (small_cuda.layout.build_dir("sm_90") / "log" / "configure.log").read_text()
    assert "-DCMAKE_CUDA_ARCHITECTURES=90a-real" in log and "-DGGML_CUDA_NCCL=OFF" in log
    assert not build_cuda(small_cuda).changed


def test_a_cuda_build_without_the_gpus_code_fails(small_cuda: Small) -> None:
    write_elf(small_cuda.tools / "libggml-cuda.so", ".nv_fatbin", b"")
    with pytest.raises(BuildError, match="holds no machine code for sm_90a, none at all"):
        build_cuda(small_cuda)
    assert list_builds(small_cuda.layout) == []


def test_a_configure_that_drops_the_gpu_fails(small_cuda: Small) -> None:
    program(small_cuda.tools / "cmake", CMAKE)
    with pytest.raises(BuildError, match="configure asked for CUDA, but the build tree has it off"):
        build_cuda(small_cuda)
    assert "compile" not in small_cuda.calls and list_builds(small_cuda.layout) == []


def test_a_hip_that_is_dropped_fails_too(small_cuda: Small) -> None:
    make_rocm(small_cuda.tools.parent / "opt/rocm-7.2.4")
    program(small_cuda.tools / "cmake", CMAKE + 'echo "CMake Warning: HIP compiler not found"\n')
    with pytest.raises(BuildError, match="configure asked for HIP, but the build tree has it off") as caught:
        build_cuda(small_cuda, "gfx1151")
    assert caught.value.exit_code == 5 and caught.value.log_tail == ("CMake Warning: HIP compiler not found",)
    assert "ROCM_PATH" in (caught.value.hint or "")


def test_another_toolkit_is_another_build(small_cuda: Small) -> None:
    first = build_cuda(small_cuda).receipt
    make_cuda(small_cuda.tools.parent / "local/cuda-13.1", "13010", "echo 'release 13.1, V13.1.2'")
    second = build_cuda(small_cuda)
    assert second.changed and second.receipt.toolkit == "CUDA 13.1.2" and second.receipt.id != first.id


def test_a_toolkit_that_went_away_is_missing(small_cuda: Small) -> None:
    build_cuda(small_cuda)
    shutil.rmtree(small_cuda.tools.parent / "local")
    with pytest.raises(MissingError, match="target sm_90: no CUDA toolkit found"):
        build_cuda(small_cuda)
