"""Trees of files: cheap fingerprints, and writing only what differs."""

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path


def walk_files(tree: Path) -> Iterator[str]:
    """Yield the path of every file and link below `tree`, relative, with forward slashes, sorted."""
    pending = [""]
    names: list[str] = []
    while pending:
        folder = pending.pop()
        with os.scandir(tree / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path + "/")
                else:
                    names.append(path)
    yield from sorted(names)


def stat_fingerprint(tree: Path) -> str:
    """Return a hash over names, sizes and times of all files: it changes when anything was written."""
    digest = sha256()
    for path in walk_files(tree):
        file = tree / path
        info = file.lstat()
        link = f" {file.readlink()}" if file.is_symlink() else f" {info.st_size} {info.st_mtime_ns}"
        digest.update(f"{path}{link}\n".encode())
    return digest.hexdigest()


def remove_tree(tree: Path) -> None:
    """Remove a folder and all below it; nothing happens when it is absent."""
    if tree.exists():
        shutil.rmtree(tree)


def write_if_different(path: Path, data: bytes) -> bool:
    """Write `data` unless the file already holds it; return whether it was written."""
    if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return True


def link_if_different(path: Path, target: Path) -> bool:
    """Make `path` a relative link to `target` unless it is one; return whether it was made."""
    relative = Path(os.path.relpath(target, path.parent))
    if path.is_symlink() and path.readlink() == relative:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(relative)
    partial.replace(path)
    return True
