"""What must be true of compiled kernels: no private memory in ours, and what the table of claims says."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from device_code.compiling import Compiled
from pylucebox.core.errors import IntegrityError
from pylucebox.native.resource_report import CudaKernelResources, Instructions, KernelResources

OUR_NAMES = re.compile(r"rocmfp|(?<![a-z])ds4(?![a-z0-9])", re.IGNORECASE)
DEFINED = re.compile(r"__global__[^;{}]*?\bvoid\s+(?:__launch_bounds__\([^{};]*?\)\s*)?(\w+)\s*\(")
WAVE = 32


@dataclass(frozen=True)
class Claim:
    """What a kernel is meant to compile to. A field that is not given claims nothing.

    kernel: regular expression, searched in demangled names without return type. needs, forbids: instructions.
    weights_per_loop: weights that a lane handles in one pass of its largest inner loop.
    """

    kernel: str
    arch: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    lds_bytes: int | None = None
    max_vgprs: int | None = None
    weights_per_loop: int | None = None

    def speaks_of(self, name: str, arch: str) -> bool:
        found = re.search(self.kernel, name.removeprefix("void "))
        return found is not None and (not self.arch or arch in self.arch)


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Read the [[claim]] tables of a TOML file. Raises IntegrityError naming file and field."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("claim", [])
        return tuple(_claim(table) for table in tables)
    except (OSError, ValueError, TypeError, re.error) as bad:
        raise IntegrityError(
            f"{path}: {bad}", hint="fields of a claim are in tools/device_code/judging.py"
        ) from bad


def _claim(table: dict[str, Any]) -> Claim:
    """Raises ValueError or TypeError when a field is unknown, missing or of another kind."""
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    claim = Claim(**plain)
    re.compile(claim.kernel)
    for name in ("arch", "needs", "forbids"):
        words = getattr(claim, name)
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            raise TypeError(f"claim '{claim.kernel}': field '{name}' is no list of names")
    for name in ("lds_bytes", "max_vgprs", "weights_per_loop"):
        if not isinstance(getattr(claim, name), int | None):
            raise TypeError(f"claim '{claim.kernel}': field '{name}' is no whole number")
    return claim


def short_name(name: str) -> str:
    """Return a demangled name with its template arguments, without parameters and return type."""
    name, depth = name.removeprefix("void "), 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name[at:].startswith("(anonymous namespace)"):
            return name[:at]
    return name


def is_ours(kernel: KernelResources | CudaKernelResources, overlay: Path) -> bool:
    """Tell whether a kernel is ours: by its name, or because the overlay defines it."""
    if OUR_NAMES.search(kernel.name):
        return True
    source = kernel.source if isinstance(kernel, KernelResources) else ""
    if source:
        return source.startswith(f"{overlay}/")
    return short_name(kernel.name).partition("<")[0] in defined_kernels(overlay)


@cache
def defined_kernels(overlay: Path) -> frozenset[str]:
    """Return the names behind `__global__` in the overlay, for reports that name no source."""
    files = [path for path in overlay.rglob("*") if path.suffix in (".cu", ".cuh")]
    return frozenset(name for path in files for name in DEFINED.findall(path.read_text(encoding="utf-8")))


def faults(done: Compiled, claims: Sequence[Claim], overlay: Path, all_ours: bool = False) -> list[str]:
    """Return what is wrong with one compiled file, a line each.

    Upstream's kernels and lines are not judged, except, with all_ours, those of the file itself.
    """
    if done.error:
        return [f"{done.job.source.name} {done.job.arch}: does not compile\n{done.error}"]
    places = (overlay, done.job.source) if all_ours else (overlay,)
    found = [f"{done.job.arch}: {w}" for w in done.warnings if _is_below(w.partition(":")[0], places)]
    for kernel in done.every_kernel:
        if all_ours or is_ours(kernel, overlay):
            found += [
                f"{kernel.arch} {short_name(kernel.name)}: {fault}"
                for fault in _kernel_faults(kernel, done, claims)
            ]
    return found


def patched_faults(now: Compiled, before: Compiled, tree: Path, pristine: Path) -> list[str]:
    """Return what a patched file of `tree` is warned of beyond upstream's; lines may have moved."""
    name = now.job.source.relative_to(tree)
    upstream = Counter(_texts(before, pristine / name).values())
    found = []
    for place, text in _texts(now, tree / name).items():
        if upstream[text] <= 0:
            found.append(f"{now.job.arch}: {place}: {text}")
        upstream[text] -= 1
    return found


def _texts(done: Compiled, source: Path) -> dict[str, str]:
    """Return FILE:LINE -> text of the warnings in one file."""
    parts = (warning.partition(": ") for warning in done.warnings)
    return {place: text for place, _, text in parts if _is_below(place.rpartition(":")[0], [source])}


def unmatched(claims: Sequence[Claim], results: Iterable[Compiled]) -> list[str]:
    """Return the claims that speak of no compiled kernel: a renamed kernel must not lose its claim unseen."""
    compiled = [(k.name, k.arch) for done in results for k in done.every_kernel]
    return [
        f"claim '{claim.kernel}': no such kernel"
        for claim in claims
        if not any(claim.speaks_of(name, arch) for name, arch in compiled)
    ]


def _kernel_faults(
    kernel: KernelResources | CudaKernelResources, done: Compiled, claims: Sequence[Claim]
) -> list[str]:
    found = list(kernel.faults)
    if isinstance(kernel, CudaKernelResources):
        return found
    if kernel.wavefront_size != WAVE:
        found.append(f"waves of {kernel.wavefront_size} lanes, not {WAVE}")
    said = done.instructions.get(kernel.symbol, Instructions({}))
    for claim in claims:
        if claim.speaks_of(kernel.name, kernel.arch):
            found += _broken(claim, kernel, said)
    return found


def _broken(claim: Claim, kernel: KernelResources, said: Instructions) -> list[str]:
    """Return what a claim says that is not so; the suffix of an encoding makes no other instruction."""
    present = {re.sub(r"_(e32|e64|dpp|dpp8|e64_dpp|sdwa)$", "", mnemonic) for mnemonic in said.counts}
    found = [f"claimed to use {name}, does not" for name in claim.needs if name not in present]
    found += [f"claimed to do without {name}, uses it" for name in claim.forbids if name in present]
    if claim.lds_bytes is not None and kernel.lds_bytes != claim.lds_bytes:
        found.append(f"claimed {claim.lds_bytes} bytes of LDS, has {kernel.lds_bytes}")
    if claim.max_vgprs is not None and kernel.vgprs > claim.max_vgprs:
        found.append(f"claimed at most {claim.max_vgprs} VGPRs, has {kernel.vgprs}")
    return found


def _is_below(name: str, places: Sequence[Path]) -> bool:
    return any(Path(name).resolve().is_relative_to(place.resolve()) for place in places)
