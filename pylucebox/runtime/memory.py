"""What serving a model takes from each device, against what the device offers, before anything is loaded.

A build is asked itself: `llama-server --fit-print on` makes models and contexts without memory and prints
their sizes, to the byte. Without a build the prediction from headers stands in, see formats/memory_plan.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pylucebox.core import processes
from pylucebox.core.errors import ServerError
from pylucebox.formats.memory_plan import MemoryPlan
from pylucebox.runtime.server import ServerCommand

HOST = "host"
PROBE_TIMEOUT_S = 120.0
KIB = 1024


@dataclass(frozen=True)
class Share:
    """Bytes of one model in one place: weights, caches with the compressors' state, compute buffers."""

    weights_bytes: int = 0
    context_bytes: int = 0
    compute_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.context_bytes + self.compute_bytes

    def as_dict(self) -> dict[str, int]:
        return {**vars(self), "total_bytes": self.total_bytes}


@dataclass(frozen=True)
class Place:
    """A device, or "host" for the machine's own memory. offered_bytes: None where nobody tells."""

    name: str
    target: Share
    drafter: Share
    offered_bytes: int | None = None

    @property
    def needed_bytes(self) -> int:
        return self.target.total_bytes + self.drafter.total_bytes

    @property
    def fits(self) -> bool:
        return self.offered_bytes is None or self.needed_bytes <= self.offered_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "needed_bytes": self.needed_bytes,
            "offered_bytes": self.offered_bytes,
            "target": self.target.as_dict(),
            "drafter": self.drafter.as_dict(),
        }


@dataclass(frozen=True)
class Demand:
    """What a server would take. context_tokens: of one sequence. measured: by the build, not from headers."""

    places: tuple[Place, ...]
    context_tokens: int
    measured: bool

    @property
    def needed_bytes(self) -> int:
        return sum(place.needed_bytes for place in self.places)

    @property
    def overcommitted(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if not place.fits)

    def as_dict(self) -> dict[str, Any]:
        return {
            "measured": self.measured,
            "context_tokens": self.context_tokens,
            "needed_bytes": self.needed_bytes,
            "places": [place.as_dict() for place in self.places],
        }


def ask_build(command: ServerCommand, root: Path = Path("/")) -> Demand:
    """Return what the server of `command` would take. Raises ServerError, with its log, when it cannot tell.

    A context that the server would fit to the memory is taken as the model's own, its largest.
    """
    probe = replace(command, extra=(*command.extra, "--fit-print", "on"))
    lines = processes.run(
        probe.argv(), error=ServerError, what="llama-server --fit-print on", timeout_s=PROBE_TIMEOUT_S
    ).lines
    answer = next((line for line in reversed(lines) if line.startswith('{"')), None)
    if answer is None:
        raise ServerError(
            f"{command.program}: no memory plan in what it printed", hint="lucebox build", log_tail=lines[-5:]
        )
    return parse_answer(json.loads(answer), root)


def parse_answer(answer: Mapping[str, Any], root: Path = Path("/")) -> Demand:
    """Read the object that llama-server prints, and add what this machine offers."""
    places = []
    for name, place in answer["places"].items():
        offered = offered_by_device(name, int(place["free"]), int(place["total"]), root)
        places.append(Place(name, _share(place.get("target")), _share(place.get("drafter")), offered))
    return Demand(tuple(places), int(answer["n_ctx_seq"]), measured=True)


def from_headers(plan: MemoryPlan, root: Path = Path("/")) -> Demand:
    """Return a prediction as the demand on this machine's own memory."""
    target = Share(plan.weights_bytes, plan.cache_bytes + plan.output_bytes, plan.compute_bytes)
    drafter = Share(plan.drafter_weights_bytes, plan.drafter_cache_bytes, plan.drafter_compute_bytes)
    place = Place(HOST, target, drafter, available_bytes(root))
    return Demand((place,), plan.context_tokens, measured=False)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that programs can take without swapping; None where /proc does not tell."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def offered_by_device(name: str, free: int, total: int, root: Path = Path("/")) -> int | None:
    """Return what a device offers: the host its available memory, an AMD APU its VRAM and GTT together.

    free, total: as the device's driver reports them, 0 for unknown.
    """
    if name == HOST:
        return available_bytes(root)
    shared = _apu_bytes(root) if name.startswith("ROCm") else None
    return shared or free or total or None


def _apu_bytes(root: Path) -> int | None:
    """Free VRAM and GTT of the only AMD GPU, where GTT is the larger: then it is the machine's memory."""
    cards = sorted(root.glob("sys/class/drm/card*/device/mem_info_gtt_total"))
    if len(cards) != 1:
        return None
    try:
        numbers = {
            f"{kind}_{what}": int((cards[0].parent / f"mem_info_{kind}_{what}").read_text(encoding="ascii"))
            for kind in ("vram", "gtt")
            for what in ("total", "used")
        }
    except (OSError, ValueError):
        return None
    if numbers["gtt_total"] <= numbers["vram_total"]:
        return None
    return sum(numbers[f"{kind}_total"] - numbers[f"{kind}_used"] for kind in ("vram", "gtt"))


def _share(place: Mapping[str, int] | None) -> Share:
    if place is None:
        return Share()
    return Share(int(place["model"]), int(place["context"]), int(place["compute"]))
