"""liblucebox: what it exports, what it says of itself, and how a wrong library is refused."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import lacking

from pylucebox.core.errors import IntegrityError, MissingError, RequestError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.runtime import capi


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        lacking("native", f"the program {name}")
    assert path is not None
    return path


def test_build_info(build: BuildReceipt) -> None:
    info = capi.load(build.library_path).build_info()
    assert info["abi_version"] == capi.ABI_VERSION
    assert info["upstream_build"] == build.upstream_build
    assert info["series_sha256"] == build.series_sha256
    assert {"CPU", "RPC"} <= set(info["backends"])
    assert info["compiler"].split()[0] in ("GNU", "Clang", "AppleClang")


def test_text_is_written_only_into_a_large_enough_buffer(build: BuildReceipt) -> None:
    import ctypes

    call = capi.load(build.library_path).functions["lucebox_build_info"]
    needed = call(None, 0)
    buffer = ctypes.create_string_buffer(b"x" * needed, needed)
    assert call(buffer, needed - 1) == needed
    assert buffer.raw == b"x" * needed
    assert call(buffer, needed) == needed
    assert buffer.raw[-1:] == b"\0" and buffer.raw[:1] == b"{"
    assert call(None, 1) == -1


def test_only_our_symbols_are_exported(build: BuildReceipt) -> None:
    command = [tool("nm"), "-D", "--defined-only", "--format=posix", build.library_path]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = {line.split()[0] for line in listed.splitlines() if line}
    assert symbols == set(capi.DECLARATIONS)


@pytest.mark.parametrize(("language", "standard"), [("c", "c11"), ("c++", "c++17")])
def test_headers_compile_alone(layout: Layout, language: str, standard: str) -> None:
    overlay = layout.patches_dir / "overlay"
    headers = ["include/lucebox.h", "ggml/include/ggml-rocmfpx.h", "ggml/include/ggml-rocmfpx-types.h"]
    include = [f"-I{overlay / 'ggml/include'}", f"-I{layout.prepared_dir / 'ggml/include'}"]
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-std={standard}", "-fsyntax-only"]
    compiler = tool("gcc" if language == "c" else "g++")
    for header in headers:
        command = [compiler, *flags, *include, "-x", language, "-"]
        text = f'#include "{overlay / header}"\nint more_than_a_header;\n'
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def compiled(tmp_path: Path, code: str) -> Path:
    out = tmp_path / "other.so"
    command = [tool("gcc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(out)]
    subprocess.run(command, input=code, text=True, check=True)
    return out


def test_missing_library_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        capi.load(tmp_path / "liblucebox.so")
    assert caught.value.hint == "run `lucebox build`"


def test_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "liblucebox.so"
    path.write_bytes(b"not a library")
    with pytest.raises(MissingError, match="cannot be loaded"):
        capi.load(path)


def test_other_abi_version_names_both(tmp_path: Path) -> None:
    path = compiled(tmp_path, "int lucebox_abi_version(void) { return 99; }\n")
    with pytest.raises(IntegrityError, match=rf"ABI version 99, this lucebox needs {capi.ABI_VERSION}$"):
        capi.load(path)


def test_missing_function_is_named(tmp_path: Path) -> None:
    path = compiled(tmp_path, f"int lucebox_abi_version(void) {{ return {capi.ABI_VERSION}; }}\n")
    with pytest.raises(IntegrityError, match="has no function lucebox_build_info"):
        capi.load(path)


def test_codes_become_errors(tmp_path: Path) -> None:
    code = f"""
        int lucebox_abi_version(void) {{ return {capi.ABI_VERSION}; }}
        int lucebox_build_info(char * buf, unsigned long size) {{ return -5; }}
    """
    with pytest.raises(RequestError, match="lucebox_build_info: out of memory"):
        capi.load(compiled(tmp_path, code)).build_info()
