"""The real source and the real CPU build: what the stand-ins of tests/unit cannot show."""

import os

from pylucebox.core import processes
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt, sha256_bytes
from pylucebox.native.targets import TARGETS
from pylucebox.source.lock import Lock
from pylucebox.source.prepare import find_prepared, patched_files
from pylucebox.source.series import read_series


def test_programs_of_a_real_build_find_their_libraries_beside_them(build: BuildReceipt) -> None:
    """RPATH is $ORIGIN, so a moved clone still runs."""
    for path in (build.server_path, build.library_path, build.quantize_path):
        out = processes.run(["readelf", "-d", path]).lines
        (rpath,) = [line for line in out if "RPATH" in line or "RUNPATH" in line]
        assert rpath.endswith("[$ORIGIN]"), path
    assert os.access(build.server_path, os.X_OK)


def test_the_committed_first_patch_removes_the_archives_deviation(
    build: BuildReceipt, layout: Layout
) -> None:
    """Both real forms: the one the archive carries, and upstream's, which must count as patched."""
    lock = Lock.load(layout.lock_path)
    (deviation,) = lock.deviations
    (patch,) = [p for p in read_series(layout.patches_dir) if p.name == deviation.patch]
    found = (layout.pristine_dir / deviation.path).read_bytes()
    assert sha256_bytes(found) in deviation.forms
    final = patched_files(lock, [patch], layout.pristine_dir)[deviation.path]
    assert final is not None and sha256_bytes(final) == deviation.result
    assert patched_files(lock, [patch], layout.prepared_dir)[deviation.path] == final


def test_every_option_of_ours_exists_upstream(build: BuildReceipt, layout: Layout) -> None:
    """A misspelt -D would be ignored by cmake."""
    texts = [p.read_text(errors="replace") for p in layout.prepared_dir.rglob("CMakeLists.txt")]
    texts += [p.read_text() for p in layout.prepared_dir.rglob("*.cmake")]
    names = [n for t in TARGETS.values() for n in t.cmake_defines(1, "b1", "x")]
    unknown = [n for n in names if not n.startswith("CMAKE_") and not any(n in text for text in texts)]
    assert unknown == []


def test_the_build_is_made_from_this_series(build: BuildReceipt, layout: Layout) -> None:
    prepared = find_prepared(layout)
    assert prepared is not None and build.series_sha256 == prepared.series_sha256


def test_our_git_does_not_leak_into_the_version(build: BuildReceipt) -> None:
    lines = processes.run([build.server_path, "--version"]).lines
    assert any("build 11549, commit b11549" in line for line in lines), lines


def test_every_fix_applies_alone_to_the_pristine_tree(build: BuildReceipt, layout: Layout) -> None:
    """So that it can be offered upstream without the rest of the series."""
    lock = Lock.load(layout.lock_path)
    for patch in read_series(layout.patches_dir):
        if patch.headers.get("Class") == "fix":
            assert set(patched_files(lock, [patch], layout.pristine_dir)) == set(patch.files)
