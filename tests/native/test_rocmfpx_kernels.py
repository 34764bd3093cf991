"""ROCmFPX dot products and the CPU ops on them: every engine of this machine, and NEON under emulation."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import lacking

from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt

PROGRAMS = ["test-lucebox-dot", "test-lucebox-matmul", "test-lucebox-cpu-ops"]
CROSS_COMPILER, CROSS_CXX, EMULATOR = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64-static"
X86_EMULATOR = "qemu-x86_64-static"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(build: BuildReceipt, program: str) -> None:
    done = subprocess.run([build.bin_dir / program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def compile_dot_test(tree: Path, out: Path, cc: str, cxx: str, *flags: str) -> Path:
    """Compile the codecs, all kernels of one architecture and their test, without the rest of ggml."""
    include = ["-I", str(tree / "ggml/include"), "-I", str(tree / "ggml/src")]
    options = ["-ffp-contract=off", *flags, *include]
    sources = sorted((tree / "ggml/src/ggml-rocmfpx").glob("*.c"))
    sources = [s for s in sources if not s.name.endswith("-cpu.c")]
    for source in sources:
        subprocess.run([cc, *options, "-c", source, "-o", out / f"{source.stem}.o"], check=True)
    test = tree / "tests/test-lucebox-dot.cpp"
    objects = [out / f"{source.stem}.o" for source in sources]
    program = out / "test-dot"
    subprocess.run([cxx, "-std=c++17", *options, test, *objects, "-o", program, "-lm"], check=True)
    return program


def test_neon_under_emulation(build: BuildReceipt, layout: Layout, tmp_path: Path) -> None:
    missing = [name for name in (CROSS_COMPILER, CROSS_CXX, EMULATOR) if shutil.which(name) is None]
    if missing:
        lacking("emulation", f"NEON kernels: {', '.join(missing)} not found")
    program = compile_dot_test(layout.prepared_dir, tmp_path, CROSS_COMPILER, CROSS_CXX, "-O2", "-static")
    done = subprocess.run([EMULATOR, program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "neon" in done.stderr and "not on this machine" not in done.stderr


def test_dispatch_on_older_processors(build: BuildReceipt, layout: Layout, tmp_path: Path) -> None:
    """One binary runs everywhere: with AVX2 alone, and with neither AVX2 nor AVX-512."""
    if shutil.which(X86_EMULATOR) is None or platform.machine() != "x86_64":
        lacking("emulation", f"dispatch of x86 kernels: {X86_EMULATOR} not found, or not an x86-64 machine")
    program = compile_dot_test(layout.prepared_dir, tmp_path, "gcc", "g++", "-O2", "-static")
    for processor, absent in (("Haswell", ["avx512"]), ("Nehalem", ["avx2", "avx512"])):
        done = subprocess.run([X86_EMULATOR, "-cpu", processor, program], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        lines = [line for line in done.stderr.splitlines() if line.endswith("not on this machine")]
        assert [line.split()[0] for line in lines] == absent


def test_kernels_under_sanitizers(build: BuildReceipt, layout: Layout, tmp_path: Path) -> None:
    """Buffers end where the data ends: a read or write past them, or undefined arithmetic, ends it."""
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        lacking("native", "sanitizers: gcc not found")
    flags = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = compile_dot_test(layout.prepared_dir, tmp_path, "gcc", "g++", *flags)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
