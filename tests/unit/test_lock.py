"""The lock and the manifest: what is refused, and with which words."""

from pathlib import Path

import pytest
from small_upstream import make_layout, write_lock

from pylucebox.core.errors import IntegrityError
from pylucebox.core.paths import Layout
from pylucebox.source.lock import Lock, Manifest, accepted_hashes, verify_archive


def test_the_committed_lock_pins_what_the_archive_carries(layout: Layout) -> None:
    lock, manifest = Lock.load(layout.lock_path), Manifest.load(layout.manifest_path)
    assert (lock.build, lock.tag, lock.licence) == (11549, "b11549", "MIT")
    assert lock.filename == f"{lock.name}-{lock.version}.tar.gz"
    (deviation,) = lock.deviations
    assert deviation.result in deviation.forms and len(deviation.forms) == 2
    assert manifest.files[deviation.path] in deviation.forms
    assert len(accepted_hashes(lock, manifest, deviation.path)) == 2
    assert len(accepted_hashes(lock, manifest, "CMakeLists.txt")) == 1
    assert "tools/server/server.cpp" in manifest.files and "ggml/src/ggml-cuda/mmvq.cu" in manifest.files


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("build = 7", "build = 'x'", "is not a count"),
        ('filename = "small', 'filename = "../small', "not a plain relative path"),
        ('root = "thirdparty/small"', 'root = "/etc"', "not a plain relative path"),
        ("[upstream]", "[other]", "'upstream'"),
        ("size_bytes = ", "size = ", "'size_bytes'"),
        ("[archive]", "[archive", "Expected"),
        ('sha256 = "', 'sha256 = "zz', "is not a sha256"),
    ],
)
def test_a_malformed_lock_names_the_field(tmp_path: Path, old: str, new: str, word: str) -> None:
    path = make_layout(tmp_path).lock_path
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(IntegrityError, match=word) as caught:
        Lock.load(path)
    assert str(path) in caught.value.message and caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{'0' * 64}  ../x\n", "plain relative"),
        (f"{'0' * 64}  /x\n", "plain relative"),
        (f"{'0' * 64}  a\n{'1' * 64}  a\n", "a is listed twice"),
        (f"{'0' * 63}  a\n", "not a sha256"),
        ("", "lists no file"),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "manifest.txt"
    path.write_text(text)
    with pytest.raises(IntegrityError, match=word):
        Manifest.load(path)


def test_a_wrong_archive_is_named_in_one_line(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    lock, archive = Lock.load(layout.lock_path), tmp_path / "small-1.0.tar.gz"
    verify_archive(lock, archive)
    data = archive.read_bytes()
    archive.write_bytes(data[:-7])
    with pytest.raises(IntegrityError, match="truncated or another file") as caught:
        verify_archive(lock, archive)
    assert "\n" not in caught.value.message and str(archive) in caught.value.message
    archive.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match=r"is not small-1\.0\.tar\.gz"):
        verify_archive(lock, archive)
    with pytest.raises(IntegrityError, match="cannot be read"):
        verify_archive(lock, tmp_path / "absent")


def test_write_lock_round_trip(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    write_lock(layout.lock_path, tmp_path / "small-1.0.tar.gz", root="deep/er")
    assert Lock.load(layout.lock_path).root == "deep/er"
