"""Configures and compiles one target from the prepared tree, unless nothing changed since the last build."""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.core import paths, processes
from pylucebox.core.builds import altered_binaries, record_binaries
from pylucebox.core.errors import BuildError, LuceboxError, MissingError
from pylucebox.core.hints import find_hint
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt, fingerprint, read_receipt, write_receipt
from pylucebox.native.preflight import find_kit
from pylucebox.native.proof import check_backends, check_device_code, check_flags, read_cache
from pylucebox.native.targets import OUR_TARGETS, UPSTREAM_TARGETS, Target
from pylucebox.native.toolchain import (
    Toolchain,
    compiler_cache_env,
    compiler_flags,
    cpu_features,
    find_toolchain,
)

Progress = Callable[[int, int], None]

NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\] ")


@dataclass(frozen=True)
class Source:
    """What is compiled: the prepared tree and the hashes that stand for it.

    id: of its content; names: of its file names, which CMake globs.
    """

    tree: Path
    id: str
    names: str
    upstream_build: int
    upstream_tag: str
    series_sha256: str


@dataclass(frozen=True)
class Built:
    """The outcome of a build. steps: ninja's count; changed: False when nothing had to be done."""

    receipt: BuildReceipt
    changed: bool
    steps: int = 0


def find_current(layout: Layout, target: Target, source: Source) -> BuildReceipt | None:
    """Return the finished build of exactly these inputs, or None. Starts nothing and writes nothing."""
    folder = layout.build_dir(target.name)
    receipt, state = BuildReceipt.load(folder), read_receipt(folder / "inputs.json")
    if receipt is None or state is None:
        return None
    same = state.get("inputs") == _quick_inputs(target, source, tools_for(target))
    return receipt if same and altered_binaries(folder) == [] else None


def tools_for(target: Target) -> Toolchain:
    """Return the tools of `target`. Starts nothing. Raises MissingError."""
    tools = find_toolchain()
    kit = find_kit(target)
    if target.device_backend and kit is None:
        raise MissingError(
            f"target {target.name}: no {target.device_backend.upper()} toolkit found",
            hint=f"lucebox doctor --target {target.name}",
        )
    return replace(tools, kit=kit) if kit else tools


def configure_command(layout: Layout, target: Target, source: Source, tools: Toolchain) -> list[str]:
    """Return the cmake command line for `target`."""
    defines = _defines(target, source, tools, layout.build_dir(target.name))
    defines |= {
        "CMAKE_C_COMPILER": str(tools.cc),
        "CMAKE_CXX_COMPILER": str(tools.cxx),
        "CMAKE_MAKE_PROGRAM": str(tools.ninja),
    }
    words = [
        str(tools.cmake),
        "-G",
        "Ninja",
        "-S",
        str(source.tree),
        "-B",
        str(layout.build_dir(target.name)),
    ]
    return words + [f"-D{name}={value}" for name, value in defines.items()]


def compile_command(layout: Layout, target: Target, tools: Toolchain, jobs: int) -> list[str]:
    """Return the ninja command line for `target`."""
    folder = str(layout.build_dir(target.name))
    return [str(tools.ninja), "-C", folder, "-j", str(jobs), *UPSTREAM_TARGETS, *OUR_TARGETS]


class Build:
    """Work in the folder of one target: call `configure`, then `compile`, then `finish`."""

    def __init__(self, layout: Layout, target: Target, source: Source, tools: Toolchain) -> None:
        self.layout = layout
        self.target = target
        self.source = source
        self.tools = tools
        self.folder = layout.build_dir(target.name)
        self._env = {
            **compiler_cache_env(layout.build_root.parent if layout.is_checkout else layout.cache_dir),
            "GIT_CEILING_DIRECTORIES": str(source.tree.resolve().parent),
            "NINJA_STATUS": "[%f/%t] ",
            "CLICOLOR_FORCE": None,
            **(tools.kit.environment() if tools.kit else {}),
        }

    def configure(self, fresh: bool = False) -> bool:
        """Run cmake unless the folder is already configured like this; return whether it ran.

        fresh: start from an empty folder. So does a folder that was configured for another place or compiler.
        Raises BuildError when cmake fails, or when a back-end that the target asks for is off afterwards.
        """
        command = configure_command(self.layout, self.target, self.source, self.tools)
        inputs = {"names": self.source.names, "compiler": self.tools.compiler, "flags": compiler_flags()}
        key = fingerprint({"command": command, **inputs})
        stamp = self.folder / "configured.json"
        if not fresh and (read_receipt(stamp) or {}).get("key") == key and self._is_whole():
            return False
        for name in ("receipt.json", "inputs.json", "configured.json"):
            (self.folder / name).unlink(missing_ok=True)
        if fresh or self._is_foreign():
            shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "CMakeCache.txt").unlink(missing_ok=True)
        self.tools.check()
        if self.tools.kit:
            self.tools.kit.prepare(self.folder, self.tools.cc)
        self._run(command, "configure")
        check_backends(self.target, self.folder)
        write_receipt(stamp, {"key": key})
        return True

    def compile(self, jobs: int, progress: Progress | None = None) -> int:
        """Run ninja for the named targets; return its number of steps. Raises BuildError.

        A binary that was changed since the last build is removed first: ninja would take it for newer.
        """
        for path in altered_binaries(self.folder) or ():
            path.unlink(missing_ok=True)
        for name in ("receipt.json", "inputs.json"):
            (self.folder / name).unlink(missing_ok=True)
        steps = 0

        def on_line(line: str) -> None:
            nonlocal steps
            match = NINJA_STEP.match(line)
            if match:
                steps = int(match[2])
                if progress:
                    progress(int(match[1]), steps)

        self._run(compile_command(self.layout, self.target, self.tools, jobs), "compile", on_line)
        return steps

    def finish(self) -> BuildReceipt:
        """Write the receipt once every product is there. Raises BuildError naming one that is missing."""
        bin_dir = self.folder.resolve() / "bin"
        missing = [name for name in self.target.products if not (bin_dir / name).is_file()]
        if missing:
            raise BuildError(
                f"{bin_dir / missing[0]}: ninja ended well but did not make it",
                log_path=self.folder / "log" / "compile.log",
                hint="run `lucebox build --fresh`",
            )
        code = check_device_code(self.target, self.folder, self.tools.kit)
        flags = check_flags(self.target, self.folder)
        kit = self.tools.kit
        receipt = BuildReceipt(
            id=build_id(self.target, self.source, self.tools),
            target=self.target.name,
            upstream_build=self.source.upstream_build,
            series_sha256=self.source.series_sha256,
            backends=self.target.backends,
            compiler=self.tools.compiler,
            bin_dir=bin_dir,
            arch=self.target.arch,
            toolkit=kit.toolkit if kit else "",
            link_stub=bool(kit and kit.link_stub),
            portable=not self.target.native,
            flags=flags,
            device_code=code,
        )
        inputs = _quick_inputs(self.target, self.source, self.tools)
        record_binaries(self.folder)
        write_receipt(self.folder / "inputs.json", {"inputs": inputs})
        receipt.save(self.folder)
        return receipt

    def summary(self) -> str:
        """Return what was configured, in one line."""
        parts = [f"{', '.join(self.target.backends)} on"]
        parts += [f"{self.target.name}, {self.tools.kit.toolkit}"] if self.tools.kit else []
        parts += [] if self.target.native else ["portable"]
        return ", ".join([*parts, self.tools.compiler])

    def _is_whole(self) -> bool:
        return (self.folder / "build.ninja").is_file() and not self._is_foreign()

    def _is_foreign(self) -> bool:
        """True when the folder was configured from another place: its files hold absolute paths."""
        cache = read_cache(self.folder)
        home, folder = cache.get("CMAKE_HOME_DIRECTORY"), cache.get("CMAKE_CACHEFILE_DIR")
        return bool(cache) and (home, folder) != (str(self.source.tree), str(self.folder))

    def _run(self, command: Sequence[str], step: str, on_line: Callable[[str], None] | None = None) -> None:
        log = self.folder / "log" / f"{step}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            processes.run(command, log_path=log, env=self._env, on_line=on_line, what=step)
        except LuceboxError as bad:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
            raise BuildError(
                bad.message, log_path=log, log_tail=error_lines(lines), hint=find_hint(lines) or bad.hint
            ) from bad


def build(
    layout: Layout,
    target: Target,
    source: Source,
    *,
    jobs: int,
    fresh: bool = False,
    progress: Progress | None = None,
    on_step: Callable[[str, str, float], None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Built:
    """Make the build of `target`, or return the one that is current.

    on_step is called with each finished step: its name, what came of it, seconds. on_wait is called once when
    another process is building the same target.
    """
    with paths.lock(layout.build_root / f"{target.name}.lock", on_wait):
        current = None if fresh else find_current(layout, target, source)
        if current:
            return Built(current, changed=False)
        work = Build(layout, target, source, tools_for(target))
        started = time.monotonic()
        if work.configure(fresh) and on_step:
            on_step(
                "configure",
                work.summary(),
                time.monotonic() - started,
            )
        started = time.monotonic()
        steps = work.compile(jobs, progress)
        if on_step:
            on_step("compile", f"{steps} steps", time.monotonic() - started)
        return Built(work.finish(), changed=True, steps=steps)


def build_id(target: Target, source: Source, tools: Toolchain) -> str:
    """Return the hash of all that makes the binaries: source, options, compiler, processor when native."""
    inputs = {
        "source": source.id,
        "defines": _defines(target, source, tools),
        "compiler": tools.compiler,
        "flags": compiler_flags(),
        "cpu": cpu_features() if target.native else "",
        **({"toolkit": tools.kit.toolkit} if tools.kit else {}),
    }
    return fingerprint(inputs)


def error_lines(lines: Sequence[str], limit: int = processes.TAIL_LINES) -> list[str]:
    """Return the part of a log to show: from its first error on, or its end when no line looks like one."""
    marks = ("error:", "CMake Error", "FAILED:", "undefined reference", "ninja: error")
    first = next((i for i, line in enumerate(lines) if any(mark in line for mark in marks)), None)
    shown = lines[-limit:] if first is None else lines[first : first + limit]
    return [line[:200] for line in shown]


def _defines(target: Target, source: Source, tools: Toolchain, folder: Path = Path()) -> dict[str, str]:
    """All -D values of the target itself. folder: of the build; without it they hold in any place."""
    kit = tools.kit.defines(folder) if tools.kit else None
    return target.cmake_defines(source.upstream_build, source.upstream_tag, source.series_sha256, kit)


def _quick_inputs(target: Target, source: Source, tools: Toolchain) -> dict[str, str]:
    """What a build depends on, as far as it shows without starting a program."""
    defines = _defines(target, source, tools)
    return {
        "source": source.id,
        "defines": fingerprint({**defines, **compiler_flags()}),
        "compilers": tools.stamp(),
        "cpu": cpu_features() if target.native else "",
    }
