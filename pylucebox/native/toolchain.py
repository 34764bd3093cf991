"""Finds cmake, ninja and a C++17 compiler, and says what is missing."""

import importlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pylucebox.core import processes
from pylucebox.core.errors import LuceboxError, MissingError
from pylucebox.core.receipts import sha256_bytes

CXX17_SAMPLE = """
#include <filesystem>
#include <optional>
int main() { std::optional<int> n = 1; if (auto m = n; m) { return std::filesystem::exists("/") ? 0 : *m; } }
"""
FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAFLAGS", "HIPFLAGS")
TRIAL_S = 60.0  # for a compiler to say its version or to try a few lines; a broken one may hang
INSTALL_HINT = "install a C++17 compiler, on Debian: apt-get install g++"


class Kit(Protocol):
    """A CUDA toolkit or a ROCm, as far as a build uses it."""

    def defines(self, folder: Path) -> dict[str, str]:
        """Return the -D values for a build in `folder`. Starts nothing."""

    def environment(self) -> dict[str, str]:
        """Return what cmake and ninja get beside our own environment."""

    def stamp(self) -> str:
        """Return what shows, without starting anything, that it was replaced."""

    def prepare(self, folder: Path, cc: Path) -> None:
        """Make in `folder` what cmake is told to find there."""

    @property
    def toolkit(self) -> str:
        """Name and full version of the device compiler. Starts it."""

    @property
    def link_stub(self) -> bool:
        """Whether a library of ours stands in for the driver's while linking."""


@dataclass(frozen=True)
class Toolchain:
    """The programs that make a build. All paths are absolute. kit: for the GPU, if there is one."""

    cmake: Path
    ninja: Path
    cc: Path
    cxx: Path
    kit: Kit | None = None

    def stamp(self) -> str:
        """Return what shows, without starting anything, that the compilers were replaced."""
        infos = [path.resolve().stat() for path in (self.cc, self.cxx)]
        stamps = [f"{p} {i.st_size} {i.st_mtime_ns}" for p, i in zip((self.cc, self.cxx), infos, strict=True)]
        return " ".join([*stamps, self.kit.stamp()] if self.kit else stamps)

    @cached_property
    def compiler(self) -> str:
        """First line of the C++ compiler's --version, and the C compiler's when it differs. Starts both."""
        names = [_first_line(path) for path in (self.cxx, self.cc)]
        versions = [re.sub(r"^\S+", "", name).strip() for name in names]
        return names[0] if versions[0] == versions[1] else " + ".join(names)

    def check(self) -> None:
        """Compile a C++17 sample. Raises MissingError with what to install."""
        check_cxx17(self.cxx)


def check_cxx17(cxx: Path) -> None:
    """Compile a C++17 sample. Raises MissingError with what to install."""
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        sample = Path(name) / "sample.cpp"
        sample.write_text(CXX17_SAMPLE, encoding="utf-8")
        try:
            words: list[str | Path] = [cxx, "-std=c++17", "-fsyntax-only", sample]
            processes.run(words, error=MissingError, timeout_s=TRIAL_S)
        except LuceboxError as bad:
            raise MissingError(
                f"{cxx}: cannot compile C++17: {bad.message}", hint=INSTALL_HINT, log_tail=bad.log_tail
            ) from bad


def find_toolchain() -> Toolchain:
    """Return the tools to use: the packaged cmake and ninja, and CC and CXX or the system's compilers.

    Starts nothing. Raises MissingError naming the first tool that is not there and how to get it.
    """
    found = search_tools()
    missing = [what for what in found.values() if isinstance(what, MissingError)]
    if missing:
        raise missing[0]
    cmake, ninja, cc, cxx = (Path(str(what)) for what in found.values())
    return Toolchain(cmake, ninja, cc, cxx)


def search_tools() -> dict[str, Path | MissingError]:
    """Return each program a build needs, or why it is not there, in the order of Toolchain's fields."""
    searches: dict[str, Callable[[], Path]] = {
        "cmake": lambda: _packaged("cmake", "CMAKE_BIN_DIR"),
        "ninja": lambda: _packaged("ninja", "BIN_DIR"),
        "C compiler": lambda: _compiler("CC", ("cc", "gcc", "clang"), "C"),
        "C++ compiler": lambda: _compiler("CXX", ("c++", "g++", "clang++"), "C++"),
    }
    found: dict[str, Path | MissingError] = {}
    for name, search in searches.items():
        try:
            found[name] = search()
        except MissingError as bad:
            found[name] = bad
    return found


def cpu_features() -> str:
    """Return a hash over the processor's name and instruction sets, which native machine code is made for."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    wanted = ("flags", "Features", "model name")
    lines = {line for line in text.splitlines() if line.split("\t")[0].strip() in wanted}
    return sha256_bytes("\n".join([platform.machine(), *sorted(lines)]).encode())[:16]


def compiler_flags() -> dict[str, str]:
    """Return the flags that cmake takes over from the environment; they are part of a build's identity."""
    return {name: os.environ[name] for name in FLAG_VARIABLES if os.environ.get(name)}


def compiler_cache_env(root: Path) -> dict[str, str]:
    """Return the environment that lets ccache hit again after the clone moved from `root`'s place to another.

    Entries are kept apart by processor, since -march=native means another thing on each.
    """
    ours = {
        "CCACHE_BASEDIR": str(root),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_NAMESPACE": f"lucebox-{cpu_features()}",
    }
    return {name: value for name, value in ours.items() if name not in os.environ}


def _packaged(name: str, folder_field: str) -> Path:
    """The Python package's binary; a system one where the package has none for this platform."""
    try:
        module = importlib.import_module(name)
        program = Path(getattr(module, folder_field)) / name
        if program.is_file():
            return program.absolute()
    except (ImportError, AttributeError):
        pass
    found = shutil.which(name)
    if not found:
        raise MissingError(f"{name} not found", hint=f"python -m pip install {name}")
    return Path(found).absolute()


def _compiler(variable: str, names: tuple[str, ...], language: str) -> Path:
    asked = os.environ.get(variable)
    for name in (asked,) if asked else names:
        found = shutil.which(name)
        if found:
            return Path(found).absolute()
    what = f"{variable}={asked}: no such program" if asked else f"no {language} compiler found"
    raise MissingError(what, hint=f"unset {variable} or set it to a compiler" if asked else INSTALL_HINT)


def _first_line(compiler: Path) -> str:
    try:
        lines = processes.run([compiler, "--version"], error=MissingError, timeout_s=TRIAL_S).lines
    except LuceboxError as bad:
        raise MissingError(f"{compiler}: not a working compiler: {bad.message}", hint=INSTALL_HINT) from bad
    return lines[0] if lines else compiler.name
