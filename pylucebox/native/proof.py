"""Proves that a GPU build is one: back-end on, right flags, code for the asked GPU, no kernel that spills."""

import json
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import BuildError
from pylucebox.core.hints import find_hint
from pylucebox.native.device_code import (
    Unpacker,
    cuda_architectures,
    hip_code_objects,
    make_bundle,
    section,
)
from pylucebox.native.kernel_metadata import kernel_resources
from pylucebox.native.resource_report import KernelResources
from pylucebox.native.rocm import RocmKit
from pylucebox.native.targets import Target

CACHE_ENTRY = re.compile(r"(?P<name>[^#/:][^:=]*):[A-Z]+=(?P<value>.*)")
OUR_KERNELS = ("rocmfpx", "ds4")
RECORDED = {
    "cuda": ("GGML_CUDA_FA", "GGML_CUDA_FA_ALL_QUANTS", "GGML_CUDA_GRAPHS"),
    "hip": ("GGML_CUDA_FA", "GGML_CUDA_FA_ALL_QUANTS", "GGML_HIP_GRAPHS", "GGML_HIP_NO_VMM"),
}
FRESH_HINT = "run `lucebox build --fresh`"


def read_cache(folder: Path) -> dict[str, str]:
    """Return CMakeCache.txt as a dictionary, empty when there is none."""
    try:
        text = (folder / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = (CACHE_ENTRY.fullmatch(line) for line in text.splitlines())
    return {match["name"]: match["value"] for match in found if match}


def check_backends(target: Target, folder: Path) -> None:
    """Read CMake's cache and raise BuildError when a back-end the target asks for is off."""
    cache = read_cache(folder)
    available = cache.get("GGML_AVAILABLE_BACKENDS", "").split(";")
    log = folder / "log" / "configure.log"
    for backend in target.backends:
        on = cache.get(f"GGML_{backend.upper()}", "OFF").upper() not in ("OFF", "0", "FALSE", "NO", "")
        if f"ggml-{backend}" not in available or not on:
            lines = (
                log.read_text(encoding="utf-8").splitlines()[1:] if log.is_file() else []
            )  # less the command
            raise BuildError(
                f"configure asked for {backend.upper()}, but the build tree has it off",
                log_path=log,
                log_tail=[line for line in lines if "Warning" in line or backend.upper() in line][-5:],
                hint=find_hint(lines),
            )


def check_flags(target: Target, folder: Path) -> dict[str, str]:
    """Read how the device files are compiled and return what a receipt should tell.

    Raises BuildError when one is not compiled with -O3 for the asked GPU, or with wavefronts of 64 lanes.
    """
    device = target.device_backend
    if not device:
        return {}
    path = folder / "compile_commands.json"
    try:
        commands = json.loads(path.read_text(encoding="utf-8"))
        words = [shlex.split(one["command"]) for one in commands if str(one["file"]).endswith(".cu")]
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise BuildError(f"{path}: cannot be read: {bad}", hint=FRESH_HINT) from bad
    if not words:
        raise BuildError(f"{path}: names no device file", hint=FRESH_HINT)
    for line in words:
        _check_line(target, line)
    cache = read_cache(folder)
    flags = {name: cache[name] for name in RECORDED[device] if name in cache}
    return {**flags, "optimisation": "-O3", **({"wavefront": "32"} if device == "hip" else {})}


def _check_line(target: Target, words: Sequence[str]) -> None:
    """Check one device compiler's command line."""
    source = next((word for word in reversed(words) if word.endswith(".cu")), words[-1])
    levels = [word for word in words if re.fullmatch(r"-O\w*", word)]
    if levels[-1:] != ["-O3"]:
        found = levels[-1] if levels else "no -O"
        raise BuildError(f"{source}: compiled with {found}, not -O3", hint="unset CUDAFLAGS and HIPFLAGS")
    if "-mwavefrontsize64" in words:
        raise BuildError(f"{source}: compiled with -mwavefrontsize64", hint="unset HIPFLAGS")
    asked = f"--offload-arch={target.arch}" if target.device_backend == "hip" else f"sm_{target.arch}"
    if not any(asked in word for word in words):
        raise BuildError(f"{source}: not compiled for {target.name}", hint=FRESH_HINT)


def check_device_code(target: Target, folder: Path, kit: object = None) -> dict[str, int]:
    """Prove that the library holds machine code for the asked GPU; return entries by architecture.

    For AMD also that wavefronts have 32 lanes and that no kernel of ours spills. Raises BuildError.
    """
    device = target.device_backend
    if not device:
        return {}
    library = folder / "bin" / f"libggml-{device}.so"
    asked = f"sm_{target.arch}" if device == "cuda" else target.arch
    try:
        if device == "cuda":
            found = cuda_architectures(section(library, ".nv_fatbin"))
        else:
            found = _check_hip(library, asked, kit)
    except (ValueError, OSError) as bad:
        raise BuildError(f"{library}: its device code cannot be read: {bad}", hint=FRESH_HINT) from bad
    others = [name for name in found if name != asked]
    if not found[asked]:
        holds = f"only {', '.join(others)}" if others else "none at all"
        raise BuildError(f"{library}: holds no machine code for {asked}, {holds}", hint=FRESH_HINT)
    return dict(found)


def _check_hip(library: Path, asked: str, kit: object) -> Counter[str]:
    unpack = _bundler(kit, asked) if isinstance(kit, RocmKit) else None
    found: Counter[str] = Counter()
    for code in hip_code_objects(section(library, ".hip_fatbin"), unpack):
        found[code.arch] += 1
        if code.arch == asked:
            check_kernels(library, kernel_resources(code))
    return found


def check_kernels(library: Path, kernels: Sequence[KernelResources]) -> None:
    """Raise BuildError naming the first kernel that has the wrong wavefront, or is ours and spills."""
    for kernel in kernels:
        if kernel.wavefront_size not in (None, 32):
            raise BuildError(
                f"{library}: kernel {kernel.name} has wavefronts of {kernel.wavefront_size} lanes, not 32"
            )
    ours = [kernel for kernel in kernels if any(part in kernel.symbol.lower() for part in OUR_KERNELS)]
    bad = [f"{kernel.name} on {kernel.arch}: {', '.join(kernel.faults)}" for kernel in ours if kernel.faults]
    if bad:
        raise BuildError(f"{library}: {len(bad)} of our kernels spill: {bad[0]}", log_tail=bad[1:12])


def _bundler(kit: RocmKit, asked: str) -> Unpacker | None:
    """Return a function that unpacks a compressed bundle with ROCm's own tool, None where ROCm has none."""
    tool = kit.find("llvm/bin/clang-offload-bundler", "lib/llvm/bin/clang-offload-bundler")
    if tool is None:
        return None

    def unpack(packed: bytes) -> bytes:
        triple = f"hipv4-amdgcn-amd-amdhsa--{asked}"
        with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
            source, result = Path(name) / "packed", Path(name) / "code"
            source.write_bytes(packed)
            files = [f"--input={source}", f"--output={result}"]
            processes.run([tool, "--unbundle", "--type=o", f"--targets={triple}", *files])
            return make_bundle({triple: result.read_bytes()})

    return unpack
