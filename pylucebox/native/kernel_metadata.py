"""Reads the resource report that the compiler leaves in every AMD code object: a note in MessagePack."""

import struct
from collections.abc import Mapping
from typing import Any

from pylucebox.native.device_code import CodeObject, elf_sections
from pylucebox.native.resource_report import KernelResources, demangle

NOTE_OWNER = b"AMDGPU\0"
NOTE_METADATA = 32


def kernel_resources(code: CodeObject) -> tuple[KernelResources, ...]:
    """Return what each kernel of a code object takes. Raises ValueError when there is no readable report."""
    try:
        report, _ = decode_msgpack(_metadata(code.data), 0)
        kernels = report.get("amdhsa.kernels", [])
        names = demangle(kernel[".name"] for kernel in kernels)
        return tuple(_resources(kernel, names[kernel[".name"]], code.arch) for kernel in kernels)
    except (struct.error, IndexError, KeyError, AttributeError, TypeError) as bad:
        raise ValueError(f"resource report of {code.arch}: {type(bad).__name__} {bad}") from bad


def _resources(kernel: Mapping[str, Any], name: str, arch: str) -> KernelResources:
    return KernelResources(
        name=name,
        symbol=str(kernel[".name"]),
        arch=arch,
        vgprs=int(kernel[".vgpr_count"]),
        sgprs=int(kernel[".sgpr_count"]),
        vgpr_spills=int(kernel.get(".vgpr_spill_count", 0)),
        sgpr_spills=int(kernel.get(".sgpr_spill_count", 0)),
        scratch_bytes=int(kernel[".private_segment_fixed_size"]),
        lds_bytes=int(kernel[".group_segment_fixed_size"]),
        dynamic_stack=bool(kernel.get(".uses_dynamic_stack", False)),
        max_flat_workgroup=int(kernel[".max_flat_workgroup_size"]),
        wavefront_size=int(kernel[".wavefront_size"]),
    )


def _metadata(elf: bytes) -> bytes:
    """Return the note with the metadata."""
    for name, offset, size in elf_sections(elf):
        at, end = offset, offset + size
        while name == ".note" and at + 12 <= end:
            owner, length, kind = struct.unpack_from("<III", elf, at)
            content = at + 12 + (owner + 3) // 4 * 4
            if kind == NOTE_METADATA and elf[at + 12 : at + 12 + owner] == NOTE_OWNER:
                return elf[content : content + length]
            at = content + (length + 3) // 4 * 4
    raise ValueError("a code object without a resource report")


def decode_msgpack(data: bytes, at: int) -> tuple[Any, int]:
    """Return the MessagePack value at `at` and where the next one starts. Extension types are not read."""
    kind = data[at]
    at += 1
    if kind <= 0x7F:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind <= 0x8F:
        return _map(data, at, kind & 0x0F)
    if kind <= 0x9F:
        return _array(data, at, kind & 0x0F)
    if kind <= 0xBF:
        return _text(data, at, kind & 0x1F)
    if kind in _FIXED:
        return _FIXED[kind], at
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    read, form = _SIZED[kind]
    (length,) = struct.unpack_from(form, data, at)
    return read(data, at + struct.calcsize(form), length)


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    if at + length > len(data):
        raise IndexError("text ends beyond the report")
    return data[at : at + length].decode("utf-8", errors="replace"), at + length


def _array(data: bytes, at: int, length: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(length):
        value, at = decode_msgpack(data, at)
        values.append(value)
    return values, at


def _map(data: bytes, at: int, length: int) -> tuple[dict[Any, Any], int]:
    values = {}
    for _ in range(length):
        key, at = decode_msgpack(data, at)
        values[key], at = decode_msgpack(data, at)
    return values, at


_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SIZED = {
    0xC4: (_text, ">B"),
    0xC5: (_text, ">H"),
    0xC6: (_text, ">I"),
    0xD9: (_text, ">B"),
    0xDA: (_text, ">H"),
    0xDB: (_text, ">I"),
    0xDC: (_array, ">H"),
    0xDD: (_array, ">I"),
    0xDE: (_map, ">H"),
    0xDF: (_map, ">I"),
}
