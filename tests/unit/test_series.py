"""The patch series: headers, lint, and strict application."""

import subprocess
from pathlib import Path

import pytest
from small_upstream import FILES, HOOK, make_folder, make_layout

from pylucebox.core.errors import IntegrityError
from pylucebox.core.paths import Layout
from pylucebox.core.processes import Output
from pylucebox.source.series import Patch, apply_patch, check_series, read_series, series_digest


def test_the_committed_series_is_clean(layout: Layout) -> None:
    assert check_series(layout.patches_dir) == []


def test_headers_files_and_changed_lines_are_read(tmp_path: Path) -> None:
    patches = make_layout(tmp_path).patches_dir
    first, second = read_series(patches)
    assert (first.name, second.name) == ("0001-vendor-one-form.patch", "0002-small-register.patch")
    assert second.headers["Class"] == "hook"
    assert second.files == ("src/a.c", "src/old.c", "src/new.c")
    assert (first.changed_lines, second.changed_lines) == (4, 4)


def test_a_line_that_looks_like_a_header_inside_a_hunk_is_content(tmp_path: Path) -> None:
    path = tmp_path / "0001-a-b.patch"
    path.write_text("Description: x\n y\n---\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n---- a/x\n+++++ b/y\n z\n")
    patch = Patch.load(path)
    assert patch.files == ("f",) and patch.changed_lines == 2
    assert patch.headers == {"Description": "x\ny"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Class: hook\n", "", "header Class is missing or empty"),
        ("Description: register ours\n", "", "header Description is missing or empty"),
        ("Tests: none\n", "Tests:\n", "header Tests is missing or empty"),
        ("Class: hook", "Class: feature", "Class is 'feature', not hook or fix"),
        ("Inappropriate [ours]", "Inappropriate", "Upstream-Status 'Inappropriate'"),
        ("new file mode 100644", "old mode 100644", "renames, modes and binary"),
        ("Last-Update: 2026-12-01", "Last-Update: today", "Last-Update 'today'"),
        (
            "@@ -0,0 +1 @@\n+int fresh;\n",
            "@@ -0,0 +1,61 @@\n" + "+x\n" * 61,
            "a hook has at most 60",
        ),
    ],
)
def test_lint_finds(tmp_path: Path, old: str, new: str, problem: str) -> None:
    patches = make_layout(tmp_path).patches_dir
    assert check_series(patches) == []
    assert old in HOOK
    (patches / "0002-small-register.patch").write_text(HOOK.replace(old, new))
    (found,) = check_series(patches)
    assert found.startswith("0002-small-register.patch: ") and problem in found


def test_lint_compares_series_and_folder(tmp_path: Path) -> None:
    patches = make_layout(tmp_path).patches_dir
    (patches / "0003-stray-one.patch").write_text(HOOK)
    (patches / "Bad_Name.patch").write_text(HOOK)
    with (patches / "series").open("a") as series:
        series.write("0004-not-there.patch\nBad_Name.patch\n0002-small-register.patch\n")
    found = "\n".join(check_series(patches))
    for problem in (
        "series: 0004-not-there.patch is listed but not there",
        "0003-stray-one.patch: not listed in series",
        "series: 0002-small-register.patch is listed twice",
        "series: not in the order of the numbers",
        "Bad_Name.patch: the name is not NNNN-area-what.patch",
    ):
        assert problem in found


def test_lint_wants_named_tests_to_exist(tmp_path: Path) -> None:
    patches = make_layout(tmp_path).patches_dir
    (tmp_path / "tests").mkdir()
    assert check_series(patches) != []
    (tmp_path / "tests" / "test_it.py").write_text("")
    for name in ("0001-vendor-one-form.patch", "0002-small-register.patch"):
        text = (patches / name).read_text().replace("Tests: none", "Tests: tests/test_it.py")
        text = text.replace("Without: none", "Without: tests/test_it.py::test_one")
        (patches / name).write_text(text)
    assert check_series(patches) == [
        "0001-vendor-one-form.patch: Fails-Without names test_one, which tests/test_it.py does not have"
    ]
    (tmp_path / "tests" / "test_it.py").write_text("def test_one() -> None: ...\n")
    assert check_series(patches) == []


def test_lint_refuses_an_overlay_file_that_a_patch_names(tmp_path: Path) -> None:
    patches = make_layout(tmp_path).patches_dir
    (patches / "overlay" / "src" / "new.c").write_text("")
    assert check_series(patches) == ["overlay/src/new.c: also named by a patch"]


def test_the_digest_depends_on_order_and_content(tmp_path: Path) -> None:
    patches = make_layout(tmp_path).patches_dir
    first = series_digest(patches)
    (patches / "series").write_text("0002-small-register.patch\n0001-vendor-one-form.patch\n")
    assert series_digest(patches) != first
    (patches / "series").write_text(
        "0001-vendor-one-form.patch\n# other comment\n0002-small-register.patch\n"
    )
    assert series_digest(patches) == first
    (patches / "0002-small-register.patch").unlink()
    with pytest.raises(IntegrityError, match=r"0002.*: named in series but cannot be read: No such file"):
        series_digest(patches)


def test_a_patch_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    tree = make_folder(tmp_path / "tree", {**FILES, "src/a.c": "int a(void) {\n    return 3;\n}\n"})
    patch = read_series(make_layout(tmp_path / "home").patches_dir)[1]
    with pytest.raises(IntegrityError) as caught:
        apply_patch(patch, tree)
    assert caught.value.message.startswith(
        "0002-small-register.patch does not apply: patch failed: src/a.c:1"
    )
    assert not (tree / "src" / "new.c").exists() and (tree / "src" / "old.c").exists()
    assert list(tree.rglob("*.rej")) == []


def test_no_fuzz_is_allowed(tmp_path: Path) -> None:
    """A context line that differs is enough to refuse; `patch` would have taken it with fuzz."""
    tree = make_folder(tmp_path / "tree", {**FILES, "src/a.c": "int a(int n) {\n    return 1;\n}\n"})
    with pytest.raises(IntegrityError, match="does not apply"):
        apply_patch(read_series(make_layout(tmp_path / "home").patches_dir)[1], tree)


def ignored_folder(home: Path) -> Path:
    """A repository with an ignored folder in it, holding the small upstream."""
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    (home / ".gitignore").write_text("/tree/\n")
    return make_folder(home / "tree")


def test_plain_git_apply_in_an_ignored_folder_silently_does_nothing(tmp_path: Path) -> None:
    """Why apply_patch sets GIT_CEILING_DIRECTORIES. When this fails, git has changed."""
    tree = ignored_folder(tmp_path / "repository")
    patch = read_series(make_layout(tmp_path / "home").patches_dir)[1]
    done = subprocess.run(["git", "apply", str(patch.path)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0
    assert (tree / "src" / "a.c").read_text() == FILES["src/a.c"]


def test_apply_patch_works_in_an_ignored_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ignored_folder(tmp_path / "repository")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "repository" / ".git"))  # as inside a git hook
    apply_patch(read_series(make_layout(tmp_path / "home").patches_dir)[1], tree)
    assert "return 10" in (tree / "src" / "a.c").read_text()
    assert (tree / "src" / "new.c").exists() and not (tree / "src" / "old.c").exists()


def test_a_patch_that_git_passes_over_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ignored_folder(tmp_path / "repository")
    monkeypatch.setattr("pylucebox.source.series.processes.run", lambda *_, **__: Output(()))
    with pytest.raises(IntegrityError, match=r"git apply left src/a\.c unchanged"):
        apply_patch(read_series(make_layout(tmp_path / "home").patches_dir)[1], tree)
