"""What the compilers say about each kernel: registers, spills, scratch, shared memory, instructions.

Three sources: the metadata that LLVM ends an AMDGPU assembly file with, LLVM's kernel-resource-usage remarks,
and ptxas -v. Names are demangled where llvm-cxxfilt or c++filt is installed, and stay as they are elsewhere.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pylucebox.core import processes
from pylucebox.core.errors import MissingError

DEMANGLERS = ("llvm-cxxfilt-19", "llvm-cxxfilt", "c++filt")
NAMES_A_CALL = 400  # keeps an argument list far below the system's limit

_TARGET = re.compile(
    r'amdhsa\.target:\s+[\'"]?\S*--(gfx[0-9a-f]+)|^\t\.amdgcn_target "\S*--(gfx[0-9a-f]+)', re.M
)
_KERNEL = re.compile(r"^  - (?=\.)", re.M)
_LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*):\s*(?:;(.*))?$")
_REMARK = re.compile(r"^(\S+?:\d+):\d+: remark:\s+([^:\[]+?)(?: \[[^\]]*\])?: (\S+) \[-Rpass-analysis", re.M)
_PTXAS_NAME = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PTXAS_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_PTXAS_USED = re.compile(r"Used (\d+) registers(.*)")


@dataclass(frozen=True)
class KernelResources:
    """One AMDGPU kernel.

    name: demangled where possible; symbol: as linked. vgprs, sgprs: allocated a lane, a wave.
    vgpr_spills, sgpr_spills: registers. scratch_bytes: private memory a lane. lds_bytes: static, a workgroup.
    occupancy: waves a SIMD by the compiler's own count, None where it did not say.
    source: FILE:LINE of the definition, "" where unknown.
    """

    name: str
    symbol: str
    arch: str
    vgprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    dynamic_stack: bool
    max_flat_workgroup: int | None = None
    wavefront_size: int | None = None
    occupancy: int | None = None
    source: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """What makes a kernel slow without a word: private memory in any form."""
        counts = (
            (self.scratch_bytes, "bytes of scratch"),
            (self.vgpr_spills, "VGPRs spilled"),
            (self.sgpr_spills, "SGPRs spilled"),
        )
        found = [f"{count} {what}" for count, what in counts if count]
        return (*found, "dynamic stack") if self.dynamic_stack else tuple(found)


@dataclass(frozen=True)
class CudaKernelResources:
    """One CUDA kernel by ptxas.

    registers, stack_bytes, spill_*_bytes: a thread. shared_bytes: static, a block.
    """

    name: str
    symbol: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def faults(self) -> tuple[str, ...]:
        """Spills; a stack frame alone is an array in local memory, and is no fault."""
        if not (self.spill_store_bytes or self.spill_load_bytes):
            return ()
        return (f"{self.spill_store_bytes} bytes spilled, {self.spill_load_bytes} read back",)


@dataclass(frozen=True)
class Instructions:
    """The instructions of one kernel.

    counts: by mnemonic. inner_loops: label -> vector ALU instructions in it.
    """

    counts: Mapping[str, int]
    inner_loops: Mapping[str, int] = field(default_factory=dict)

    @property
    def valu(self) -> int:
        """Vector ALU instructions, each half of a dual issue counted."""
        return sum(n for mnemonic, n in self.counts.items() if is_valu(mnemonic))


def is_valu(mnemonic: str) -> bool:
    """Tell whether an AMDGPU instruction goes to the vector ALU."""
    return mnemonic.startswith("v_")


def parse_metadata(asm_text: str) -> tuple[KernelResources, ...]:
    """Read the kernels' metadata at the end of an AMDGPU assembly file, in its order.

    Raises ValueError when a kernel lacks a field: a report that cannot be read is no clean report.
    """
    start = asm_text.rfind("amdhsa.kernels:")
    if start < 0:
        return ()
    target = _TARGET.search(asm_text)
    arch = next((g for g in target.groups() if g), "") if target else ""
    kernels = _KERNEL.split(asm_text[start:].partition("\namdhsa.target:")[0])[1:]
    symbols = [_text_field(kernel, "name") for kernel in kernels]
    names, occupancy = demangle(symbols), _occupancies(asm_text)
    return tuple(
        _from_metadata(kernel, symbol, names[symbol], arch, occupancy.get(symbol))
        for kernel, symbol in zip(kernels, symbols, strict=True)
    )


def parse_remarks(text: str, arch: str = "") -> tuple[KernelResources, ...]:
    """Read the remarks of -Rpass-analysis=kernel-resource-usage; other lines of a build log are skipped.

    Raises ValueError when a kernel lacks a field.
    """
    found: list[tuple[str, str, dict[str, str]]] = []
    for source, key, value in _REMARK.findall(text):
        if key == "Function Name":
            found.append((source, value, {}))
        elif found:
            found[-1][2][key] = value
    names = demangle(symbol for _, symbol, _ in found)
    return tuple(_from_remarks(source, s, names[s], arch, said) for source, s, said in found)


def parse_ptxas(text: str) -> tuple[CudaKernelResources, ...]:
    """Read what nvcc -Xptxas -v prints. Raises ValueError when a kernel has no register count."""
    parts = _PTXAS_NAME.split(text)
    symbols, archs, bodies = parts[1::3], parts[2::3], parts[3::3]
    names = demangle(symbols)
    return tuple(
        _from_ptxas(body, symbol, names[symbol], arch)
        for symbol, arch, body in zip(symbols, archs, bodies, strict=True)
    )


def parse_instructions(asm_text: str) -> dict[str, Instructions]:
    """Return the instructions of every function in an AMDGPU assembly file, by symbol."""
    found: dict[str, Instructions] = {}
    for symbol, lines in _functions(asm_text):
        counts: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        inner: set[str] = set()
        label = loop = ""
        for line in lines:
            if line.startswith((".LBB", "; %bb.")):
                label = line.partition(":")[0].removeprefix(".L")
                inside = re.search(r"in Loop: Header=(\w+)", line)
                loop = inside[1] if inside else ""
            if "This Inner Loop Header" in line:  # below the label when the loop is inside of another
                loop = label
                inner.add(label)
            for mnemonic in _mnemonics(line):
                counts[mnemonic] += 1
                blocks[loop] += is_valu(mnemonic)
        found[symbol] = Instructions(dict(counts), {name: blocks[name] for name in sorted(inner)})
    return found


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Return each symbol's C++ name, itself where no tool is found."""
    names = {symbol: symbol for symbol in symbols}
    mangled = [symbol for symbol in names if symbol.startswith("_Z")]
    tool = next((t for t in DEMANGLERS if shutil.which(t)), None)
    if tool is None:
        return names
    for at in range(0, len(mangled), NAMES_A_CALL):
        some = mangled[at : at + NAMES_A_CALL]
        lines = processes.run([tool, *some], error=MissingError).lines
        if len(lines) == len(some):
            names.update(zip(some, lines, strict=True))
    return names


def _from_metadata(kernel: str, symbol: str, name: str, arch: str, occupancy: int | None) -> KernelResources:
    return KernelResources(
        name=name,
        symbol=symbol,
        arch=arch,
        vgprs=int(_text_field(kernel, "vgpr_count")),
        sgprs=int(_text_field(kernel, "sgpr_count")),
        vgpr_spills=int(_text_field(kernel, "vgpr_spill_count")),
        sgpr_spills=int(_text_field(kernel, "sgpr_spill_count")),
        scratch_bytes=int(_text_field(kernel, "private_segment_fixed_size")),
        lds_bytes=int(_text_field(kernel, "group_segment_fixed_size")),
        dynamic_stack=_text_field(kernel, "uses_dynamic_stack", "false") in ("true", "1"),
        max_flat_workgroup=int(_text_field(kernel, "max_flat_workgroup_size")),
        wavefront_size=int(_text_field(kernel, "wavefront_size")),
        occupancy=occupancy,
    )


def _from_remarks(source: str, symbol: str, name: str, arch: str, said: Mapping[str, str]) -> KernelResources:
    try:
        return KernelResources(
            name=name,
            symbol=symbol,
            arch=arch,
            vgprs=int(said["VGPRs"]),
            sgprs=int(said["TotalSGPRs"] if "TotalSGPRs" in said else said["SGPRs"]),
            vgpr_spills=int(said["VGPRs Spill"]),
            sgpr_spills=int(said["SGPRs Spill"]),
            scratch_bytes=int(said["ScratchSize"]),
            lds_bytes=int(said.get("LDS Size", 0)),  # said of kernels only, not of functions they call
            dynamic_stack=said["Dynamic Stack"] == "True",
            occupancy=int(said["Occupancy"]),
            source=source,
        )
    except KeyError as absent:
        raise ValueError(f"resource remarks of {symbol}: no '{absent.args[0]}'") from absent


def _from_ptxas(body: str, symbol: str, name: str, arch: str) -> CudaKernelResources:
    used = _PTXAS_USED.search(body)
    if used is None:
        raise ValueError(f"ptxas report of {symbol}: no register count")
    stack, stores, loads = map(int, frame.groups()) if (frame := _PTXAS_FRAME.search(body)) else (0, 0, 0)
    shared = re.search(r"(\d+) bytes smem", used[2])
    return CudaKernelResources(
        name, symbol, arch, int(used[1]), stack, stores, loads, int(shared[1]) if shared else 0
    )


def _text_field(kernel: str, key: str, default: str | None = None) -> str:
    """Return one scalar of a kernel's YAML; quotes are taken off."""
    match = re.search(rf"^(?:    )?\.{key}:\s+['\"]?([^'\"\s]+)", kernel, re.M)
    if match:
        return match[1]
    if default is None:
        name = re.search(r"\.name:\s+(\S+)", kernel)
        raise ValueError(f"metadata of kernel {name[1] if name else '(no name)'}: no '.{key}'")
    return default


def _functions(asm_text: str) -> Iterable[tuple[str, list[str]]]:
    """Yield each function's symbol and body lines."""
    symbol = ""
    lines: list[str] = []
    for line in asm_text.splitlines():
        label = _LABEL.match(line)
        if label and label[2] and label[2].strip() == f"@{label[1]}":
            symbol, lines = label[1], []
        elif line.startswith(".Lfunc_end") and symbol:
            yield symbol, lines
            symbol = ""
        elif symbol:
            lines.append(line)


def _mnemonics(line: str) -> list[str]:
    """Return the instruction on a line, both of a dual issue, none on other lines."""
    if not line.startswith("\t") or line.lstrip().startswith((".", ";")):
        return []
    return [part.split()[0] for part in line.partition(";")[0].split("::") if part.strip()]


def _occupancies(asm_text: str) -> dict[str, int]:
    """Return waves a SIMD by symbol, from the comment that follows a kernel's code."""
    parts = re.split(r"^([A-Za-z_.$][\w.$]*):\s*; @\1$", asm_text, flags=re.M)
    found = {}
    for symbol, body in zip(parts[1::2], parts[2::2], strict=True):
        said = re.search(r"^; Occupancy: (\d+)$", body, re.M)
        if said:
            found[symbol] = int(said[1])
    return found
