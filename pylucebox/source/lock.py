"""Reads the lock (which upstream source we build) and the manifest (every file of it, with its hash)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pylucebox.core.errors import IntegrityError
from pylucebox.core.receipts import fingerprint, sha256_file

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Deviation:
    """A file in which accepted origins differ, and the patch that brings each form to `result`."""

    path: str
    reason: str
    patch: str
    result: str
    forms: Mapping[str, str]  # sha256 -> origin that carries this form


@dataclass(frozen=True)
class Lock:
    """The pinned upstream source and the archive that carries it."""

    build: int
    tag: str
    licence: str
    name: str
    version: str
    filename: str
    sha256: str
    size_bytes: int
    root: str
    deviations: tuple[Deviation, ...]

    @classmethod
    def load(cls, path: Path) -> "Lock":
        """Read the lock at `path`. Raises IntegrityError naming the field that is missing or malformed."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"))
        except (OSError, RecursionError, KeyError, TypeError, ValueError) as bad:
            raise IntegrityError(
                f"{path}: not a valid lock: {bad}", hint="restore the file, for example from git"
            ) from bad

    @classmethod
    def parse(cls, text: str) -> "Lock":
        """Read the lock in `text`. Raises KeyError, TypeError or ValueError, or RecursionError if nested."""
        content = tomllib.loads(text)
        upstream, archive = content["upstream"], content["archive"]
        return cls(
            build=_count(upstream["build"]),
            tag=str(upstream["tag"]),
            licence=str(upstream["licence"]),
            name=str(archive["name"]),
            version=str(archive["version"]),
            filename=safe_path(archive["filename"]),
            sha256=_sha256(archive["sha256"]),
            size_bytes=_count(archive["size_bytes"]),
            root=safe_path(archive["root"]),
            deviations=tuple(_deviation(table) for table in content.get("deviation", ())),
        )


@dataclass(frozen=True)
class Manifest:
    """Hash of every upstream file we build from, by path relative to the llama.cpp root."""

    files: Mapping[str, str]

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Read `sha256  path` lines. Raises IntegrityError naming the line that is malformed."""
        try:
            files = parse_manifest(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as bad:
            raise IntegrityError(
                f"{path}: not a valid manifest: {bad}", hint="restore the file, for example from git"
            ) from bad
        if not files:
            raise IntegrityError(f"{path}: lists no file", hint="restore the file, for example from git")
        return cls(files)

    @cached_property
    def digest(self) -> str:
        """One hash over all names and hashes."""
        return fingerprint(dict(self.files))


def parse_manifest(text: str) -> dict[str, str]:
    """Return hash by file name. Raises ValueError naming what is malformed."""
    files: dict[str, str] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        if name in files:
            raise ValueError(f"{name} is listed twice")
        files[safe_path(name)] = _sha256(digest)
    return files


def accepted_hashes(lock: Lock, manifest: Manifest, path: str) -> frozenset[str]:
    """Return the hashes that a pristine file may have: the manifest's, or any form of a deviation."""
    forms = [d.forms for d in lock.deviations if d.path == path]
    return frozenset({manifest.files[path], *(digest for form in forms for digest in form)})


def verify_archive(lock: Lock, archive: Path) -> None:
    """Check an archive against the lock. Raises IntegrityError saying what differs."""
    try:
        size = archive.stat().st_size
        found = sha256_file(archive) if size == lock.size_bytes else ""
    except OSError as bad:
        raise IntegrityError(f"{archive}: cannot be read: {bad.strerror}", hint="check the path") from bad
    if size < lock.size_bytes:
        raise IntegrityError(
            f"{archive}: truncated or another file: {size} bytes, the lock says {lock.size_bytes}",
            hint=f"fetch {lock.filename} again",
        )
    if found != lock.sha256:
        raise IntegrityError(
            f"{archive}: is not {lock.filename}: sha256 {found[:12] or 'not computed'}, size {size}; "
            f"the lock says {lock.sha256[:12]}, size {lock.size_bytes}",
            hint=f"fetch {lock.filename} again",
        )


def _deviation(table: Mapping[str, Any]) -> Deviation:
    return Deviation(
        path=safe_path(table["path"]),
        reason=str(table["reason"]),
        patch=safe_path(table["patch"]),
        result=_sha256(table["result"]),
        forms={_sha256(form["sha256"]): str(form["origin"]) for form in table["form"]},
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _sha256(text: str) -> str:
    if not SHA256.fullmatch(text):
        raise ValueError(f"'{text}' is not a sha256")
    return text


def safe_path(text: str) -> str:
    """Return `text` when it is a plain relative path, else raise ValueError."""
    path = PurePosixPath(text)
    if (
        not text
        or "\0" in text
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in text
        or str(path) != text
    ):
        raise ValueError(f"'{text}' is not a plain relative path")
    return text
