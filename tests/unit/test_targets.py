"""The target table and the search for tools."""

from pathlib import Path

import pytest

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.native import toolchain
from pylucebox.native.targets import COMMON_DEFINES, PRODUCTS, TARGETS, find_target
from pylucebox.native.toolchain import find_toolchain


def test_every_row_is_usable() -> None:
    for name, target in TARGETS.items():
        defines = target.cmake_defines(11549, "b11549", "abc")
        assert find_target(name) is target and target.summary and "rpc" in target.backends
        assert (defines["LLAMA_BUILD_NUMBER"], defines["LLAMA_BUILD_COMMIT"]) == ("11549", "b11549")
        assert set(COMMON_DEFINES) <= set(defines)
    assert "llama-server" in PRODUCTS and "liblucebox.so" in PRODUCTS


def test_nothing_is_downloaded_by_a_build() -> None:
    off = ("LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL", "LLAMA_LLGUIDANCE")
    assert {COMMON_DEFINES[name] for name in off} == {"OFF"}


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"unknown target 'cpi' \(did you mean cpu\?\)"):
        find_target("cpi")
    with pytest.raises(RequestError, match=r"unknown target 'zzzzzz'$"):
        find_target("zzzzzz")


def fake_program(path: Path, script: str = "exit 0") -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_program(tmp_path / "cc")
    with pytest.raises(MissingError, match=r"no C\+\+ compiler found") as caught:
        find_toolchain()
    assert "apt-get install g++" in (caught.value.hint or "") and caught.value.exit_code == 3


def test_a_bad_cxx_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingError, match="CXX=no-such-compiler: no such program"):
        find_toolchain()


def test_a_compiler_without_cxx17_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "CXX", str(fake_program(tmp_path / "old++", "echo 'error: no <optional>' >&2; exit 1"))
    )
    with pytest.raises(MissingError, match=r"old\+\+: cannot compile C\+\+17") as caught:
        find_toolchain().check()
    assert caught.value.log_tail == ("error: no <optional>",)


def test_the_packaged_cmake_and_ninja_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cmake
    import ninja

    tools = find_toolchain()
    assert tools.cmake.parent == Path(cmake.CMAKE_BIN_DIR).absolute()
    assert tools.ninja.parent == Path(ninja.BIN_DIR).absolute()
    monkeypatch.setattr(cmake, "CMAKE_BIN_DIR", str(tmp_path))  # a package without a binary for this platform
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    with pytest.raises(MissingError, match="cmake not found"):
        find_toolchain()


def test_a_replaced_compiler_changes_the_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fake_program(tmp_path / "c++")
    monkeypatch.setenv("CXX", str(compiler))
    before = find_toolchain().stamp()
    fake_program(compiler, "exit 1 # newer")
    assert find_toolchain().stamp() != before


def test_a_users_ccache_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CCACHE_BASEDIR", "CCACHE_NOHASHDIR", "CCACHE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    assert toolchain.compiler_cache_env(Path("/x"))["CCACHE_BASEDIR"] == "/x"
    monkeypatch.setenv("CCACHE_BASEDIR", "/mine")
    assert "CCACHE_BASEDIR" not in toolchain.compiler_cache_env(Path("/x"))


def test_a_program_that_is_no_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(MissingError, match="/bin/false: not a working compiler"):
        _ = find_toolchain().compiler


def test_the_page_on_targets_lists_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/targets.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [(row[0].strip("| `"), row[1]) for row in rows] == [(t.name, t.summary) for t in TARGETS.values()]
    assert all(target.needs in row[2] for row, target in zip(rows, TARGETS.values(), strict=True))


def test_gpu_rows_ask_for_one_real_architecture() -> None:
    for target in TARGETS.values():
        defines = target.cmake_defines(1, "b1", "x")
        device = target.device_backend
        assert bool(device) == bool(target.arch) == (target.name != "cpu")
        assert target.products[-1] == (f"libggml-{device}.so" if device else PRODUCTS[-1])
        if device == "cuda":
            assert defines["CMAKE_CUDA_ARCHITECTURES"] == f"{target.arch}-real"
            assert (defines["GGML_CUDA"], defines["GGML_CUDA_NCCL"]) == ("ON", "OFF")
            assert target.name == f"sm_{target.arch.rstrip('a')}"
        elif device == "hip":
            assert {defines["CMAKE_HIP_ARCHITECTURES"], defines["AMDGPU_TARGETS"]} == {target.name}
    assert {t.arch for t in TARGETS.values()} >= {"80", "86", "89", "90a", "120a"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("vulkan", "there is no vulkan target yet"),
        ("SYCL", "there is no sycl target yet"),
        ("rocm", "'rocm' names no one GPU: the targets are gfx1151, gfx1201, gfx1100"),
        ("gfx1511", r"unknown target 'gfx1511' \(did you mean gfx1151\?\)"),
        ("sm90", r"unknown target 'sm90' \(did you mean sm_90\?\)"),
    ],
)
def test_what_is_no_target_says_what_there_is(name: str, line: str) -> None:
    with pytest.raises(RequestError, match=line) as caught:
        find_target(name)
    assert "known targets: cpu, gfx1151" in (caught.value.hint or "")


def test_portable_is_not_native() -> None:
    assert find_target("cpu").cmake_defines(1, "b1", "x")["GGML_NATIVE"] == "ON"
    portable = find_target("cpu", portable=True)
    assert portable.name == "cpu" and portable.cmake_defines(1, "b1", "x")["GGML_NATIVE"] == "OFF"
