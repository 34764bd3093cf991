"""Finds finished builds, for those who run or load one and know nothing of how it was made."""

import os

from pylucebox.core.errors import MissingError, RequestError, did_you_mean
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt


def list_builds(layout: Layout) -> list[BuildReceipt]:
    """Return all finished builds, by target name."""
    if not layout.build_root.is_dir():
        return []
    found = [BuildReceipt.load(folder) for folder in sorted(layout.build_root.iterdir()) if folder.is_dir()]
    return [receipt for receipt in found if receipt]


def find_build(layout: Layout, target: str | None = None) -> BuildReceipt:
    """Return the finished build of `target`, else of LUCEBOX_TARGET, else the only one there is.

    Raises MissingError when there is none, RequestError when several could be meant.
    """
    name = target or os.environ.get("LUCEBOX_TARGET")
    builds = {receipt.target: receipt for receipt in list_builds(layout)}
    if name:
        if name not in builds:
            raise MissingError(
                f"no finished build of target '{name}'{did_you_mean(name, list(builds))}",
                hint=f"lucebox build --target {name}",
            )
        return builds[name]
    if not builds:
        raise MissingError("nothing is built yet", hint="lucebox build")
    if len(builds) > 1:
        raise RequestError(
            f"several builds: {', '.join(builds)}", hint="choose one with --target, or set LUCEBOX_TARGET"
        )
    return next(iter(builds.values()))
