"""Warnings in the C and C++ lines that are ours: `python tools/check_warnings.py`.

Every overlay file and every file that a patch touches is compiled again by the commands of the CPU build, for
its syntax alone, with -Wall -Wextra -Wswitch. A warning in an overlay file is a fault. A patched file may
warn where upstream's does: what it says beyond the pristine file's warnings is ours, and a fault. Overlay
files of other builds are compiled like their neighbours. Results are kept by the content of all files read.
Device code has a check of its own: tools/check_device_code.py.
"""

import json
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kept_results

from pylucebox.core import processes
from pylucebox.core.errors import BuildError, LuceboxError, MissingError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.source.series import read_series

HEADERS = (".h", ".hpp")
DEVICE_FOLDERS = ("ggml/src/ggml-cuda/", "ggml/src/ggml-hip/")
SUFFIXES = (".c", ".cpp", *HEADERS)
# -Wswitch not as an error, so that a file's other warnings are seen too; any in our lines is a failure.
ASKED = ("-Wall", "-Wextra", "-Wswitch", "-fsyntax-only", "-fdiagnostics-color=never")
WARNING = re.compile(r"^(/\S+?):(\d+):(?:\d+:)? (?:warning|error|fatal error): (.*)$", re.M)


@dataclass(frozen=True)
class Unit:
    """One compiler call. source: as the build names it; words: the command without what makes an object."""

    source: Path
    folder: Path
    words: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """What a compiler said, links followed. warnings: (file, line, text); read: all files."""

    unit: Unit
    warnings: tuple[tuple[str, int, str], ...]
    read: tuple[str, ...]


@dataclass(frozen=True)
class Trees:
    """prepared, pristine: llama.cpp with and without us. patched: in prepared, what patches change."""

    overlay: Path
    prepared: Path
    pristine: Path
    patched: tuple[Path, ...]

    @classmethod
    def of(cls, layout: Layout) -> "Trees":
        overlay = (layout.patches_dir / "overlay").resolve()
        names = {name for patch in read_series(layout.patches_dir) for name in patch.files}
        patched = tuple(layout.prepared_dir / n for n in sorted(names) if _is_host_code(n))
        return cls(overlay, layout.prepared_dir, layout.pristine_dir, patched)

    def ours(self) -> list[Path]:
        """Return overlay files; they are links in the prepared tree."""
        return sorted(p for p in self.overlay.rglob("*") if _is_host_code(str(p.relative_to(self.overlay))))


def _is_host_code(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(DEVICE_FOLDERS)


def read_units(build: Path) -> list[Unit]:
    """Return the compiler calls of a build. Raises MissingError when there is no build."""
    path = build / "compile_commands.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as bad:
        raise MissingError(
            f"{path}: cannot be read ({bad.strerror})", hint="lucebox build --target cpu"
        ) from bad
    units: dict[Path, Unit] = {}
    for entry in entries:
        words = shlex.split(entry["command"])
        kept = tuple(w for w in words[: words.index("-o")] if not w.startswith("-Wno-"))
        for source in _sources(Path(entry["file"])):
            units.setdefault(source, Unit(source, Path(entry["directory"]), kept))
    return list(units.values())


def _sources(path: Path) -> list[Path]:
    """Return the file itself, or the files that CMake has joined in it."""
    if path.parent.name != "Unity":
        return [path]
    return [
        Path(name) for name in re.findall(r'^#include "(/[^"]+)"$', path.read_text(encoding="utf-8"), re.M)
    ]


def borrowed(path: Path, trees: Trees, units: Sequence[Unit]) -> Unit:
    """Return a call for an overlay file of another build, or for a header that nothing includes."""
    place = trees.prepared / path.relative_to(trees.overlay)
    near = max(units, key=lambda unit: (_shared(unit.source, place), unit.source.suffix == ".cpp"))
    folders = [word[2:] for word in near.words if word.startswith(f"-I{trees.prepared}")]
    ours = (trees.overlay / os.path.relpath(folder, trees.prepared) for folder in folders)
    words = (*near.words, *(f"-I{folder}" for folder in ours), "-iquote", str(place.parent))
    if path.suffix in HEADERS:
        return Unit(Path("/dev/null"), near.folder, (*words, "-x", "c++", "-include", str(path)))
    return Unit(path, near.folder, words)


def _shared(one: Path, other: Path) -> int:
    """Return how many folders two paths share."""
    pairs = zip(one.parent.parts, other.parent.parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def including(header: Path, units: Sequence[Unit]) -> list[Unit]:
    """Return the first unit whose own text includes a header of this name."""
    named = re.compile(rf'^\s*#\s*include\s*[<"](?:\S*/)?{re.escape(header.name)}[>"]', re.M)
    first = (u for u in units if named.search(u.source.read_text(encoding="utf-8", errors="replace")))
    return list(islice(first, 1))


def compile_units(units: Sequence[Unit], folder: Path) -> list[Said]:
    """Return what the compiler says of each, in their order, on all processors."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda unit: compile_unit(unit, folder), units))


def compile_unit(unit: Unit, folder: Path) -> Said:
    """Return what the compiler says of one unit, or what it said when every file was as it is now."""
    compiler = version(unit.words[0])
    rules = kept_results.digest_of([Path(__file__)])
    kept = folder / f"{kept_results.key(rules, compiler, unit.words, str(unit.source))}.json"
    found = kept_results.load(kept)
    if found is None:
        found, read = _compile(unit, folder)
        if read:
            kept_results.save(kept, found, read)
    return Said(
        unit, tuple((file, line, text) for file, line, text in found["warnings"]), tuple(found["read"])
    )


@cache
def version(compiler: str) -> str:
    """Return the first line of what a compiler says of itself."""
    return processes.run([compiler, "--version"], error=MissingError).lines[0]


def _compile(unit: Unit, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Return what was said and read; what does not compile reads nothing, its errors are warnings."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as made:
        rule, log = Path(made) / "rule", Path(made) / "log"
        more = (*ASKED, "-MD", "-MF", str(rule), "-MT", "x")
        read: list[Path] = []
        with suppress(BuildError):
            processes.run(
                [*unit.words, *more, str(unit.source)], cwd=unit.folder, log_path=log, error=BuildError
            )
            read = [Path(os.path.normpath(unit.folder / p)) for p in kept_results.read_dependencies(rule)]
        text = log.read_text(encoding="utf-8", errors="replace")
    warnings = [[str(Path(f).resolve()), int(line), said] for f, line, said in WARNING.findall(text)]
    return {"warnings": warnings, "read": sorted({str(path.resolve()) for path in read})}, read


def pristine_unit(unit: Unit, trees: Trees) -> Unit:
    """Return the same call for upstream's file."""

    def moved(text: str) -> str:
        return text.replace(f"{trees.prepared}/", f"{trees.pristine}/")

    return Unit(Path(moved(str(unit.source))), unit.folder, tuple(map(moved, unit.words)))


def overlay_faults(results: Sequence[Said], overlay: Path) -> list[str]:
    """Return every warning in an overlay file, each once."""
    found = {w for said in results for w in said.warnings if Path(w[0]).is_relative_to(overlay)}
    return [f"{Path(file).relative_to(overlay)}:{line}: {text}" for file, line, text in sorted(found)]


def patched_faults(said: Said, before: Said, trees: Trees) -> list[str]:
    """Return the warnings of patched files that upstream's do not have; lines may have moved, texts count."""
    allowed = Counter(
        (str(Path(f).relative_to(trees.pristine)), text) for f, _, text in _below(before, trees.pristine)
    )
    patched = {str(path.resolve()) for path in trees.patched}
    faults = []
    for file, line, text in _below(said, trees.prepared):
        name = str(Path(file).relative_to(trees.prepared))
        if file in patched and allowed[name, text] <= 0:
            faults.append(f"{name}:{line}: {text}")
        allowed[name, text] -= 1
    return faults


def _below(said: Said, tree: Path) -> list[tuple[str, int, str]]:
    return [w for w in said.warnings if Path(w[0]).is_relative_to(tree)]


def check(layout: Layout) -> tuple[list[str], int]:
    """Return the faults and the number of compiler calls."""
    trees, folder = Trees.of(layout), layout.build_root / "warnings"
    units = read_units(layout.build_dir("cpu"))
    touched = {path.resolve() for path in (*trees.ours(), *trees.patched)}
    chosen = [unit for unit in units if unit.source.resolve() in touched]
    reached = {path for said in compile_units(chosen, folder) for path in said.read}
    for path in sorted(p for p in touched if str(p) not in reached):
        # a unit that was compiled and did not reach the header includes it in other builds alone
        readers = [u for u in including(path, units) if u not in chosen] if path.suffix in HEADERS else []
        if not readers and path.is_relative_to(trees.overlay):
            readers = [borrowed(path, trees, units)]
        chosen += [unit for unit in readers if unit not in chosen]
    upstream = [u for u in chosen if u.source.is_relative_to(trees.prepared) and not _is_ours(u, trees)]
    calls = [*chosen, *(pristine_unit(unit, trees) for unit in upstream)]
    results = compile_units(calls, folder)
    now, before = results[: len(chosen)], dict(zip(upstream, results[len(chosen) :], strict=True))
    faults = overlay_faults(now, trees.overlay)
    for said in now:
        if said.unit in before:
            faults += patched_faults(said, before[said.unit], trees)
    reached = {path for said in now for path in said.read}
    faults += [f"{path}: nothing compiles it" for path in sorted(touched) if str(path) not in reached]
    return list(dict.fromkeys(faults)), len(calls)


def _is_ours(unit: Unit, trees: Trees) -> bool:
    return unit.source.resolve().is_relative_to(trees.overlay)


def main() -> int:
    layout = find_layout()
    layout = replace(layout, work_dir=layout.work_dir.resolve())
    started = time.monotonic()
    try:
        faults, calls = check(layout)
    except LuceboxError as bad:
        print(f"error: {bad.message}", *bad.log_tail, sep="\n", file=sys.stderr)
        print(f"hint: {bad.hint}" if bad.hint else "", file=sys.stderr)
        return bad.exit_code
    print(*faults, sep="\n", end="\n" if faults else "")
    print(
        f"{calls} files compiled for their warnings, {len(faults)} faults, {time.monotonic() - started:.0f} s"
    )
    return 7 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
