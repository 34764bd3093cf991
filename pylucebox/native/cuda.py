"""Finds a CUDA toolkit and cuBLAS, wherever they were installed, and says what is missing."""

import re
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

# What ggml-cuda takes from the driver: linking needs the names, running the driver itself.
DRIVER_SYMBOLS = (
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAllocationGranularity",
)
NVCC_REMEDY = "install NVIDIA's CUDA toolkit (developer.nvidia.com/cuda-downloads), or set CUDACXX to nvcc"


@dataclass(frozen=True)
class Cublas:
    """cuBLAS's headers and libraries. outside: not where CMake looks, so that it must be told."""

    include: Path
    library: Path
    library_lt: Path
    major: int
    outside: bool


@dataclass(frozen=True)
class CudaKit:
    """A CUDA toolkit. version: of its headers, such as "13.0".

    driver: the driver's libcuda.so.1, None on a machine without. stub: the toolkit's own stand-in for it.
    """

    nvcc: Path
    root: Path
    version: str
    cublas: Cublas | None
    driver: Path | None
    stub: Path | None
    system: Path = Path("/usr")

    @property
    def link_stub(self) -> bool:
        return self.driver is None

    @cached_property
    def toolkit(self) -> str:
        """ "CUDA 13.0.88". Starts nvcc. Raises MissingError when it does not run."""
        try:
            lines = processes.run([self.nvcc, "--version"], error=MissingError, timeout_s=TRIAL_S).lines
        except LuceboxError as bad:
            raise MissingError(
                f"{self.nvcc}: not a working compiler: {bad.message}", hint=NVCC_REMEDY
            ) from bad
        match = re.search(r"\brelease \d+\.\d+, V(\d+\.[\d.]+)", "\n".join(lines))
        if match is None:
            raise MissingError(f"{self.nvcc}: not a working compiler: tells no release", hint=NVCC_REMEDY)
        return f"CUDA {match[1]}"

    def defines(self, folder: Path) -> dict[str, str]:
        """Return the -D values for a build in `folder`."""
        found = {"CMAKE_CUDA_COMPILER": str(self.nvcc), "CUDAToolkit_ROOT": str(self.root)}
        libraries = [path for path in _library_dirs(self.root) if path.is_dir()][:1]
        if self.cublas and self.cublas.outside:
            if self.cublas.include != self.system / "include":
                found["CMAKE_CUDA_FLAGS"] = f"-I{self.cublas.include}"
            found["CUDA_cublas_LIBRARY"] = str(self.cublas.library)
            found["CUDA_cublasLt_LIBRARY"] = str(self.cublas.library_lt)
            libraries.append(self.cublas.library.parent)
        if self.driver is None:  # programs are linked with a library that needs libcuda.so.1
            found["CMAKE_EXE_LINKER_FLAGS_INIT"] = f"-Wl,-rpath-link,{self.stub_path(folder).parent}"
        if self.stub is None:
            found["CUDA_cuda_driver_LIBRARY"] = str(self.driver or self.stub_path(folder))
        own = [str(path) for path in libraries if not path.is_relative_to(self.system / "lib")]
        return {**found, "CMAKE_INSTALL_RPATH": ";".join(["$ORIGIN", *own])}

    def environment(self) -> dict[str, str]:
        return {}

    def stamp(self) -> str:
        info = self.nvcc.stat()
        driver = self.driver or self.stub
        return f"{self.nvcc} {info.st_size} {info.st_mtime_ns} {self.version} {self.cublas} {driver}"

    def prepare(self, folder: Path, cc: Path) -> None:
        """Put what stands in for libcuda.so.1 into `folder` where there is no driver."""
        if self.driver is None:
            make_link_stub(self.stub_path(folder), cc, self.stub)

    @staticmethod
    def stub_path(folder: Path) -> Path:
        """Return where a build in `folder` keeps the stub."""
        return folder / "link" / "libcuda.so"


def make_link_stub(path: Path, cc: Path, existing: Path | None = None) -> None:
    """Make a library with the driver's names in it at `path`, and a link by its soname beside it.

    existing: the toolkit's, which is linked to instead of compiling one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if existing:
        _link(path, existing)
    else:
        _compile_stub(path, cc)
    _link(path.with_name("libcuda.so.1"), Path(path.name))


def _link(path: Path, to: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def _compile_stub(path: Path, cc: Path) -> None:
    source = path.with_name("libcuda.c")
    source.write_text(
        "// Only for linking: the driver's own library takes this one's place at run time.\n"
        + "".join(f"int {name}(void) {{ return 999; }}\n" for name in DRIVER_SYMBOLS),
        encoding="utf-8",
    )
    partial = path.with_name(path.name + ".partial")
    processes.run([cc, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", partial, source])
    partial.replace(path)


def find_cuda(places: Places) -> CudaKit | None:
    """Return the toolkit to use, or None when there is no nvcc where one is asked for or usual."""
    for nvcc in _nvccs(places):
        root = nvcc.parent.parent
        headers = [root / "include", *sorted(root.glob("targets/*/include"))]
        numbers = next(filter(None, (define_in(path / "cuda.h", ["CUDA_VERSION"]) for path in headers)), None)
        if not nvcc.is_file() or numbers is None:
            continue
        version = f"{numbers[0] // 1000}.{numbers[0] % 1000 // 10}"
        drivers = [folder / "libcuda.so.1" for folder in places.libraries]
        stubs = [folder / "stubs" / "libcuda.so" for folder in _library_dirs(root)]
        return CudaKit(
            nvcc=nvcc,
            root=root,
            version=version,
            cublas=_find_cublas(root, numbers[0] // 1000, places),
            driver=next((path for path in drivers if path.is_file()), None),
            stub=next((path for path in stubs if path.is_file()), None),
            system=places.system,
        )
    return None


def cuda_checks(target: Target, places: Places) -> list[Check]:
    """Return the checks of the CUDA toolkit for `target`. Starts nvcc for its version."""
    kit = find_cuda(places)
    needed = f"CUDA {target.needs} or newer"
    if kit is None:
        asked = places.named("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT")
        found = f"not in {asked[0]}={asked[1]}" if asked else "not found"
        remedy = f"set {asked[0]} right or unset it" if asked else NVCC_REMEDY
        return [
            Check("nvcc", found, needed, False, remedy),
            Check(
                "cuBLAS", "not looked for without nvcc", "of nvcc's version", False, "comes with the toolkit"
            ),
        ]
    return [_nvcc_check(kit, target, needed), _cublas_check(kit, places), _driver_check(kit)]


def _nvcc_check(kit: CudaKit, target: Target, needed: str) -> Check:
    try:
        toolkit = kit.toolkit
    except MissingError as bad:
        return Check("nvcc", bad.message, needed, False, bad.hint or NVCC_REMEDY)
    new_enough = version_tuple(kit.version) >= version_tuple(target.needs)
    return Check("nvcc", f"{toolkit} at {kit.nvcc}", needed, new_enough, "" if new_enough else NVCC_REMEDY)


def _cublas_check(kit: CudaKit, places: Places) -> Check:
    major = version_tuple(kit.version)[0]
    needed = f"cuBLAS {major}, headers and library"
    package = f"'nvidia-cublas=={major}.*'" if major >= 13 else f"nvidia-cublas-cu{major}"
    remedy = f"install the toolkit's libcublas-dev, or: python -m pip install {package}"
    if kit.cublas:
        return Check("cuBLAS", f"{kit.cublas.major} at {kit.cublas.library.parent}", needed, True)
    others = [
        f"{found[0]} at {include}"
        for include, _ in _cublas_folders(kit.root, places)
        if (found := define_in(include / "cublas_api.h", ["CUBLAS_VER_MAJOR"]))
    ]
    return Check("cuBLAS", f"only {others[0]}" if others else "not found", needed, False, remedy)


def _driver_check(kit: CudaKit) -> Check:
    if kit.link_stub:
        remedy = "a stub is linked instead; install NVIDIA's driver where the build is to run"
        return Check("libcuda", "not found", "to link", True, remedy)
    return Check("libcuda", str(kit.driver), "to link", True)


def _nvccs(places: Places) -> Iterable[Path]:
    asked = places.named("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT")
    if asked:
        found = places.which(str(asked[1])) or asked[1]
        yield found if asked[0] == "CUDACXX" else (asked[1] / "bin" / "nvcc")
        return
    on_path = places.which("nvcc")
    if on_path:
        yield on_path
    versions = [path for path in places.local.glob("cuda-*") if version_tuple(path.name[5:])]
    newest_first = sorted(versions, key=lambda path: version_tuple(path.name[5:]), reverse=True)
    for root in (*newest_first, places.local / "cuda", places.opt / "cuda", places.system):
        yield root / "bin" / "nvcc"


def _library_dirs(root: Path) -> list[Path]:
    return [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]


def _cublas_folders(root: Path, places: Places) -> list[tuple[Path, list[Path]]]:
    """Pairs of a header folder and the library folders that belong to it, the toolkit's own first."""
    own = _library_dirs(root)
    pairs = [(path, own) for path in (root / "include", *sorted(root.glob("targets/*/include")))]
    for packages in places.packages:
        homes = (*sorted(packages.glob("nvidia/cu[0-9]*"), reverse=True), packages / "nvidia" / "cublas")
        pairs += [(home / "include", [home / "lib"]) for home in homes]
    return [*pairs, (places.system / "include", list(places.libraries))]


def _find_cublas(root: Path, major: int, places: Places) -> Cublas | None:
    for include, folders in _cublas_folders(root, places):
        found = define_in(include / "cublas_api.h", ["CUBLAS_VER_MAJOR"])
        if found != (major,) or not (include / "cublas_v2.h").is_file():
            continue
        for folder in folders:
            names = [folder / f"libcublas{lt}.so" for lt in ("", "Lt")]
            files = [next((p for p in (n, Path(f"{n}.{major}")) if p.is_file()), None) for n in names]
            if files[0] and files[1]:
                return Cublas(include, files[0], files[1], major, not include.is_relative_to(root))
    return None
