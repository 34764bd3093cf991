"""Reads which GPUs a compiled library holds machine code for: ELF, NVIDIA's fatbin and AMD's offload bundle.

Pure Python, so that the proof needs no tool of a toolkit; zstd alone is left to ROCm's own unpacker.
"""

import mmap
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import BuildError

ELF_MAGIC = b"\x7fELF"
FATBIN_MAGIC = 0xBA55ED50
FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, header bytes, bytes of all entries
# kind, version, header bytes, content bytes, …, minor, major, architecture, …, flags
FATBIN_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
FATBIN_PTX, FATBIN_CUBIN = 1, 2
FATBIN_OWN_GENERATION = 1 << 20  # compiled for "90a", not for "90"
BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED_MAGIC = b"CCOB"
HOST_PREFIXES = ("host-", "host")

Unpacker = Callable[[bytes], bytes]


@dataclass(frozen=True)
class CodeObject:
    """Machine code for one GPU. arch: "gfx1151"; data: its ELF file."""

    arch: str
    data: bytes


def section(path: Path, name: str) -> bytes:
    """Return the content of section `name` of a 64-bit little-endian ELF file, empty when it has none.

    Raises BuildError when the file is no such ELF or ends within what it announces.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return elf_section(data, name)
    except (OSError, ValueError, struct.error) as bad:
        raise BuildError(f"{path}: not a library that can be read: {bad}") from bad


def elf_section(data: "mmap.mmap | bytes", name: str) -> bytes:
    """Return section `name` of ELF `data`, empty when it has none. Raises ValueError, struct.error."""
    for found, offset, size in elf_sections(data):
        if found == name:
            if offset + size > len(data):
                raise ValueError(f"section {name} ends beyond the file")
            return bytes(data[offset : offset + size])
    return b""


def elf_sections(data: "mmap.mmap | bytes") -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each section of a 64-bit little-endian ELF file."""
    if bytes(data[:6]) != ELF_MAGIC + b"\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    width, count, names_index = struct.unpack_from("<HHH", data, 58)
    if count and width < 64:
        raise ValueError("section headers too short")
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * width) for i in range(count)]
    if not headers:
        return
    names = headers[names_index]
    text = bytes(data[names[4] : names[4] + names[5]])
    for header in headers:
        end = text.find(b"\0", header[0])
        yield text[header[0] : end].decode("ascii", errors="replace"), header[4], header[5]


def cuda_architectures(fatbin: bytes) -> Counter[str]:
    """Return how many entries a .nv_fatbin section has for each GPU: "sm_90a" machine code, "compute_90" PTX.

    The content may be compressed; the headers never are. Raises ValueError where the structure is broken.
    """
    found: Counter[str] = Counter()
    position = 0
    while position + FATBIN_HEADER.size <= len(fatbin):
        magic, _, header, size = FATBIN_HEADER.unpack_from(fatbin, position)
        if magic != FATBIN_MAGIC:
            if fatbin[position : position + 8].strip(b"\0"):
                raise ValueError(f"no fatbin header at byte {position}")
            position += 8  # padding between the files' parts
            continue
        end = position + header + size
        if header < FATBIN_HEADER.size or end > len(fatbin):
            raise ValueError(f"fatbin at byte {position} ends beyond its section")
        found += _fatbin_entries(fatbin, position + header, end)
        position = end
    return found


def _fatbin_entries(fatbin: bytes, position: int, end: int) -> Counter[str]:
    found: Counter[str] = Counter()
    while position + FATBIN_ENTRY.size <= end:
        kind, _, header, size, *_, arch, _, _, flags = FATBIN_ENTRY.unpack_from(fatbin, position)
        if header < FATBIN_ENTRY.size or position + header + size > end:
            raise ValueError(f"fatbin entry at byte {position} ends beyond its fatbin")
        own = "a" if flags & FATBIN_OWN_GENERATION else ""
        if kind in (FATBIN_PTX, FATBIN_CUBIN):
            found[f"{'sm' if kind == FATBIN_CUBIN else 'compute'}_{arch}{own}"] += 1
        position += header + size
    return found


def hip_code_objects(fatbin: bytes, unpack: Unpacker | None = None) -> Iterator[CodeObject]:
    """Yield the code objects of a .hip_fatbin section. unpack: for bundles that zstd compressed.

    Raises ValueError where the structure is broken or a bundle cannot be unpacked.
    """
    position = 0
    while position < len(fatbin):
        starts = [at for magic in (BUNDLE_MAGIC, PACKED_MAGIC) if (at := fatbin.find(magic, position)) >= 0]
        if not starts:
            return
        position = min(starts)
        if fatbin.startswith(PACKED_MAGIC, position):
            size, content = _unpacked(fatbin, position, unpack)
            yield from _bundle(content, 0)[1]
            position += size
        else:
            size, objects = _bundle(fatbin, position)
            yield from objects
            position += size


def _bundle(data: bytes, start: int) -> tuple[int, list[CodeObject]]:
    """Return the length of the bundle at `start` and its code objects."""
    if not data.startswith(BUNDLE_MAGIC, start):
        raise ValueError("an unpacked bundle does not start like one")
    at = start + len(BUNDLE_MAGIC)
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    objects, end = [], at
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        name = data[at + 24 : at + 24 + length].decode("ascii", errors="replace")
        at += 24 + length
        if length > 256 or start + offset + size > len(data):
            raise ValueError(f"bundle at byte {start}: entry '{name[:80]}' ends beyond its section")
        end = max(end, at, start + offset + size)
        if size and not name.startswith(HOST_PREFIXES):
            arch = name.split("--")[-1].split(":")[0].lstrip("-")
            objects.append(CodeObject(arch, data[start + offset : start + offset + size]))
    return end - start, objects


def _unpacked(data: bytes, start: int, unpack: Unpacker | None) -> tuple[int, bytes]:
    """Return the length of the compressed bundle at `start`, and the bundle."""
    version, method = struct.unpack_from("<HH", data, start + 4)
    wide = version >= 3
    header = 32 if wide else 24
    (size,) = struct.unpack_from("<Q" if wide else "<I", data, start + 8)
    if version < 2 or size < header or start + size > len(data):
        raise ValueError(f"compressed bundle at byte {start}: version {version} is not known here")
    if method == 0:
        return size, zlib.decompress(data[start + header : start + size])
    if unpack is None:
        raise ValueError("its bundles are compressed with zstd, and clang-offload-bundler is not found")
    return size, unpack(data[start : start + size])


def make_bundle(objects: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed bundle of code objects by their target's full name."""
    entries = b""
    at = len(BUNDLE_MAGIC) + 8 + sum(24 + len(name) for name in objects)
    for name, data in objects.items():
        entries += struct.pack("<QQQ", at, len(data), len(name)) + name.encode("ascii")
        at += len(data)
    return BUNDLE_MAGIC + struct.pack("<Q", len(objects)) + entries + b"".join(objects.values())
