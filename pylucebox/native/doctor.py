"""What a build needs of the machine it runs on, as checks. None of them stands in the way of building."""

import os
from pathlib import Path

from pylucebox.native.checks import Check
from pylucebox.native.detect import Detection
from pylucebox.native.targets import Target

KFD = Path("/dev/kfd")
RENDER_NODES = Path("/dev/dri")


def device_checks(
    target: Target, found: Detection, kfd: Path = KFD, nodes: Path = RENDER_NODES
) -> list[Check]:
    """Return the checks of the GPU that `target` runs on; empty for a CPU."""
    if not target.device_backend:
        return []
    fitting = [str(gpu) for gpu in found.gpus if gpu.arch == target.name]
    others = [str(gpu) for gpu in found.gpus if gpu.arch != target.name]
    seen = ", ".join(fitting) or (f"only {', '.join(others)}" if others else "none seen")
    remedy = "" if fitting else "; ".join(found.problems) or f"a {target.name} build runs elsewhere only"
    checks = [Check("GPU", seen, f"{target.name}, to run", True, remedy)]
    if target.device_backend == "hip":
        checks.append(_access_check(kfd, nodes))
    return checks


def _access_check(kfd: Path, nodes: Path) -> Check:
    devices = [kfd, *sorted(nodes.glob("render*"))]
    there = [path for path in devices if path.exists()]
    if kfd not in there:
        return Check(
            "GPU access", f"no {kfd}", "to run", True, "load the amdgpu driver, or pass it to the container"
        )
    closed = [str(path) for path in there if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        hint = "sudo usermod -aG render,video $USER, then log in again"
        return Check("GPU access", f"may not open {', '.join(closed)}", "to run", True, hint)
    return Check("GPU access", ", ".join(str(path) for path in there), "to run", True)
