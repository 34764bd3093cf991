"""What a figure was measured on: processor, system, clock governor. No host or user names."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# Instruction sets that decide which of our kernels run, as /proc/cpuinfo spells them.
NOTABLE_FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "amx_int8",
    "asimddp",
    "i8mm",
    "sve",
)


@dataclass(frozen=True)
class Machine:
    """cores: those this process may use. governor: None where the system does not say."""

    cpu: str
    cores: int
    isa: tuple[str, ...]
    os: str
    kernel: str
    governor: str | None

    def __str__(self) -> str:
        governor = f", governor {self.governor}" if self.governor else ""
        return f"{self.cpu}, {self.cores} cores{governor}, {self.os}"


def describe_machine(root: Path = Path("/")) -> Machine:
    """Read the facts of this machine from /proc and /sys below `root`."""
    facts = _cpu_facts(root / "proc/cpuinfo")
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=facts.get("model name") or facts.get("Model") or platform.machine(),
        cores=cores,
        isa=tuple(f for f in NOTABLE_FLAGS if f in flags),
        os=_os_name(root / "etc/os-release"),
        kernel=platform.release(),
        governor=_first_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    )


def _cpu_facts(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _os_name(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.system()
    names = [line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")]
    return names[0] if names else platform.system()


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
