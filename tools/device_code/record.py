"""The committed record of what our kernels compile to, and the page made from it."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from device_code.compiling import Compiled
from device_code.judging import Claim, is_ours, short_name
from pylucebox.core.errors import IntegrityError
from pylucebox.measure.report import write_text
from pylucebox.native.resource_report import KernelResources

SCHEMA = 1
HEAD = (
    "kernel",
    "GPU",
    "registers",
    "LDS, bytes",
    "waves a SIMD",
    "vector ALU",
    "a weight",
    "private memory",
)
NOTES = """\
Registers: VGPRs a lane. LDS: static, a workgroup.
Waves a SIMD: clang's own count in its report; on these GPUs 1536 VGPRs a SIMD, given out 24 at a time to
waves of 32 lanes, and 16 waves at most (LLVM 19, AMDGPUBaseInfo.cpp: getTotalNumVGPRs, getVGPRAllocGranule).
Vector ALU: instructions in the whole kernel; a weight: those of its largest inner loop, over the weights that
a lane handles in one pass, where the kernel claims that number.
A release of ROCm carries another LLVM: these figures show what a change does, not what every build ships."""

# Of the matrix-vector kernels: name and bytes of a block of 32 weights, by the type's number.
BLOCKS = {
    107: ("FP2", 10),
    104: ("FP3", 14),
    101: ("FP4_FAST", 17),
    100: ("FP4", 18),
    102: ("FP6", 26),
    103: ("FP8", 33),
}
VECTOR_KERNEL = re.compile(r"^rocmfpx_mmv<\(ggml_type\)(\d+), (\d),")
BOUND_ARCH, UNITS, LANES, CLOCK_HZ, BYTES_S = "gfx1151", 40, 64, 2.5e9, 256e9
BOUND = f"""\
## Memory or arithmetic

{BOUND_ARCH} with {UNITS} compute units: each issues {LANES} lanes of vector instructions a clock (two
SIMDs of 32, dual issue not counted), {UNITS * LANES * CLOCK_HZ / 1e12:.1f}e12 a second at
{CLOCK_HZ / 1e9} GHz, and memory brings {BYTES_S / 1e9:.0f} GB/s. `fit`: vector instructions a weight in the
time in which the weight's bytes arrive. Beside it what the slowest matrix-vector kernel of the type
executes in its largest loop, and its share of what fits. One column is decoding: memory decides. With n
columns a weight is multiplied n times, and where the share comes near 100 % arithmetic decides."""


@dataclass(frozen=True)
class Row:
    """One kernel of ours as it is recorded. valu_per_weight: None without a claim."""

    file: str
    kernel: str
    arch: str
    registers: int  # VGPRs
    lds_bytes: int
    waves: int | None
    valu: int
    valu_per_weight: float | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """compilers: by name and version, those that ran."""

    compilers: tuple[str, ...]
    rows: tuple[Row, ...]


def record_of(
    results: Sequence[Compiled], claims: Sequence[Claim], overlay: Path, compilers: Sequence[str]
) -> Record:
    """Return the record of everything of ours that was compiled, in an order that does not change."""
    rows = [
        _row(done, kernel, claims) for done in results for kernel in done.kernels if is_ours(kernel, overlay)
    ]
    return Record(tuple(compilers), tuple(sorted(rows, key=lambda row: (row.file, row.kernel, row.arch))))


def save(path: Path, record: Record) -> None:
    """Write the record, one kernel a line."""
    rows = ",\n".join("  " + json.dumps(asdict(row)) for row in record.rows)
    body = f"\n{rows}\n " if rows else ""
    compilers = json.dumps(record.compilers)
    write_text(path, f'{{\n "schema": {SCHEMA},\n "compilers": {compilers},\n "rows": [{body}]\n}}\n')


def load(path: Path) -> Record:
    """Read a record. Raises IntegrityError when a field is missing, unknown or malformed."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["schema"] != SCHEMA:
            raise ValueError(f"field 'schema' is {plain['schema']!r}, this version reads {SCHEMA}")
        rows = tuple(Row(**{**row, "faults": tuple(row["faults"])}) for row in plain["rows"])
        return Record(tuple(plain["compilers"]), rows)
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise IntegrityError(f"{path}: {bad}", hint="python tools/check_device_code.py --write") from bad


def difference(path: Path, now: Record) -> str:
    """Return how a kept record differs from what was compiled, or "". Other compilers are not compared."""
    if not path.is_file():
        return "not there" if now.rows else ""
    kept = load(path)
    if kept.compilers != now.compilers or kept.rows == now.rows:
        return ""
    changed = sorted({row.kernel for row in set(kept.rows) ^ set(now.rows)})
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"out of date ({changed[0]}{more})"


def page(record: Record) -> str:
    """Return the page that shows a record."""
    parts = ["# What the kernels compile to", "Made by `tools/render_docs.py` from kernels.json beside it."]
    parts.append("Compiled with " + " and ".join(record.compilers) + ", without a GPU.")
    files = sorted({row.file for row in record.rows})
    for file in files:
        rows = [_cells(row) for row in record.rows if row.file == file]
        lines = [HEAD, ["---"] * len(HEAD), *rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"## {file}\n\n{table}")
    return "\n\n".join([*parts, NOTES, *_bound(record)]) + "\n"


def _bound(record: Record) -> list[str]:
    """Return the section that holds matrix-vector kernels against the memory, where they are recorded."""
    worst: dict[tuple[int, int], float] = {}
    for row in record.rows:
        found = VECTOR_KERNEL.match(row.kernel)
        if found and row.arch == BOUND_ARCH and row.valu_per_weight is not None:
            place = (int(found[1]), int(found[2]))
            worst[place] = max(worst.get(place, 0.0), row.valu_per_weight)
    columns = sorted({n for _, n in worst})
    if not columns:
        return []
    lines = [("type", "fit", *(f"{n} column{'s' * (n > 1)}" for n in columns)), ("---",) * (len(columns) + 2)]
    for kind, (name, size) in BLOCKS.items():
        room = UNITS * LANES * CLOCK_HZ / (BYTES_S * 32 / size)
        cells = (worst.get((kind, n)) for n in columns)
        shown = ("" if cell is None else f"{cell:.2f} ({cell / room:.0%})" for cell in cells)
        lines.append((name, f"{room:.1f}", *shown))
    return [BOUND, "\n".join("| " + " | ".join(line) + " |" for line in lines)]


def _row(done: Compiled, kernel: KernelResources, claims: Sequence[Claim]) -> Row:
    said = done.instructions[kernel.symbol]
    weights = [
        c.weights_per_loop for c in claims if c.weights_per_loop and c.speaks_of(kernel.name, kernel.arch)
    ]
    loop = max(said.inner_loops.values(), default=said.valu)
    a_weight = round(loop / weights[0], 3) if weights else None
    counts = (kernel.vgprs, kernel.lds_bytes, kernel.occupancy, said.valu, a_weight)
    return Row(done.job.source.name, short_name(kernel.name), kernel.arch, *counts, kernel.faults)


def _cells(row: Row) -> list[str]:
    numbers: list[Any] = [row.registers, row.lds_bytes, row.waves, row.valu, row.valu_per_weight]
    shown = ["" if number is None else str(number) for number in numbers]
    return [f"`{row.kernel}`", row.arch, *shown, ", ".join(row.faults) or "none"]
