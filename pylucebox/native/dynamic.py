"""Reads what a program or library asks of the dynamic linker: its name, its libraries, their folders."""

import struct
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import BuildError
from pylucebox.native.device_code import section

DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 14, 15, 29


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section of an ELF file. runpath: folders joined by ":", empty when it names none."""

    soname: str
    needed: tuple[str, ...]
    runpath: str


def read_dynamic(path: Path) -> Dynamic:
    """Return what `path` asks for. Raises BuildError when it is no 64-bit little-endian ELF file."""
    table, names = section(path, ".dynamic"), section(path, ".dynstr")
    rows: dict[int, list[str]] = {}
    for tag, value in struct.iter_unpack("<QQ", table[: len(table) // 16 * 16]):
        if tag in (DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH):
            if value >= len(names):
                raise BuildError(f"{path}: a name of its dynamic section lies beyond its strings")
            rows.setdefault(tag, []).append(
                names[value : names.find(b"\0", value)].decode("utf-8", "replace")
            )
    folders = rows.get(DT_RUNPATH) or rows.get(DT_RPATH) or [""]
    return Dynamic((rows.get(DT_SONAME) or [""])[0], tuple(rows.get(DT_NEEDED, ())), folders[0])
