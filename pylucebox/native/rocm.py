"""Finds ROCm, as packages, as a folder of its own or from pip, and says which part of it is missing."""

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import LuceboxError, MissingError
from pylucebox.native.checks import Check, define_in, version_tuple
from pylucebox.native.places import Places
from pylucebox.native.targets import Target
from pylucebox.native.toolchain import TRIAL_S

ROCM_REMEDY = "install ROCm's HIP development files (rocm.docs.amd.com), or set ROCM_PATH to its folder"
COMPILER_REMEDY = "install hipcc, which comes with ROCm"
PIP_PARTS = ("_rocm_sdk_devel", "_rocm_sdk_core")  # in site-packages; the first holds the headers
COMPILERS = ("llvm/bin/clang++", "lib/llvm/bin/clang++", "bin/amdclang++")

# Compiles only for a wavefront of 32 lanes, which our kernels and upstream's tables for RDNA count on.
PROBE = """
#include <hip/hip_runtime.h>
#if defined(__HIP_DEVICE_COMPILE__) && defined(__AMDGCN_WAVEFRONT_SIZE__)
static_assert(__AMDGCN_WAVEFRONT_SIZE__ == 32, "wavefront of 64 lanes");
#endif
__global__ void probe(float * x) { x[threadIdx.x] *= 2.0f; }
"""


@dataclass(frozen=True)
class HeaderFamily:
    """A part of ROCm with headers of its own. package: as apt and dnf call it, without -dev or -devel.

    config: CMake's package, for those that upstream looks for. needed: whether any of the source includes it.
    """

    name: str
    header: str
    package: str
    config: str = ""
    needed: bool = True


FAMILIES = (
    HeaderFamily("HIP headers", "hip/hip_runtime.h", "hip-dev", "hip"),
    HeaderFamily("hipBLAS", "hipblas/hipblas.h", "hipblas-dev", "hipblas"),
    HeaderFamily("rocBLAS", "rocblas/rocblas.h", "rocblas-dev", "rocblas"),
    HeaderFamily("hipCUB", "hipcub/hipcub.hpp", "hipcub-dev", needed=False),
    HeaderFamily("rocPRIM", "rocprim/rocprim.hpp", "rocprim-dev", needed=False),
    HeaderFamily("rocWMMA", "rocwmma/rocwmma.hpp", "rocwmma-dev", needed=False),
)


@dataclass(frozen=True)
class RocmKit:
    """A ROCm. roots: its folder, and for one from pip the folders of its other parts too.

    compiler is None where there is none. named_by: the variable that chose it, empty for our own choice.
    others: the older ones that were passed by.
    """

    roots: tuple[Path, ...]
    version: str
    compiler: Path | None
    named_by: str = ""
    others: tuple[str, ...] = ()
    system: Path = Path("/usr")

    @property
    def root(self) -> Path:
        return self.roots[0]

    @property
    def link_stub(self) -> bool:
        return False

    @cached_property
    def toolkit(self) -> str:
        """ "ROCm 7.2.4, AMD clang version 20.0.0". Starts the compiler. Raises MissingError."""
        if self.compiler is None:
            raise MissingError(f"{self.root}: no HIP compiler", hint=ROCM_REMEDY)
        lines = processes.run([self.compiler, "--version"], error=MissingError, timeout_s=TRIAL_S).lines
        return f"ROCm {self.version}, {lines[0].strip() if lines else self.compiler.name}"

    def defines(self, folder: Path) -> dict[str, str]:
        """Return the -D values for a build in `folder`."""
        libraries = [str(path) for root in self.roots if (path := root / "lib").is_dir()]
        own = [] if self.root == self.system else libraries
        found = {
            "CMAKE_HIP_COMPILER": str(self.compiler),
            "CMAKE_HIP_COMPILER_ROCM_ROOT": str(self.root),
            "CMAKE_PREFIX_PATH": ";".join(str(root) for root in self.roots),
            "CMAKE_INSTALL_RPATH": ";".join(["$ORIGIN", *own]),
        }
        if self.compiler and not any(self.compiler.is_relative_to(root) for root in self.roots):
            found["CMAKE_HIP_FLAGS"] = f"--rocm-path={self.root}"
        return found

    def environment(self) -> dict[str, str]:
        return {"ROCM_PATH": str(self.root), "HIP_PATH": str(self.root), "HIP_PLATFORM": "amd"}

    def stamp(self) -> str:
        if self.compiler is None:
            return f"{self.root} {self.version}"
        info = self.compiler.resolve().stat()
        return f"{self.compiler} {info.st_size} {info.st_mtime_ns} {self.version} {self.roots}"

    def prepare(self, folder: Path, cc: Path) -> None:
        pass

    def find(self, *names: str) -> Path | None:
        """Return the first of `names` that is a file below one of the roots."""
        paths = (root / name for root in self.roots for name in names)
        return next((path for path in paths if path.is_file()), None)


def find_rocm(places: Places) -> RocmKit | None:
    """Return the ROCm to use: the one a variable names, else this Python's, else the newest, else None."""
    asked = places.named("ROCM_PATH", "HIP_PATH")
    if asked:
        return _kit(asked[1], places, named_by=asked[0])
    own = [kit for path in _python_roots(places) if (kit := _kit(path, places))]
    if own:
        return own[0]
    roots = dict.fromkeys(path.resolve() for path in _system_roots(places))
    kits = [kit for path in roots if (kit := _kit(path, places))]
    if not kits:
        return None
    best = max(kits, key=lambda kit: version_tuple(kit.version))
    others = tuple(f"{kit.version} at {kit.root}" for kit in kits if kit is not best)
    return RocmKit(best.roots, best.version, best.compiler, others=others, system=places.system)


def rocm_checks(target: Target, places: Places) -> list[Check]:
    """Return the checks of ROCm for `target`: its version, compiler and each family of headers."""
    kit = find_rocm(places)
    if kit is None:
        return _nothing_found(target, places)
    chosen = f" from {kit.named_by}" if kit.named_by else ""
    passed_by = f", newer than {', '.join(kit.others)}" if kit.others else ""
    new_enough = version_tuple(kit.version) >= version_tuple(target.needs)
    checks = [
        Check(
            "ROCm",
            f"{kit.version} at {kit.root}{chosen}{passed_by}",
            f"{target.needs} or newer",
            new_enough,
            "" if new_enough else ROCM_REMEDY,
        )
    ]
    families = [_family_check(kit, family) for family in FAMILIES]
    return [*checks, _compiler_check(kit, target, places, families[0].ok), *families]


def _nothing_found(target: Target, places: Places) -> list[Check]:
    asked = places.named("ROCM_PATH", "HIP_PATH")
    found = f"not in {asked[0]}={asked[1]}" if asked else "not found"
    remedy = f"set {asked[0]} right or unset it" if asked else ROCM_REMEDY
    packed = [path for folder in places.packages for path in folder.glob("rocm_sdk_devel/_devel.tar*")]
    if packed and not asked:
        found, remedy = f"not unpacked from {packed[0]}", "rocm-sdk init"
    rows = [
        Check("ROCm", found, f"{target.needs} or newer", False, remedy),
        Check("HIP compiler", "not found", f"knows {target.name}", False, COMPILER_REMEDY),
    ]
    for family in FAMILIES:
        rows.append(Check(family.name, "not found", _need(family), not family.needed, _remedy(family)))
    return rows


def _need(family: HeaderFamily) -> str:
    return family.header if family.needed else "not used by this source"


def _remedy(family: HeaderFamily) -> str:
    when = "" if family.needed else ", should a later source ask for it"
    return f"install {family.package} (or {family.package}el){when}"


def _family_check(kit: RocmKit, family: HeaderFamily) -> Check:
    header = kit.find(f"include/{family.header}")
    if header is None:
        return Check(family.name, "not found", _need(family), not family.needed, _remedy(family))
    if family.name == "hipBLAS" and not _has_hipblas_common(kit, header):
        hint = "install hipblas-common-dev (or hipblas-common-devel)"
        return Check(family.name, "without hipblas-common, which it includes", _need(family), False, hint)
    if family.config and not _has_config(kit, family.config):
        found = f"headers, but no {family.config}-config.cmake"
        return Check(family.name, found, _need(family), False, _remedy(family))
    return Check(family.name, str(header), _need(family), True)


def _has_hipblas_common(kit: RocmKit, header: Path) -> bool:
    asks = "hipblas-common.h" in header.read_text(encoding="utf-8", errors="replace")
    return not asks or kit.find("include/hipblas-common/hipblas-common.h") is not None


def _has_config(kit: RocmKit, name: str) -> bool:
    return any(
        path.is_file()
        for root in kit.roots
        for folder in ("lib/cmake", "lib64/cmake", "lib/x86_64-linux-gnu/cmake", "share/cmake")
        for path in (root / folder / name / f"{name}-config.cmake",)
    )


def _compiler_check(kit: RocmKit, target: Target, places: Places, has_headers: bool) -> Check:
    needed = f"knows {target.name}, 32 lanes"
    chosen = places.env.get("HIPCXX")
    if kit.compiler is None and chosen:
        remedy = "unset HIPCXX or set it to a compiler"
        return Check("HIP compiler", f"HIPCXX={chosen}: no such program", needed, False, remedy)
    if kit.compiler is None:
        return Check("HIP compiler", f"not found in {kit.root}", needed, False, COMPILER_REMEDY)
    if not has_headers:
        return Check("HIP compiler", f"{kit.compiler}, not tried without HIP headers", needed, True)
    problem = probe(kit, target.arch)
    remedy = f"install a newer ROCm, or one whole: {ROCM_REMEDY}"
    return Check("HIP compiler", problem or str(kit.compiler), needed, not problem, remedy if problem else "")


def probe(kit: RocmKit, arch: str) -> str:
    """Compile a small kernel for `arch` and return what is wrong, empty when all is well."""
    assert kit.compiler is not None
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        sample = Path(name) / "probe.hip"
        sample.write_text(PROBE, encoding="utf-8")
        words: list[str | Path] = [kit.compiler, "-x", "hip", "--cuda-device-only", f"--offload-arch={arch}"]
        words += [f"--rocm-path={kit.root}", "-O3", "-S", "-o", Path(name) / "probe.s", sample]
        try:
            processes.run(words, error=MissingError, env=dict(kit.environment()), timeout_s=TRIAL_S)
        except LuceboxError as bad:
            lines = [line for line in bad.log_tail if "error" in line] or [bad.message]
            return f"{kit.compiler} does not compile for {arch}: {lines[0].strip()[:160]}"
    return ""


def _kit(root: Path, places: Places, named_by: str = "") -> RocmKit | None:
    """Return the ROCm in `root`, or None when there is none."""
    parts = [root.parent / name for name in PIP_PARTS] if root.name in PIP_PARTS else []
    libraries = sorted(root.parent.glob("_rocm_sdk_libraries*")) if parts else []
    roots = tuple(dict.fromkeys(path for path in (*parts, root, *libraries) if path.is_dir()))
    version = next(filter(None, (_version(path) for path in roots)), None)
    if version is None:
        return None
    chosen = places.env.get("HIPCXX")
    if chosen:  # one that is not there is not replaced by another: the check says so
        found = places.which(chosen)
        return RocmKit(roots, version, found, named_by=named_by, system=places.system)
    compiler = RocmKit(roots, version, None).find(*COMPILERS)
    if compiler is None and root == places.system:
        newest = sorted(root.glob("lib/llvm-*/bin/clang++"), key=lambda p: version_tuple(p.parts[-3]))
        compiler = newest[-1] if newest else None
    return RocmKit(roots, version, compiler, named_by=named_by, system=places.system)


def _version(root: Path) -> str | None:
    parts = [f"HIP_VERSION_{part}" for part in ("MAJOR", "MINOR")]
    try:
        text = (root / ".info" / "version").read_text(encoding="ascii", errors="replace").strip()
        if re.match(r"\d", text):
            return text.split("-")[0]
    except OSError:
        pass
    numbers = define_in(root / "include" / "hip" / "hip_version.h", parts)
    return ".".join(str(number) for number in numbers) if numbers else None


def _python_roots(places: Places) -> Iterable[Path]:
    for folder in places.packages:
        yield from (path for name in PIP_PARTS if (path := folder / name).is_dir())
    yield from places.prefixes


def _system_roots(places: Places) -> Iterable[Path]:
    hipcc = places.which("hipcc")
    if hipcc:
        yield hipcc.parent.parent
    yield from sorted(places.opt.glob("rocm*"))
    yield places.system
