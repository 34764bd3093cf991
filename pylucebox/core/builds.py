"""Finds finished builds, for those who run or load one and know nothing of how it was made."""

import os
from pathlib import Path

from pylucebox.core.errors import IntegrityError, MissingError, RequestError, did_you_mean
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt, read_receipt, write_receipt

BINARIES = "binaries.json"  # size and time of every file in bin/, as the build left it


def record_binaries(build_dir: Path) -> None:
    """Remember what the build made, so that a file removed or replaced later is noticed."""
    folder = build_dir / "bin"
    write_receipt(build_dir / BINARIES, {path.name: _stamp(path) for path in folder.iterdir()})


def altered_binaries(build_dir: Path) -> list[Path] | None:
    """Return the files in bin/ that are not as the build left them; None when that is not recorded."""
    recorded = read_receipt(build_dir / BINARIES)
    if recorded is None:
        return None
    return [path for name in recorded if _stamp(path := build_dir / "bin" / name) != recorded[name]]


def _stamp(path: Path) -> str:
    try:
        info = path.lstat()
        return f"-> {path.readlink()}" if path.is_symlink() else f"{info.st_size} {info.st_mtime_ns}"
    except OSError:
        return "missing"


def list_builds(layout: Layout) -> list[BuildReceipt]:
    """Return all finished builds, by target name."""
    if not layout.build_root.is_dir():
        return []
    found = [BuildReceipt.load(folder) for folder in sorted(layout.build_root.iterdir()) if folder.is_dir()]
    return [receipt for receipt in found if receipt]


def find_build(layout: Layout, target: str | None = None) -> BuildReceipt:
    """Return the finished build of `target`, else of LUCEBOX_TARGET, else the only one there is.

    Raises MissingError when there is none, RequestError when several could be meant, IntegrityError when its
    binaries are not those that its receipt speaks of.
    """
    name = target or os.environ.get("LUCEBOX_TARGET")
    builds = {receipt.target: receipt for receipt in list_builds(layout)}
    if name:
        if name not in builds:
            where = "" if target else "LUCEBOX_TARGET: "
            raise MissingError(
                f"{where}no finished build of target '{name}'{did_you_mean(name, list(builds))}",
                hint=f"lucebox build --target {name}",
            )
        return _whole(layout, builds[name])
    if not builds:
        raise MissingError("nothing is built yet", hint="lucebox build")
    if len(builds) > 1:
        raise RequestError(
            f"several builds: {', '.join(builds)}", hint="choose one with --target, or set LUCEBOX_TARGET"
        )
    return _whole(layout, next(iter(builds.values())))


def _whole(layout: Layout, receipt: BuildReceipt) -> BuildReceipt:
    altered = altered_binaries(layout.build_dir(receipt.target))
    if altered:
        raise IntegrityError(
            f"{altered[0]}: {'changed' if altered[0].exists() else 'removed'} since the build",
            hint=receipt.build_command,
        )
    return receipt
