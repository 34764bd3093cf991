"""Compile the loader and the fuzz target with address and undefined-behaviour checks, into build/sanitize.

Needs clang 19 with its run-time libraries (Debian: apt-get install clang-19 libclang-rt-19-dev) and installs
them when it may. Only what meets a file is built: ggml, its CPU back-end, llama and two small programs of
overlay/tests.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from device_code.toolchain import install_packages

from pylucebox.core import processes
from pylucebox.core.errors import BuildError, LuceboxError, MissingError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.native.toolchain import compiler_cache_env, find_toolchain
from pylucebox.source.prepare import prepare

CHECKS = "-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined"
FLAGS = f"-O1 -g1 -fno-omit-frame-pointer {CHECKS}"
OFF = (
    "BUILD_SHARED_LIBS",
    *(f"LLAMA_BUILD_{part}" for part in ("COMMON", "TOOLS", "SERVER", "TESTS", "EXAMPLES", "APP", "UI")),
    "LLAMA_OPENSSL",
    "LLAMA_LLGUIDANCE",
    "GGML_NATIVE",
    "GGML_OPENMP",
    "GGML_LLAMAFILE",
    "GIT_EXE",
    "LUCEBOX_BUILD_TESTS",
)
COMPILERS = ("clang-19", "clang++-19")
PACKAGES = ("clang-19", "libclang-rt-19-dev")
PROGRAMS = ("fuzz-lucebox-gguf", "fuzz-lucebox-load")


def sanitize_dir(layout: Layout) -> Path:
    """The folder of this build."""
    return layout.build_dir("sanitize")


def find_compilers() -> list[str]:
    """Return the C and the C++ compiler, which are installed if need be. Raises MissingError."""
    if not all(map(shutil.which, COMPILERS)) or not _has_run_time():
        install_packages(PACKAGES)
    if not _has_run_time():
        raise MissingError(
            "clang-19: no libclang_rt.fuzzer among its libraries", hint=f"apt-get install {PACKAGES[1]}"
        )
    return [str(shutil.which(name)) for name in COMPILERS]


def _has_run_time() -> bool:
    """True when programs can be linked with the checks and the fuzzer."""
    lines = processes.run([COMPILERS[0], "-print-resource-dir"], error=MissingError).lines
    return any(Path(lines[0]).glob("lib/*/libclang_rt.fuzzer*.a"))


def build(layout: Layout, programs: Sequence[str] = PROGRAMS) -> Path:
    """Make or refresh `programs`; return their folder. Raises MissingError or BuildError."""
    compilers = find_compilers()
    tools, tree, folder = find_toolchain(), prepare(layout).tree, sanitize_dir(layout)
    configure = [
        *(tools.cmake, "-G", "Ninja", "-S", tree, "-B", folder, f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"),
        *(f"-DCMAKE_{lang}_COMPILER={path}" for lang, path in zip(("C", "CXX"), compilers, strict=True)),
        *(f"-DCMAKE_{lang}_FLAGS={FLAGS}" for lang in ("C", "CXX")),
        *("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_EXE_LINKER_FLAGS=-fsanitize=address,undefined"),
        *(f"-D{name}=OFF" for name in OFF),
        "-DLUCEBOX_FUZZ=ON",
    ]
    jobs = str(len(os.sched_getaffinity(0)))
    env = compiler_cache_env(layout.build_root.parent)
    log = folder / "log"
    log.mkdir(parents=True, exist_ok=True)
    for name, command in (
        ("configure", configure),
        ("compile", [tools.ninja, "-C", folder, "-j", jobs, *programs]),
    ):
        processes.run(command, env=env, error=BuildError, what=name, log_path=log / f"{name}.log")
    return folder / "bin"


def main() -> int:
    try:
        print(build(find_layout()))
    except LuceboxError as bad:
        print(f"{bad.message}\nhint: {bad.hint}", file=sys.stderr)
        return bad.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
