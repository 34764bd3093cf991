"""Finds the GPUs of this machine, from what the drivers tell: reads files, starts at most nvidia-smi."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import LuceboxError
from pylucebox.native.targets import DEFAULT_TARGET, TARGETS

KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
NVIDIA_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
NVIDIA_SMI_S = 10.0  # a driver in trouble lets it hang
GFX_VERSION = re.compile(r"^gfx_target_version (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver calls it. arch: "sm_90" or "gfx1151", whether there is such a target or not."""

    arch: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.arch})" if self.name else self.arch


@dataclass(frozen=True)
class Detection:
    """What to build when the user named nothing. problems: why a GPU may have been missed."""

    gpus: tuple[Gpu, ...]
    problems: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the GPUs that have one, else the processor alone."""
        known = tuple(dict.fromkeys(gpu.arch for gpu in self.gpus if gpu.arch in TARGETS))
        return known or (DEFAULT_TARGET,)

    @property
    def unserved(self) -> tuple[Gpu, ...]:
        """The GPUs for which there is no target."""
        return tuple(gpu for gpu in self.gpus if gpu.arch not in TARGETS)

    def __str__(self) -> str:
        found = ", ".join(str(gpu) for gpu in dict.fromkeys(self.gpus)) or "no GPU found"
        return f"{', '.join(self.targets)}: {found}"


def detect(kfd_nodes: Path = KFD_NODES, nvidia_signs: tuple[Path, ...] = NVIDIA_SIGNS) -> Detection:
    """Return the GPUs there are. Never raises: a driver that does not answer is a problem to report."""
    nvidia, problems = _nvidia_gpus(nvidia_signs)
    return Detection((*nvidia, *_amd_gpus(kfd_nodes)), problems)


def _nvidia_gpus(signs: tuple[Path, ...]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    program = shutil.which("nvidia-smi")
    if not program:
        lacking = ("an NVIDIA driver is loaded, but nvidia-smi is not found",)
        return (), lacking if any(sign.exists() for sign in signs[:1]) else ()
    if not any(sign.exists() for sign in signs):
        return (), ()
    try:
        output = processes.run(
            [program, "--query-gpu=compute_cap,name", "--format=csv,noheader"], timeout_s=NVIDIA_SMI_S
        )
    except LuceboxError as bad:
        return (), (f"nvidia-smi: {bad.log_tail[-1] if bad.log_tail else bad.message}",)
    return parse_compute_caps(output.lines), ()


def parse_compute_caps(lines: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs of nvidia-smi's lines, such as "9.0, NVIDIA H200"."""
    rows = (re.fullmatch(r"(\d+)\.(\d+), *(.*)", line.strip()) for line in lines)
    return tuple(Gpu(f"sm_{row[1]}{row[2]}", row[3]) for row in rows if row)


def _amd_gpus(nodes: Path) -> tuple[Gpu, ...]:
    found = []
    for path in sorted(nodes.glob("*/properties")):
        try:
            match = GFX_VERSION.search(path.read_text(encoding="ascii", errors="replace"))
        except OSError:  # of another user's container
            continue
        if match and int(match[1]):
            found.append(Gpu(gfx_name(int(match[1])), "AMD GPU"))
    return tuple(found)


def gfx_name(version: int) -> str:
    """Return the name of the kernel's number: 110501 is gfx1151, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
