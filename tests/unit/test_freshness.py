"""A build is current when the working tree would give it again, input for input."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_upstream import make_layout

from pylucebox.cli.freshness import is_current
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native import cmake
from pylucebox.native.targets import Target
from pylucebox.source.prepare import find_prepared, prepare

ARCHIVE = "small-1.0.tar.gz"


def test_build_is_current_until_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(tmp_path)
    folder = layout.build_dir("cpu")
    folder.mkdir(parents=True)
    receipt = BuildReceipt("a" * 64, "cpu", 7, "s", ("cpu",), "c++ 1.0", folder / "bin")
    asked: list[cmake.Source] = []
    natives: list[bool] = []

    def find_current(layout: Layout, target: Target, source: cmake.Source) -> BuildReceipt | None:
        asked.append(source)
        natives.append(target.native)
        return receipt

    monkeypatch.setattr(cmake, "find_current", find_current)
    assert not is_current(layout, receipt)  # nothing is prepared yet
    prepare(layout, archive=next(tmp_path.rglob(ARCHIVE)))
    assert is_current(layout, receipt)
    prepared = find_prepared(layout)
    assert prepared is not None
    assert (asked[0].id, asked[0].tree, asked[0].names) == (prepared.id, prepared.tree, prepared.names)
    assert not is_current(layout, BuildReceipt("b" * 64, "cpu", 7, "s", ("cpu",), "c++ 1.0", folder / "bin"))
    assert not is_current(layout, None)
    assert is_current(layout, replace(receipt, portable=True)) and natives[-1] is False and natives[0]
    overlay = next(p for p in (layout.patches_dir / "overlay").rglob("*") if p.is_file())
    overlay.write_text("changed\n", encoding="utf-8")
    assert not is_current(layout, receipt)
