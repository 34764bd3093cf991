"""Compile one file for one GPU and read the report; results are kept by the content of all that was read."""

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kept_results

from device_code.toolchain import CudaToolchain, HipToolchain
from pylucebox.core import processes
from pylucebox.core.errors import BuildError
from pylucebox.native import resource_report
from pylucebox.native.resource_report import (
    CudaKernelResources,
    Instructions,
    KernelResources,
    parse_instructions,
    parse_metadata,
    parse_ptxas,
    parse_remarks,
)

SHIMS = Path(__file__).resolve().parent / "shims"
# What ggml's CMake files define for their default options.
FLASH_ATTENTION = {"F16_F16": 1, "BF16_BF16": 1, "Q4_0_Q4_0": 1, "Q8_0_Q8_0": 1}
HIP_DEFINES = (
    "GGML_USE_HIP", "GGML_HIP_NO_VMM", "GGML_HIP_GRAPHS", "__HIP_PLATFORM_AMD__=1",
)  # fmt: skip
CUDA_DEFINES = ("GGML_CUDA_USE_GRAPHS",)
COMMON_DEFINES = (
    "GGML_BACKEND_BUILD", "GGML_BACKEND_SHARED", "GGML_SHARED", "NDEBUG", "_GNU_SOURCE",
    *(f"GGML_CUDA_FA_{name}={on}" for name, on in FLASH_ATTENTION.items()),
)  # fmt: skip
WARNINGS = ("-Wall", "-Wextra", "-Werror=switch")
HEADERS = {".h", ".cuh"}
WARNING = re.compile(r"^(\S+?)(?::(\d+):\d+: |\((\d+)\): )warning(?::| #)\s*(.*)$", re.M)


@dataclass(frozen=True)
class Job:
    """One file for one GPU. A header is compiled alone, by a file that includes nothing else."""

    source: Path
    arch: str  # gfx… or sm_…
    syntax_only: bool = False  # for its warnings; gives no report

    @property
    def is_hip(self) -> bool:
        return self.arch.startswith("gfx")

    @property
    def is_header(self) -> bool:
        return self.source.suffix in HEADERS


@dataclass(frozen=True)
class Compiled:
    """What a job gave.

    error: the compiler's words, "" when it accepted the file. seconds: 0 when kept from before.
    """

    job: Job
    error: str = ""
    warnings: tuple[str, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    cuda_kernels: tuple[CudaKernelResources, ...] = ()
    instructions: dict[str, Instructions] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def every_kernel(self) -> tuple[KernelResources | CudaKernelResources, ...]:
        return (*self.kernels, *self.cuda_kernels)


@dataclass(frozen=True)
class Workshop:
    """Everything that compiling needs.

    includes: folders, ours first. cache: folder of results and intermediate files.
    """

    cache: Path
    includes: tuple[Path, ...]
    hip: HipToolchain | None = None
    cuda: CudaToolchain | None = None


def compile_all(
    shop: Workshop, jobs: Sequence[Job], on_done: Callable[[Compiled], None] = lambda done: None
) -> list[Compiled]:
    """Compile on all processors; results come in the order of `jobs`, `on_done` hears of each as it ends."""

    def one(job: Job) -> Compiled:
        done = compile_file(shop, job)
        on_done(done)
        return done

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(one, jobs))


def compile_file(shop: Workshop, job: Job, asm: Path | None = None) -> Compiled:
    """Compile, or return what an earlier call kept.

    asm: file that takes the AMDGPU assembly; with it nothing kept is used.
    """
    name = kept_results.key(_rules(), version(shop, job), _words(shop, job), str(job.source))
    kept = shop.cache / "results" / f"{name}.json"
    found = None if asm else kept_results.load(kept)
    if found is not None:
        return _from_plain(found, job)
    with TemporaryDirectory(dir=_made(shop.cache / "work")) as folder:
        done, read = _compile(shop, job, Path(folder), asm)
    if not done.error:
        kept_results.save(kept, _plain(done), read)
    return done


def version(shop: Workshop, job: Job) -> str:
    """Return the compiler of a job, by name and version."""
    tool = shop.hip if job.is_hip else shop.cuda
    assert tool is not None, f"{job.arch}: no compiler was found before compiling"
    return tool.description


def _compile(shop: Workshop, job: Job, folder: Path, asm: Path | None) -> tuple[Compiled, list[Path]]:
    """Return the result and every file that the compiler read."""
    source = job.source.resolve()
    given = folder / "alone.cu" if job.is_header else source
    if job.is_header:
        given.write_text(f'#include "{source}"\n', encoding="utf-8")
    made, depends, log = folder / "made", folder / "depends", folder / "log"
    argv: list[str | Path] = [*_words(shop, job), "-MD", "-MF", depends, given, "-o", made]
    started = time.monotonic()
    try:
        processes.run(argv, log_path=log, error=BuildError)
    except BuildError:
        text = log.read_text(encoding="utf-8", errors="replace")
        return Compiled(job, error="\n".join(text.splitlines()[1:]) or "failed without a word"), []
    seconds = time.monotonic() - started
    text = log.read_text(encoding="utf-8", errors="replace")
    if asm is not None:
        shutil.copyfile(made, asm)
    report: dict[str, Any] = {"cuda_kernels": parse_ptxas(text)}
    if job.is_hip:
        report = {} if job.syntax_only else _hip_report(text, made)
    read = [p for p in kept_results.read_dependencies(depends) if p != given or not job.is_header]
    return Compiled(job, warnings=_warnings(text), seconds=seconds, **report), read


def _hip_report(log: str, made: Path) -> dict[str, Any]:
    text = made.read_text(encoding="utf-8")
    sources = {kernel.symbol: kernel.source for kernel in parse_remarks(log)}
    kernels = tuple(replace(k, source=sources.get(k.symbol, "")) for k in parse_metadata(text))
    symbols = {kernel.symbol for kernel in kernels}
    instructions = {symbol: said for symbol, said in parse_instructions(text).items() if symbol in symbols}
    return {"kernels": kernels, "instructions": instructions}


def _words(shop: Workshop, job: Job) -> list[str]:
    """Return the command without what differs from run to run."""
    includes = [f"-I{folder}" for folder in shop.includes]
    defines = [f"-D{name}" for name in (*COMMON_DEFINES, *(HIP_DEFINES if job.is_hip else CUDA_DEFINES))]
    if job.is_hip:
        assert shop.hip is not None
        places = [f"--rocm-path={shop.hip.root}", f"--rocm-device-lib-path={shop.hip.bitcode}"]
        headers = [f"-I{SHIMS / 'hip'}", f"-isystem{shop.hip.root / 'include'}"]
        made = ["-fsyntax-only"] if job.syntax_only else ["-S"]
        how = ["-x", "hip", "--cuda-device-only", *made, "-O3", "-std=gnu++17", f"--offload-arch={job.arch}"]
        said = [*WARNINGS, "-Wno-unused-command-line-argument", "-Rpass-analysis=kernel-resource-usage"]
        return [shop.hip.compiler, *how, *places, *headers, *includes, *defines, *said]
    assert shop.cuda is not None
    how = ["-std=c++17", f"-arch={job.arch}", "-use_fast_math", "-extended-lambda", f"-I{SHIMS / 'cuda'}"]
    made = ["-ptx"] if job.is_header else ["-cubin", "-Xptxas", "-v"]
    return [shop.cuda.compiler, *how, *made, *includes, *defines]


def _warnings(log: str) -> tuple[str, ...]:
    """Return warnings as FILE:LINE: text, each once; clang and nvcc write places differently."""
    found = [f"{file}:{clang or nvcc}: {text}" for file, clang, nvcc, text in WARNING.findall(log)]
    return tuple(dict.fromkeys(found))


@cache
def _rules() -> str:
    """Return the hash of the code that makes a result: another version believes nothing that was kept."""
    return kept_results.digest_of(
        [Path(__file__), Path(resource_report.__file__), *sorted(SHIMS.rglob("*.h"))]
    )


def _plain(done: Compiled) -> dict[str, Any]:
    return {name: value for name, value in asdict(done).items() if name not in ("job", "seconds")}


def _from_plain(plain: dict[str, Any], job: Job) -> Compiled:
    return Compiled(
        job,
        warnings=tuple(plain["warnings"]),
        kernels=tuple(KernelResources(**k) for k in plain["kernels"]),
        cuda_kernels=tuple(CudaKernelResources(**k) for k in plain["cuda_kernels"]),
        instructions={symbol: Instructions(**said) for symbol, said in plain["instructions"].items()},
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
