"""Archive to pristine to prepared: what is verified, what is written, and what is left alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_upstream import FILES, GUARDED, PLAIN, make_archive, make_folder, make_layout, moved, write_lock

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, MissingError
from pylucebox.core.paths import Layout
from pylucebox.source.lock import Lock
from pylucebox.source.prepare import Prepared, find_prepared, patched_files, prepare
from pylucebox.source.series import read_series
from pylucebox.source.trees import walk_files


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def small(home: Path) -> Layout:
    return make_layout(home)


def prepare_offline(layout: Layout) -> Prepared:
    return prepare(layout, archive=layout.vendor_dir.parent / "small-1.0.tar.gz")


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file but the lock files, which are opened on each use."""
    return {
        p: ((folder / p).lstat().st_ino, (folder / p).lstat().st_mtime_ns)
        for p in walk_files(folder)
        if not p.endswith(".lock")
    }


def test_the_prepared_tree_is_pristine_plus_series_plus_overlay(small: Layout) -> None:
    prepared = prepare_offline(small)
    tree = small.prepared_dir
    assert sorted(walk_files(small.pristine_dir)) == sorted(FILES)
    assert sorted(walk_files(tree)) == [
        "CMakeLists.txt",
        "src/a.c",
        "src/b.c",
        "src/new.c",
        "src/ours.c",
        "vendor/call.h",
    ]
    assert "return 10" in (tree / "src/a.c").read_text()
    assert (tree / "vendor/call.h").read_text() == PLAIN
    assert (prepared.patches, prepared.overlay_files, prepared.upstream_build) == (2, 1, 7)
    assert (small.pristine_dir / "src/a.c").read_text() == FILES["src/a.c"]


def test_both_forms_of_the_deviation_give_one_tree(tmp_path: Path) -> None:
    ids, texts = set(), set()
    for name, form in (("archive", GUARDED), ("tag", PLAIN)):
        layout = make_layout(tmp_path / name)
        folder = make_folder(tmp_path / f"{name}-folder", {**FILES, "vendor/call.h": form})
        prepared = prepare(layout, source=folder)
        assert (layout.pristine_dir / "vendor/call.h").read_text() == form
        ids.add(prepared.id)
        texts.add((layout.prepared_dir / "vendor/call.h").read_text())
    assert len(ids) == 1 and texts == {PLAIN}


def test_a_deviation_in_its_final_form_counts_as_patched(small: Layout, tmp_path: Path) -> None:
    lock, patches = Lock.load(small.lock_path), read_series(small.patches_dir)
    for name, form in (("guarded", GUARDED), ("plain", PLAIN)):
        tree = make_folder(tmp_path / name, {**FILES, "vendor/call.h": form})
        assert patched_files(lock, patches[:1], tree) == {"vendor/call.h": PLAIN.encode()}


def test_an_unknown_form_is_refused(small: Layout, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder", {**FILES, "vendor/call.h": "int third;\n"})
    with pytest.raises(IntegrityError, match=r"vendor/call\.h: not the file of b7"):
        prepare(small, source=folder)
    assert not small.pristine_dir.exists() and not small.prepared_dir.exists()
    assert not (small.work_dir / "pristine.partial").exists()


def test_a_second_run_starts_nothing_and_writes_nothing(
    small: Layout, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_offline(small)
    before = snapshot(home)

    def no_process(*words: object, **_: object) -> None:
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(processes, "run", no_process)
    second = prepare(small)
    assert second.id == first.id and second.changed_files == 0 and second.seconds == {}
    assert snapshot(home) == before
    prepare_offline(small)  # an archive given by hand is verified, but unpacked no second time
    assert snapshot(home) == before


def change_patch(layout: Layout) -> None:
    path = layout.patches_dir / "0002-small-register.patch"
    path.write_text(path.read_text().replace("return 10", "return 11"))


def add_overlay(layout: Layout) -> None:
    (layout.patches_dir / "overlay/src/more.c").write_text("int more;\n")


def remove_overlay(layout: Layout) -> None:
    (layout.patches_dir / "overlay/src/ours.c").unlink()


def edit_prepared(layout: Layout) -> None:
    (layout.prepared_dir / "src/b.c").write_text("int edited;\n")


def leave_stray(layout: Layout) -> None:
    (layout.prepared_dir / "src/deep").mkdir()
    (layout.prepared_dir / "src/deep/stray.c").write_text("int stray;\n")


def drop_patch(layout: Layout) -> None:
    (layout.patches_dir / "series").write_text("0001-vendor-one-form.patch\n")


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (change_patch, {"src/a.c"}),
        (add_overlay, {"src/more.c"}),
        (remove_overlay, set()),
        (edit_prepared, {"src/b.c"}),
        (leave_stray, set()),
        (drop_patch, {"src/a.c", "src/old.c"}),
    ],
)
def test_only_files_that_differ_are_written(small: Layout, change: object, written: set[str]) -> None:
    prepare_offline(small)
    before = snapshot(small.prepared_dir)
    assert callable(change)
    change(small)
    assert find_prepared(small) is None
    prepare(small)
    after = snapshot(small.prepared_dir)
    assert {path for path in after if after[path] != before.get(path)} == written
    fresh = make_layout(small.vendor_dir.parent.parent / "fresh")
    for name in ("series", "0002-small-register.patch"):
        (fresh.patches_dir / name).write_bytes((small.patches_dir / name).read_bytes())
    for path in walk_files(fresh.patches_dir / "overlay"):
        (fresh.patches_dir / "overlay" / path).unlink()
    for path in walk_files(small.patches_dir / "overlay"):
        (fresh.patches_dir / "overlay" / path).write_bytes(
            (small.patches_dir / "overlay" / path).read_bytes()
        )
    prepare_offline(fresh)
    assert contents(small.prepared_dir) == contents(fresh.prepared_dir)


def contents(tree: Path) -> dict[str, bytes]:
    return {path: (tree / path).read_bytes() for path in walk_files(tree)}


def test_a_rewritten_file_is_newer_than_before(small: Layout) -> None:
    """Ninja compares times: a file that goes back to its pristine content must not look old."""
    prepare_offline(small)
    os.utime(small.pristine_dir / "src/a.c", (1, 1))
    old = (small.prepared_dir / "src/a.c").stat().st_mtime_ns
    drop_patch(small)
    prepare(small)
    assert (small.prepared_dir / "src/a.c").stat().st_mtime_ns > old


def test_editing_an_overlay_file_changes_the_identity_but_writes_no_file(small: Layout) -> None:
    first = prepare_offline(small)
    before = snapshot(small.prepared_dir)
    (small.patches_dir / "overlay/src/ours.c").write_text("int ours = 2;\n")
    second = prepare(small)
    assert second.id != first.id and snapshot(small.prepared_dir) == before
    assert (small.prepared_dir / "src/ours.c").read_text() == "int ours = 2;\n"


def test_a_failing_patch_leaves_the_tree_as_it_was(small: Layout) -> None:
    prepare_offline(small)
    before = contents(small.prepared_dir)
    path = small.patches_dir / "0002-small-register.patch"
    path.write_text(path.read_text().replace("    return 1;", "    return 5;"))
    with pytest.raises(IntegrityError, match=r"0002-small-register\.patch does not apply"):
        prepare(small)
    assert contents(small.prepared_dir) == before


def test_an_overlay_file_may_not_hide_an_upstream_file(small: Layout) -> None:
    (small.patches_dir / "overlay/src/b.c").write_text("int mine;\n")
    with pytest.raises(IntegrityError, match=r"overlay/src/b\.c: upstream has this file too"):
        prepare_offline(small)


def test_a_checkout_links_relatively_and_can_be_moved(small: Layout, home: Path, tmp_path: Path) -> None:
    first = prepare_offline(small)
    link = small.prepared_dir / "src/ours.c"
    assert link.is_symlink() and not link.readlink().is_absolute()
    there = moved(small, home, tmp_path / "elsewhere")
    found = find_prepared(there)
    assert found is not None and found.id == first.id
    assert (there.prepared_dir / "src/ours.c").read_text() == "int ours;\n"


def test_an_installed_package_copies(home: Path) -> None:
    layout = make_layout(home, is_checkout=False)
    copied = prepare_offline(layout)
    assert not (layout.prepared_dir / "src/ours.c").is_symlink()
    linked = prepare_offline(make_layout(home.parent / "linked"))
    assert copied.id == linked.id
    assert find_prepared(layout) is not None


def test_a_tree_whose_times_changed_is_verified_and_kept(
    small: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_offline(small)
    for path in walk_files(small.pristine_dir):
        os.utime(small.pristine_dir / path, (5, 5))
    monkeypatch.setattr(
        "pylucebox.source.pristine.ensure_archive", lambda *_: pytest.fail("asked the network")
    )
    inode = (small.pristine_dir / "src/a.c").stat().st_ino
    assert prepare(small).changed_files == 0
    assert (small.pristine_dir / "src/a.c").stat().st_ino == inode


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked: list[str] = []

    def refuse(lock: Lock, *_: object) -> None:
        asked.append(lock.filename)
        raise MissingError("asked the network")

    monkeypatch.setattr("pylucebox.source.pristine.ensure_archive", refuse)
    yield asked


def test_a_damaged_pristine_tree_is_never_used(small: Layout, no_network: list[str]) -> None:
    prepare_offline(small)
    (small.pristine_dir / "src/a.c").write_text("int evil;\n")
    with pytest.raises(MissingError, match="asked the network"):
        prepare(small)
    prepare_offline(small)
    assert (small.pristine_dir / "src/a.c").read_text() == FILES["src/a.c"]


def test_a_wrong_archive_is_refused_even_when_nothing_needs_it(small: Layout, home: Path) -> None:
    prepare_offline(small)
    archive = home / "small-1.0.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match="truncated"):
        prepare(small, archive=archive)


def test_archive_and_manifest_must_agree(small: Layout, home: Path) -> None:
    archive = home / "small-1.0.tar.gz"
    for files, message in (
        ({**FILES, "src/b.c": "int other;\n"}, r"src/b\.c: not the file of b7"),
        ({k: v for k, v in FILES.items() if k != "src/b.c"}, r"src/b\.c: missing from the source \(1 of 5"),
    ):
        make_archive(archive, files)
        write_lock(small.lock_path, archive)
        with pytest.raises(IntegrityError, match=message):
            prepare(small, archive=archive)
        assert not small.pristine_dir.exists() and not (small.work_dir / "pristine.partial").exists()


def test_nothing_outside_the_manifest_is_unpacked(small: Layout, tmp_path: Path) -> None:
    prepare_offline(small)
    assert not list(tmp_path.rglob("escape.txt")) and not list(tmp_path.rglob("readme.md"))


def test_a_folder_that_lacks_a_file_is_refused(small: Layout, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder")
    (folder / "src/b.c").unlink()
    with pytest.raises(IntegrityError, match=r"src/b\.c: missing from the source"):
        prepare(small, source=folder)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_made(
    small: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "b.c":
            raise OSError(28, "No space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MissingError, match="cannot be written: No space left on device"):
        prepare_offline(small)
    assert not small.pristine_dir.exists() and not (small.work_dir / "pristine.partial").exists()
