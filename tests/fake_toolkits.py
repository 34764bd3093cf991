"""Folders that look like a CUDA toolkit or a ROCm, with shell scripts for compilers."""

import struct
from pathlib import Path

from pylucebox.native.places import Places

VECTORS = Path(__file__).parent / "vectors/device-code"
FATBIN = (VECTORS / "doubles-sm_90a.fatbin").read_bytes()  # of an sm_90a build
CLANG = """
case "$*" in *--version*) echo "AMD clang version 19.0.0"; exit 0;; esac
case "$*" in *=gfx9999*) echo "clang: error: unsupported HIP gpu architecture: gfx9999"; exit 1;; esac
exit 0
"""
NVCC = 'echo "Cuda compilation tools, release 13.0, V13.0.88"'
FAMILY_HEADERS = {
    "HIP headers": "hip/hip_runtime.h",
    "hipBLAS": "hipblas/hipblas.h",
    "rocBLAS": "rocblas/rocblas.h",
    "hipCUB": "hipcub/hipcub.hpp",
    "rocPRIM": "rocprim/rocprim.hpp",
    "rocWMMA": "rocwmma/rocwmma.hpp",
}


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)
    return path


def text(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def make_rocm(root: Path, version: str = "7.2.4", compiler: str = "llvm/bin/clang++") -> Path:
    """Write a whole ROCm below `root`."""
    major, minor, patch = version.split(".")
    text(
        root / "include/hip/hip_version.h",
        f"#define HIP_VERSION_MAJOR {major}\n#define HIP_VERSION_MINOR {minor}\n",
    )
    text(root / ".info/version", f"{major}.{minor}.{patch}-71\n")
    for header in FAMILY_HEADERS.values():
        text(root / "include" / header)
    text(root / "include/hipblas/hipblas.h", "#include <hipblas-common/hipblas-common.h>\n")
    text(root / "include/hipblas-common/hipblas-common.h")
    for name in ("hip", "hipblas", "rocblas"):
        text(root / f"lib/cmake/{name}/{name}-config.cmake")
    program(root / compiler, CLANG)
    return root


def make_cuda(root: Path, version: str = "13000", nvcc: str = NVCC) -> Path:
    """Write a CUDA toolkit without cuBLAS and without a stub of the driver below `root`."""
    text(root / "include/cuda.h", f"#define CUDA_VERSION {version}\n")
    text(root / "lib64/libcudart.so")
    program(root / "bin/nvcc", nvcc)
    return root


def make_cublas(include: Path, lib: Path, major: int = 13, suffix: str = "") -> None:
    """Write cuBLAS's headers and libraries."""
    text(include / "cublas_v2.h")
    text(include / "cublas_api.h", f"#define CUBLAS_VER_MAJOR {major}\n")
    for name in ("libcublas.so", "libcublasLt.so"):
        text(lib / f"{name}{suffix}")


def places(home: Path, **env: str) -> Places:
    """Return places that are all below `home`."""
    return Places(
        env=env,
        packages=(home / "venv/lib/python3.12/site-packages",),
        prefixes=(home / "venv",),
        opt=home / "opt",
        local=home / "local",
        system=home / "usr",
    )


def write_elf(path: Path, name: str, content: bytes) -> Path:
    """Write an ELF file with one section of that name, and a table of names."""
    names = b"\0" + name.encode() + b"\0.shstrtab\0"
    table = 64 + len(content) + len(names)
    header = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    rows = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    rows += struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, len(content), 0, 0, 1, 0)
    rows += struct.pack("<IIQQQQIIQQ", 2 + len(name), 3, 0, 0, 64 + len(content), len(names), 0, 0, 1, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + content + names + rows)
    return path
