"""Writes and verifies the pristine tree: the files of the manifest, as upstream published them."""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import IntegrityError, MissingError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import read_receipt, sha256_bytes, sha256_file, write_receipt
from pylucebox.source.lock import Lock, Manifest, accepted_hashes, verify_archive
from pylucebox.source.origins import ensure_archive
from pylucebox.source.trees import remove_tree, stat_fingerprint

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pristine:
    """The verified upstream tree. origin: where it came from. forms: hash of each deviating file as found."""

    tree: Path
    origin: str
    forms: dict[str, str]
    fresh: bool


def receipt_path(layout: Layout) -> Path:
    return layout.work_dir / "pristine.json"


def find_pristine(layout: Layout, manifest: Manifest) -> Pristine | None:
    """Return the pristine tree when its receipt matches manifest and files, else None. Starts nothing."""
    receipt = read_receipt(receipt_path(layout))
    tree = layout.pristine_dir
    if not receipt or receipt.get("manifest") != manifest.digest or not tree.is_dir():
        return None
    if receipt.get("stat") != stat_fingerprint(tree):
        return None
    return Pristine(tree, str(receipt["origin"]), dict(receipt["forms"]), fresh=False)


def ensure_pristine(
    layout: Layout,
    lock: Lock,
    manifest: Manifest,
    archive: Path | None = None,
    source: Path | None = None,
    progress: Progress | None = None,
) -> Pristine:
    """Return the verified pristine tree, made from the package index, `archive` or the folder `source`.

    A tree that is already right is kept. An archive or folder given by hand is verified all the same, so that
    a wrong one never passes unseen. Raises IntegrityError or MissingError; then no tree is left half made.
    """
    if archive:
        verify_archive(lock, archive)
    elif source and not source.is_dir():
        raise MissingError(f"{source}: no such folder", hint="give the folder of a llama.cpp checkout")
    found = find_pristine(layout, manifest) or _adopt(layout, lock, manifest)
    if found and (not source or _same_files(source, found.tree, manifest)):
        return found
    if source:
        origin, files = f"folder {source}", _from_folder(source, manifest)
    else:
        archive = archive or ensure_archive(lock, layout.archive_dir, progress)[0]
        origin, files = "archive", _from_archive(archive, lock, manifest)
    forms = _write(layout, lock, manifest, files)
    return _finish(layout, manifest, origin, forms, fresh=True)


def _same_files(source: Path, tree: Path, manifest: Manifest) -> bool:
    return all(
        (source / p).is_file() and (source / p).read_bytes() == (tree / p).read_bytes()
        for p in manifest.files
    )


def _adopt(layout: Layout, lock: Lock, manifest: Manifest) -> Pristine | None:
    """Take a tree whose times changed (a copied clone) but whose content is right."""
    receipt, tree = read_receipt(receipt_path(layout)), layout.pristine_dir
    if not receipt or not tree.is_dir():
        return None
    try:
        found = {path: sha256_file(tree / path) for path in manifest.files}
    except OSError:
        return None
    extra = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file()} - set(found)
    if extra or any(digest not in accepted_hashes(lock, manifest, path) for path, digest in found.items()):
        return None
    forms = {d.path: found[d.path] for d in lock.deviations}
    return _finish(layout, manifest, str(receipt.get("origin", "")), forms, fresh=False)


def _finish(layout: Layout, manifest: Manifest, origin: str, forms: dict[str, str], fresh: bool) -> Pristine:
    content = {
        "manifest": manifest.digest,
        "origin": origin,
        "forms": forms,
        "stat": stat_fingerprint(layout.pristine_dir),
    }
    write_receipt(receipt_path(layout), content)
    return Pristine(layout.pristine_dir, origin, forms, fresh)


def _write(
    layout: Layout, lock: Lock, manifest: Manifest, files: Iterator[tuple[str, bytes]]
) -> dict[str, str]:
    """Write all files of the manifest to a new folder, verify each, then put it in place."""
    partial = layout.work_dir / "pristine.partial"
    remove_tree(partial)
    found: dict[str, str] = {}
    try:
        for path, data in files:
            digest = sha256_bytes(data)
            if digest not in accepted_hashes(lock, manifest, path):
                raise IntegrityError(
                    f"{path}: not the file of {lock.tag}: sha256 {digest[:12]}, the manifest says "
                    f"{manifest.files[path][:12]}",
                    hint=f"use the archive {lock.filename}, or a clean checkout of tag {lock.tag}",
                )
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(data)
            found[path] = digest
        missing = sorted(set(manifest.files) - set(found))
        if missing:
            raise IntegrityError(
                f"{missing[0]}: missing from the source ({len(missing)} of {len(manifest.files)} files)",
                hint=f"use the archive {lock.filename}, or a clean checkout of tag {lock.tag}",
            )
        receipt_path(layout).unlink(missing_ok=True)
        remove_tree(layout.pristine_dir)
        partial.rename(layout.pristine_dir)
    except OSError as bad:
        raise MissingError(f"{layout.pristine_dir}: cannot be written: {bad.strerror or bad}") from bad
    finally:
        remove_tree(partial)
    return {d.path: found[d.path] for d in lock.deviations}


def _from_archive(archive: Path, lock: Lock, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yield the manifest's files out of the archive; nothing else in it is ever written."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = member.name.partition("/")[2].removeprefix(lock.root + "/")
                if member.isfile() and path in manifest.files and member.name.endswith(f"{lock.root}/{path}"):
                    stream = tar.extractfile(member)
                    assert stream is not None
                    yield path, stream.read()
    except (tarfile.TarError, EOFError) as bad:
        raise IntegrityError(f"{archive}: not a readable archive: {bad}", hint="fetch it again") from bad


def _from_folder(source: Path, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    for path in manifest.files:
        file = source / path
        if file.is_file():
            yield path, file.read_bytes()
