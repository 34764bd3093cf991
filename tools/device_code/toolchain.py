"""The compilers: clang-19 with the HIP headers and device libraries of Debian 12, and nvcc.

What is missing is fetched: compilers are installed where this runs as root, headers and bitcode are unpacked
into a folder of ours, so that nothing else on the machine sees a ROCm that cannot link.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import LuceboxError, MissingError
from pylucebox.core.paths import lock

COMPILER_PACKAGES = ("clang-19", "lld-19", "llvm-19")
COMPILER_PROGRAMS = ("clang++-19", "lld-19", "llvm-dis-19", "llvm-as-19")
HIP_PACKAGES = ("libamdhip64-dev", "rocm-device-libs")
HIP_VERSION = "5.2.3"
BITCODE = Path("usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
# Debian's device libraries end at gfx1036. An ISA file holds one number; all else in them is generic.
NEWEST_ISA = "1036"
MADE_ISAS = ("1100", "1151", "1201")
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda-13.0/bin")


@dataclass(frozen=True)
class HipToolchain:
    """clang for AMDGPU. root: unpacked packages; bitcode: device libraries with the ISA files made here."""

    compiler: str
    version: str
    root: Path
    bitcode: Path

    @property
    def description(self) -> str:
        return f"{self.version}, HIP {HIP_VERSION} headers and device libraries of Debian 12"


@dataclass(frozen=True)
class CudaToolchain:
    compiler: str
    version: str

    @property
    def description(self) -> str:
        return self.version


def find_hip(cache: Path, fetch: bool = True) -> HipToolchain:
    """Return the AMDGPU compiler; with `fetch`, what is absent is installed or unpacked below `cache`.

    Raises MissingError naming the packages when they cannot be had.
    """
    ready = cache / f"hip-{HIP_VERSION}"
    with lock(cache.with_name(f"{cache.name}.lock")):
        absent = [program for program in COMPILER_PROGRAMS if not shutil.which(program)]
        if not fetch and (absent or not ready.is_dir()):
            names = ", ".join(absent) or str(ready)
            raise MissingError(f"{names}: not there", hint="python tools/check_device_code.py")
        if absent:
            install_packages(COMPILER_PACKAGES)
        if not ready.is_dir():
            _make_ready(ready)
    version = processes.run(["clang++-19", "--version"], error=MissingError).lines[0]
    return HipToolchain("clang++-19", _clang_name(version), ready / "usr", ready / "bitcode")


def _make_ready(ready: Path) -> None:
    """Unpack headers and device libraries into a folder that is complete or absent."""
    partial = ready.with_name(f"{ready.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _unpack(HIP_PACKAGES, partial)
        _make_bitcode(partial / BITCODE, partial / "bitcode")
        partial.rename(ready)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def find_cuda() -> CudaToolchain:
    """Return nvcc of PATH, CUDA_PATH or the usual folders. Raises MissingError when there is none."""
    home = os.environ.get("CUDA_PATH")
    folders = [os.environ.get("PATH", ""), *([f"{home}/bin"] if home else []), *CUDA_FOLDERS]
    nvcc = shutil.which("nvcc", path=os.pathsep.join(folders))
    if nvcc is None:
        raise MissingError("nvcc: not found", hint="install the CUDA toolkit, or set CUDA_PATH")
    lines = processes.run([nvcc, "--version"], error=MissingError).lines
    found = re.search(r"V(\d+\.\d+\.\d+)", " ".join(lines))
    return CudaToolchain(nvcc, f"nvcc {found[1] if found else 'of unknown version'}")


def _clang_name(line: str) -> str:
    """Return "clang 19.1.7" of "Debian clang version 19.1.7 (3~deb12u1)"."""
    found = re.search(r"clang version (\S+)", line)
    return f"clang {found[1] if found else line}"


def install_packages(packages: Sequence[str]) -> None:
    """Install Debian packages. Raises MissingError that says how, when not root or without apt."""
    needed = f"{', '.join(packages)}: not installed"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(needed, hint=f"apt-get install {' '.join(packages)}")
    quiet: dict[str, str | None] = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        _with_fresh_lists(["apt-get", "install", "--yes", "--no-install-recommends", *packages], env=quiet)
    except LuceboxError as bad:
        raise MissingError(
            needed, log_tail=bad.log_tail, hint="apt-get update, and check its sources"
        ) from bad


def _unpack(packages: Sequence[str], root: Path) -> None:
    """Download packages and unpack them below `root`, without their dependencies and without installing."""
    needed = f"{', '.join(packages)} {HIP_VERSION}: cannot be had"
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise MissingError(needed, hint="they are packages of Debian 12")
    try:
        _with_fresh_lists(["apt-get", "download", *packages], cwd=root)
    except LuceboxError as bad:
        raise MissingError(
            needed, log_tail=bad.log_tail, hint="apt-get update, and check its sources"
        ) from bad
    for package in packages:
        found = sorted(root.glob(f"{package}_*.deb"))
        if len(found) != 1 or not found[0].name.startswith(f"{package}_{HIP_VERSION}-"):
            names = ", ".join(f.name for f in found)
            raise MissingError(f"{needed}; apt offers {names or 'nothing'}", hint="use the suite bookworm")
        processes.run(["dpkg", "-x", found[0], root], error=MissingError)


def _with_fresh_lists(
    argv: Sequence[str], env: dict[str, str | None] | None = None, cwd: Path | None = None
) -> None:
    """Run apt, and once more after an update: a fresh container has no package lists."""
    try:
        processes.run(argv, env=env, cwd=cwd, error=MissingError)
    except MissingError:
        processes.run(["apt-get", "update"], env=env, error=MissingError)
        processes.run(argv, env=env, cwd=cwd, error=MissingError)


def _make_bitcode(packaged: Path, made: Path) -> None:
    """Copy the device libraries and add the ISA files that newer GPUs ask for."""
    shutil.copytree(packaged, made)
    newest = made / f"oclc_isa_version_{NEWEST_ISA}.bc"
    text = "\n".join(processes.run(["llvm-dis-19", "-o", "-", newest], error=MissingError).lines)
    number = f"i32 {_isa_number(NEWEST_ISA)}"
    if text.count(number) != 1:
        raise MissingError(
            f"{newest}: does not hold '{number}' once", hint=f"use {HIP_PACKAGES[1]} {HIP_VERSION}"
        )
    for isa in MADE_ISAS:
        source = made / f"oclc_isa_version_{isa}.ll"
        source.write_text(text.replace(number, f"i32 {_isa_number(isa)}") + "\n", encoding="utf-8")
        processes.run(["llvm-as-19", source, "-o", source.with_suffix(".bc")], error=MissingError)
        source.unlink()


def _isa_number(isa: str) -> int:
    """Return major * 1000 + minor * 100 + stepping: 11501 of "1151", stepping in base 16."""
    return int(isa[:-2]) * 1000 + int(isa[-2]) * 100 + int(isa[-1], 16)
