"""Whether a build is the one the working tree would give: joins stages that may not know each other."""

from dataclasses import fields

from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native import cmake
from pylucebox.native.targets import TARGETS, find_target
from pylucebox.source.prepare import find_prepared


def is_current(layout: Layout, receipt: BuildReceipt | None) -> bool:
    """Return whether `receipt` belongs to a finished build of exactly the sources there are now."""
    if receipt is None or receipt.target not in TARGETS:
        return False
    prepared = find_prepared(layout)
    if prepared is None:
        return False
    source = cmake.Source(**{f.name: getattr(prepared, f.name) for f in fields(cmake.Source)})
    target = find_target(receipt.target, portable=receipt.portable)
    current = cmake.find_current(layout, target, source)
    return current is not None and current.id == receipt.id
