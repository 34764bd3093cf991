"""What a build needs of a machine, as data: `lucebox build` refuses by it and `lucebox doctor` prints it."""

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.core.errors import MissingError
from pylucebox.native.toolchain import INSTALL_HINT, check_cxx17, search_tools

MEMORY_BYTES = 1 << 30  # one compiler of the largest files
SOURCE_BYTES = 1 << 29  # archive, pristine and prepared tree


@dataclass(frozen=True)
class Check:
    """One line of the table. found: what is there; needed: what would do; remedy: the next step when not ok.

    A thing that is absent but not needed is ok, and its remedy says what it would bring.
    """

    name: str
    found: str
    needed: str
    ok: bool
    remedy: str = ""


def lacking(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks that stand in the way."""
    return tuple(check for check in checks if not check.ok)


def unneeded(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks of what is absent and not needed."""
    return tuple(check for check in checks if check.ok and check.remedy)


def require(checks: Iterable[Check], target: str) -> None:
    """Raise MissingError that names each missing thing with its remedy."""
    found = list(checks)
    missing = lacking(found)
    if missing:
        names = ", ".join(check.name for check in missing)
        lines = [f"{check.name}: {check.found}; {check.remedy}" for check in missing]
        lines += [f"{check.name}: {check.found}, and not needed" for check in unneeded(found)]
        raise MissingError(
            f"target {target} cannot be built on this machine: {names}",
            log_tail=lines,
            hint=f"lucebox doctor --target {target}",
        )


def host_checks() -> list[Check]:
    """Return the checks of the programs that every target needs. Compiles one small file."""
    needs = {"cmake": "cmake", "ninja": "ninja", "C compiler": "any", "C++ compiler": "C++17"}
    found = search_tools()
    checks = []
    for name, what in found.items():
        if isinstance(what, MissingError):
            checks.append(Check(name, what.message, needs[name], False, what.hint or INSTALL_HINT))
        else:
            checks.append(Check(name, str(what), needs[name], True))
    return [*checks[:-1], _tried(checks[-1])]


def _tried(compiler: Check) -> Check:
    """Return the check of the C++ compiler after a trial."""
    if not compiler.ok:
        return compiler
    try:
        check_cxx17(Path(compiler.found))
    except MissingError as bad:
        return replace(compiler, found=bad.message, ok=False, remedy=bad.hint or INSTALL_HINT)
    return compiler


def space_checks(disk_folder: Path, disk_bytes: int, meminfo: Path = Path("/proc/meminfo")) -> list[Check]:
    """Return the checks of free disk space at `disk_folder`, which need not exist yet, and of memory."""
    there = next(path for path in (disk_folder, *disk_folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    checks = [
        Check(
            "disk",
            f"{gibibytes(free)} free at {there}",
            gibibytes(disk_bytes),
            free >= disk_bytes,
            "" if free >= disk_bytes else "free some space there",
        )
    ]
    available = available_memory(meminfo)
    if available is not None:
        enough = available >= MEMORY_BYTES
        checks.append(
            Check(
                "memory",
                f"{gibibytes(available)} available",
                f"{gibibytes(MEMORY_BYTES)} for each compiler",
                enough,
                "" if enough else "end other programs, or add swap",
            )
        )
    return checks


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes that programs could take, swap included; None where the system does not say."""
    try:
        text = meminfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    rows = dict(re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE))
    if "MemAvailable" not in rows:
        return None
    return (int(rows["MemAvailable"]) + int(rows.get("SwapFree", 0))) * 1024


def gibibytes(size: int) -> str:
    """Return a size such as "1.5 GiB"."""
    return f"{size / (1 << 30):.1f} GiB"


def version_tuple(text: str) -> tuple[int, ...]:
    """Return "7.2.4-1" as (7, 2, 4), so that versions compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0]))


def define_in(header: Path, names: Iterable[str]) -> tuple[int, ...] | None:
    """Return the numbers that `header` #defines for `names`, or None when one is not there."""
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found: Mapping[str, str] = dict(re.findall(r"^\s*#\s*define\s+(\w+)\s+(\d+)\b", text, re.MULTILINE))
    numbers = [found.get(name) for name in names]
    return None if None in numbers else tuple(int(number or 0) for number in numbers)
