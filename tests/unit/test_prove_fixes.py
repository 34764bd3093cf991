"""The proof that fixes are needed: what is built and tested, and that the series is put back."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from small_upstream import make_layout
from tool_modules import load_tool

from pylucebox.core.paths import Layout
from pylucebox.source.series import Patch, read_series

proof = load_tool("prove_fixes")
NAME = "0001-vendor-one-form.patch"


@pytest.fixture
def small(tmp_path: Path) -> tuple[Layout, list[Patch]]:
    layout = make_layout(tmp_path / "home")
    return layout, [p for p in read_series(layout.patches_dir) if p.headers["Class"] == "fix"]


@pytest.mark.parametrize(
    ("statuses", "problems"),
    [
        ((0, 1, 0, 0), []),
        ((0, 0, 0, 0), [f"{NAME}: without it none passes"]),
        ((0, 4, 0, 0), [f"{NAME}: without it none cannot be run (exit 4)"]),
        ((5, 0, 0), [f"{NAME}: nothing can be built without it"]),
        ((0, 1, 0, 1), ["with the whole series: the build or one of these tests fails"]),
    ],
)
def test_a_fix_must_fail_its_test_when_left_out(
    small: tuple[Layout, list[Patch]], statuses: tuple[int, ...], problems: list[str]
) -> None:
    layout, fixes = small
    series, left, seen = layout.patches_dir / "series", list(statuses), []
    whole = series.read_text()

    def run(argv: Sequence[str]) -> int:
        seen.append(NAME in series.read_text())
        return left.pop(0)

    assert proof.prove(layout, fixes, run) == problems
    assert series.read_text() == whole and left == []
    assert seen[0] is False and seen[-1] is True


def test_the_series_is_put_back_when_interrupted(small: tuple[Layout, list[Patch]]) -> None:
    layout, fixes = small
    whole = (layout.patches_dir / "series").read_text()

    def run(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        proof.prove(layout, fixes, run)
    assert (layout.patches_dir / "series").read_text() == whole


def test_only_the_named_line_is_taken_out(small: tuple[Layout, list[Patch]]) -> None:
    layout, (fix,) = small
    text = (layout.patches_dir / "series").read_text()
    assert proof.without(text, fix) == "# one form\n\n0002-small-register.patch\n"
