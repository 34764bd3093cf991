"""Tells what was found on this machine, for the commands that choose a target by it."""

from pylucebox.cli.console import Console
from pylucebox.native.checks import Check, unneeded
from pylucebox.native.detect import Detection


def show_detection(console: Console, found: Detection) -> None:
    """Print the chosen targets and why, and warn of what a user may have expected instead."""
    console.stage("target", str(found))
    for problem in found.problems:
        console.warn(f"{problem}: a GPU may have been missed; name one with --target")
    for gpu in found.unserved:
        console.warn(f"there is no target for {gpu}")


def show_toolkit(console: Console, checks: list[Check]) -> None:
    """Print which CUDA toolkit or ROCm was chosen, and what it lacks that this source does not need."""
    for check in checks:
        if check.name in ("nvcc", "ROCm"):
            console.stage("toolkit", check.found)
    for check in unneeded(checks):
        console.note(f"{'':<10} {check.name} {check.found}, and not needed to build: {check.remedy}")
