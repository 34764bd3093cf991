"""Looks in seconds whether this machine can build a target, before anything is fetched or made."""

from pylucebox.core.paths import Layout
from pylucebox.native.checks import SOURCE_BYTES, Check, host_checks, space_checks
from pylucebox.native.cuda import cuda_checks, find_cuda
from pylucebox.native.places import Places, this_machine
from pylucebox.native.rocm import find_rocm, rocm_checks
from pylucebox.native.targets import Target
from pylucebox.native.toolchain import Kit


def find_kit(target: Target, places: Places | None = None) -> Kit | None:
    """Return the CUDA toolkit or ROCm to build `target` with; None for a CPU, and where there is none.

    Starts nothing.
    """
    if target.device_backend == "cuda":
        return find_cuda(places or this_machine())
    if target.device_backend == "hip":
        return find_rocm(places or this_machine())
    return None


def preflight(target: Target, layout: Layout, places: Places | None = None) -> list[Check]:
    """Return every check that a build of `target` depends on. Writes nothing but files it removes again."""
    where = places or this_machine()
    checks = host_checks()
    if target.device_backend == "cuda":
        checks += cuda_checks(target, where)
    elif target.device_backend == "hip":
        checks += rocm_checks(target, where)
    needed = target.disk_bytes + (0 if layout.prepared_dir.is_dir() else SOURCE_BYTES)
    if (layout.build_dir(target.name) / "receipt.json").is_file():
        needed //= 4  # only what changed is made anew
    return [*checks, *space_checks(layout.build_dir(target.name), needed)]
