"""The maintainers' loop on patches: describe, check, checkout, refresh."""

import shutil
from pathlib import Path

import pytest
from conftest import lacking
from small_upstream import FILES, HOOK, make_folder, make_layout

from pylucebox.core.errors import RequestError
from pylucebox.core.paths import Layout
from pylucebox.source.lock import Lock
from pylucebox.source.patches import check_patches, describe_series, find_patch
from pylucebox.source.refresh import checkout_patch, refresh_patch, renumber_patches
from pylucebox.source.series import read_series, series_names

TODAY = "2027-01-02"
FIX = "0003-small-repair.patch"
FIX_TEXT = """Description: count from one
Class: fix
Origin: vendor
Upstream-Status: Pending
Tests: none
Fails-Without: none: it counts from nought
Last-Update: 2026-12-01
---

--- a/src/b.c
+++ b/src/b.c
@@ -2,2 +2,2 @@
-    return 2;
+    return 3;
 }
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[Layout, Path]:
    """A series of three patches and the pristine tree below it."""
    layout = make_layout(tmp_path / "home")
    (layout.patches_dir / FIX).write_text(FIX_TEXT)
    with (layout.patches_dir / "series").open("a") as series:
        series.write(FIX + "\n")
    return layout, make_folder(tmp_path / "pristine")


def patch_bytes(layout: Layout) -> dict[str, bytes]:
    return {name: (layout.patches_dir / name).read_bytes() for name in series_names(layout.patches_dir)}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_describe_tells_what_the_headers_say(small: tuple[Layout, Path]) -> None:
    first, hook, fix = describe_series(small[0].patches_dir)
    assert (first.number, first.kind, first.changed_lines) == ("0001", "fix", 4)
    assert hook.files == ("src/a.c", "src/old.c", "src/new.c") and hook.proof == ""
    assert (fix.status, fix.proof, fix.tests) == ("Pending", "none", ("none",))


def test_patches_are_found_by_name_and_number(small: tuple[Layout, Path]) -> None:
    patches = small[0].patches_dir
    for name in (FIX, "0003-small-repair", "0003"):
        assert find_patch(patches, name).name == FIX
    with pytest.raises(
        RequestError, match=r"called '0003-small-repare' \(did you mean 0003-small-repair\.patch\?\)"
    ):
        find_patch(patches, "0003-small-repare")
    with pytest.raises(RequestError, match="no patch of the series is called '0009'"):
        find_patch(patches, "0009")


def test_a_good_series_passes(small: tuple[Layout, Path]) -> None:
    found = check_patches(*small)
    assert (found.problems, found.notes, found.applied, found.alone) == ((), (), 3, 2)
    assert check_patches(small[0], None).applied is None


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Fails-Without: none: it counts from nought\n", "", f"{FIX}: header Fails-Without is missing"),
        ("Fails-Without: none", "Fails-Without: tests/x.py::t", "is no test that Tests names"),
        ("Status: Pending", "Status: Inappropriate [ours]", f"{FIX}: a fix is offered upstream"),
        ("-    return 2;", "-    return 4;", f"{FIX} does not apply: patch failed: src/b.c:2"),
    ],
)
def test_check_finds(small: tuple[Layout, Path], old: str, new: str, problem: str) -> None:
    edit(small[0].patches_dir / FIX, old, new)
    assert any(problem in found for found in check_patches(*small).problems)


def test_a_fix_that_leans_on_another_patch_is_found(small: tuple[Layout, Path]) -> None:
    """It applies in its order, on top of the hook, and not alone."""
    layout, pristine = small
    text = FIX_TEXT.replace("src/b.c", "src/a.c").replace("return 2", "return 10")
    (layout.patches_dir / FIX).write_text(text)
    found = check_patches(layout, pristine)
    assert found.applied == 3 and found.alone == 1
    assert len(found.problems) == 1 and "alone on the pristine source, " + FIX in found.problems[0]


def test_every_problem_is_told_and_nothing_is_written(small: tuple[Layout, Path]) -> None:
    layout, pristine = small
    edit(pristine / "src/a.c", "return 1;", "return 7;")
    edit(pristine / "src/b.c", "return 2;", "return 8;")
    before = patch_bytes(layout)
    found = check_patches(layout, pristine)
    assert found.applied == 1 and len(found.problems) == 3  # hook, fix in order, fix alone
    assert patch_bytes(layout) == before


@pytest.mark.parametrize("name", ["0001", "0002", "0003"])
def test_refresh_of_an_untouched_checkout_changes_no_byte(
    small: tuple[Layout, Path], tmp_path: Path, name: str
) -> None:
    layout, pristine = small
    patch, before = find_patch(layout.patches_dir, name), patch_bytes(layout)
    made = checkout_patch(layout, patch, pristine, tmp_path / "tree")
    assert made.rejects == ()
    assert not refresh_patch(layout, patch, pristine, tmp_path / "tree", TODAY).changed
    assert patch_bytes(layout) == before
    assert [r.changed for r in renumber_patches(layout, [*before], pristine, TODAY)] == [False] * 3
    assert patch_bytes(layout) == before


def test_the_committed_patches_survive_a_round_trip(layout: Layout, tmp_path: Path) -> None:
    """With the real source where it is here: no line number is off, no byte would change."""
    if not layout.pristine_dir.is_dir():
        lacking("native", "the pristine source (`lucebox patches check` fetches it)")
    copy = make_layout(tmp_path / "home")
    shutil.rmtree(copy.patches_dir)
    shutil.copytree(layout.patches_dir, copy.patches_dir, ignore=shutil.ignore_patterns("overlay"))
    shutil.copy(layout.lock_path, copy.lock_path)
    before = patch_bytes(copy)
    found = renumber_patches(copy, [*before], layout.pristine_dir, TODAY)
    assert [r.name for r in found if r.changed] == [] and patch_bytes(copy) == before


def test_an_edit_becomes_the_patch(small: tuple[Layout, Path], tmp_path: Path) -> None:
    layout, pristine = small
    patch, tree = find_patch(layout.patches_dir, "0002"), tmp_path / "tree"
    checkout_patch(layout, patch, pristine, tree)
    edit(tree / "src/a.c", "return 10;", "return 11;")
    edit(tree / "src/new.c", "int fresh;\n", "int fresh;\nint more;\n")
    found = refresh_patch(layout, patch, pristine, tree, TODAY)
    assert (found.changed, found.changed_lines, found.later) == (True, 5, ())
    text = patch.path.read_text()
    assert text.startswith(HOOK[: HOOK.index("Last-Update")] + f"Last-Update: {TODAY}\n---\n")
    assert "+    return 11;" in text and "+int more;" in text and "index " not in text
    assert check_patches(layout, pristine).problems == ()
    assert not refresh_patch(layout, find_patch(layout.patches_dir, "0002"), pristine, tree, TODAY).changed


def test_a_copy_of_the_prepared_tree_serves_too(small: tuple[Layout, Path], tmp_path: Path) -> None:
    """The later patches are taken off before the difference is made."""
    layout, pristine = small
    tree = tmp_path / "prepared"
    checkout_patch(layout, find_patch(layout.patches_dir, "0003"), pristine, tree)
    (tree / ".lucebox-checkout.json").unlink()
    (tree / "src/ours.c").write_text("int ours;\n")  # of the overlay
    edit(tree / "src/a.c", "return 10;", "return 12;")
    before = patch_bytes(layout)
    assert refresh_patch(layout, find_patch(layout.patches_dir, "0002"), pristine, tree, TODAY).changed
    assert "return 3" not in (layout.patches_dir / "0002-small-register.patch").read_text()
    assert patch_bytes(layout)[FIX] == before[FIX]
    edit(tree / "src/b.c", "return 3;", "return 4;")
    with pytest.raises(RequestError, match=r"0003-small-repair\.patch, which comes later"):
        refresh_patch(layout, find_patch(layout.patches_dir, "0002"), pristine, tree, TODAY)


@pytest.mark.parametrize("path", ["src/b.c", "CMakeLists.txt", "src/added.c"])
def test_changes_elsewhere_are_refused_unless_told(
    small: tuple[Layout, Path], tmp_path: Path, path: str
) -> None:
    layout, pristine = small
    patch, tree, before = find_patch(layout.patches_dir, "0002"), tmp_path / "tree", patch_bytes(layout)
    checkout_patch(layout, patch, pristine, tree)
    with (tree / path).open("a") as file:
        file.write("// more\n")
    with pytest.raises(RequestError, match=f"{path} changed too"):
        refresh_patch(layout, patch, pristine, tree, TODAY)
    assert patch_bytes(layout) == before
    found = refresh_patch(layout, patch, pristine, tree, TODAY, extend=True)
    assert set(found.files) == {"src/a.c", "src/old.c", "src/new.c", path}
    assert check_patches(layout, pristine).problems == ()


def test_line_numbers_that_moved_are_renewed(small: tuple[Layout, Path]) -> None:
    layout, pristine = small
    (pristine / "src/b.c").write_text("// one\n// two\n" + FILES["src/b.c"])
    before = patch_bytes(layout)
    assert check_patches(layout, pristine).notes == (
        f"{FIX}: line numbers of 1 hunks are off; refresh renews them",
    )
    found = renumber_patches(layout, list(before), pristine, TODAY)
    assert [r.changed for r in found] == [False, False, True]
    text = (layout.patches_dir / FIX).read_text()
    assert "@@ -3,3 +3,3 @@" in text
    assert check_patches(layout, pristine).notes == ()


def test_rejects_are_left_to_be_worked_in(small: tuple[Layout, Path], tmp_path: Path) -> None:
    """The way out after a bump: the patch no longer fits, its hunk lies beside the file."""
    layout, pristine = small
    edit(pristine / "src/b.c", "return 2;", "return 2 + 0;")
    patch, tree = find_patch(layout.patches_dir, FIX), tmp_path / "tree"
    assert checkout_patch(layout, patch, pristine, tree).rejects == ("src/b.c.rej",)
    edit(tree / "src/b.c", "return 2 + 0;", "return 3;")
    with pytest.raises(RequestError, match=r"src/b\.c\.rej: left over"):
        refresh_patch(layout, patch, pristine, tree, TODAY)
    (tree / "src/b.c.rej").unlink()
    assert refresh_patch(layout, patch, pristine, tree, TODAY).changed
    assert check_patches(layout, pristine).problems == ()


def test_later_patches_that_break_are_named(small: tuple[Layout, Path], tmp_path: Path) -> None:
    layout, pristine = small
    patch, tree = find_patch(layout.patches_dir, "0002"), tmp_path / "tree"
    checkout_patch(layout, patch, pristine, tree)
    edit(tree / "src/b.c", "return 2;", "return 5;")
    found = refresh_patch(layout, patch, pristine, tree, TODAY, extend=True)
    assert len(found.later) == 1 and found.later[0].startswith(f"{FIX} does not apply")


def test_what_cannot_be_meant_is_refused(small: tuple[Layout, Path], tmp_path: Path) -> None:
    layout, pristine = small
    hook, fix = find_patch(layout.patches_dir, "0002"), find_patch(layout.patches_dir, "0003")
    tree, before = tmp_path / "tree", patch_bytes(layout)
    checkout_patch(layout, fix, pristine, tree)
    for patch, edited, words in (
        (hook, tree, "a checkout of 0003-small-repair.patch"),
        (fix, tmp_path / "none", "no such folder"),
    ):
        with pytest.raises(RequestError, match=words):
            refresh_patch(layout, patch, pristine, edited, TODAY)
    with pytest.raises(RequestError, match="exists already"):
        checkout_patch(layout, fix, pristine, tree)
    edit(tree / "src/b.c", "return 3;", "return 2;")
    with pytest.raises(RequestError, match="nothing of it is left"):
        refresh_patch(layout, fix, pristine, tree, TODAY)
    assert patch_bytes(layout) == before and not list(tmp_path.glob("*.partial"))


def test_every_deviation_has_its_patch_in_the_series(layout: Layout) -> None:
    names = [p.name for p in read_series(layout.patches_dir)]
    assert all(d.patch in names for d in Lock.load(layout.lock_path).deviations)
