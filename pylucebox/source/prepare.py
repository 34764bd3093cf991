"""Writes the prepared tree: pristine + patches + overlay. Only files whose bytes differ are written."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pylucebox.core import paths
from pylucebox.core.errors import IntegrityError, MissingError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import fingerprint, read_receipt, sha256_bytes, sha256_file, write_receipt
from pylucebox.source.lock import Deviation, Lock, Manifest
from pylucebox.source.pristine import Pristine, ensure_pristine, find_pristine
from pylucebox.source.series import Patch, apply_patch, read_series, series_digest
from pylucebox.source.trees import link_if_different, stat_fingerprint, walk_files, write_if_different

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """The tree that is compiled. id: hash over what it holds; equal for every origin of the source.

    names: hash over the file names, since CMake globs them. changed_files: written or removed by this call.
    seconds: what each step took, for the steps that had something to do.
    """

    tree: Path
    id: str
    upstream_build: int
    upstream_tag: str
    series_sha256: str
    names: str
    patches: int
    overlay_files: int
    origin: str
    changed_files: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def receipt_path(layout: Layout) -> Path:
    return layout.work_dir / "prepared.json"


def find_prepared(layout: Layout) -> Prepared | None:
    """Return the prepared tree when every receipt matches its inputs, else None.

    Reads the small inputs and file times only: no process is started and no file written.
    """
    receipt = read_receipt(receipt_path(layout))
    if not receipt or not layout.prepared_dir.is_dir():
        return None
    manifest = Manifest.load(layout.manifest_path)
    pristine = find_pristine(layout, manifest)
    if pristine is None or receipt.get("inputs") != _inputs(layout, manifest, pristine):
        return None
    if receipt.get("stat") != stat_fingerprint(layout.prepared_dir):
        return None
    return _prepared(layout, Lock.load(layout.lock_path), manifest, pristine)


def prepare(
    layout: Layout,
    *,
    archive: Path | None = None,
    source: Path | None = None,
    progress: Progress | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Prepared:
    """Return the prepared tree; fetch, verify, patch and link what its receipts say is out of date.

    archive, source: take upstream from this file or folder instead of the package index. on_wait: called when
    another process is preparing. Raises IntegrityError or MissingError.
    """
    if not archive and not source:
        found = find_prepared(layout)
        if found:
            return found
    with paths.lock(layout.work_dir / "prepare.lock", on_wait):
        started = time.monotonic()
        lock, manifest = Lock.load(layout.lock_path), Manifest.load(layout.manifest_path)
        pristine = ensure_pristine(layout, lock, manifest, archive, source, progress)
        fetched = time.monotonic()
        found = find_prepared(layout)
        if found:
            return replace(found, seconds={"source": fetched - started})
        try:
            changed = _write_tree(layout, lock, manifest, pristine)
        except OSError as bad:
            raise MissingError(f"{layout.prepared_dir}: cannot be written: {bad.strerror or bad}") from bad
        seconds = {"source": fetched - started, "patches": time.monotonic() - fetched}
        return _prepared(layout, lock, manifest, pristine, changed, seconds)


def patched_files(lock: Lock, patches: list[Patch], pristine: Path) -> dict[str, bytes | None]:
    """Return the new content of every file the series names (None: removed), computed from pristine.

    All patches are applied in a temporary folder before anything is returned.
    """
    named = list(dict.fromkeys(name for patch in patches for name in patch.files))
    deviations = {d.patch: d for d in lock.deviations}
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        tree = Path(name).resolve() / "tree"
        tree.mkdir()
        for path in named:
            if (pristine / path).is_file():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes((pristine / path).read_bytes())
        for patch in patches:
            apply_or_accept(patch, deviations.get(patch.name), tree)
        return {path: (tree / path).read_bytes() if (tree / path).is_file() else None for path in named}


def apply_or_accept(patch: Patch, deviation: Deviation | None, tree: Path) -> None:
    """Apply a patch. One that removes a deviation counts as applied where the file has its final form."""
    if deviation is None:
        apply_patch(patch, tree)
        return
    if sha256_file(tree / deviation.path) != deviation.result:
        apply_patch(patch, tree)
    found = sha256_file(tree / deviation.path)
    if found != deviation.result:
        raise IntegrityError(
            f"{patch.name}: leaves {deviation.path} as {found[:12]}, the lock says {deviation.result[:12]}",
            hint="the patch and the lock's deviation must change together",
        )


def _write_tree(layout: Layout, lock: Lock, manifest: Manifest, pristine: Pristine) -> int:
    patched = patched_files(lock, read_series(layout.patches_dir), pristine.tree)
    overlay = _overlay_files(layout)
    collisions = sorted(set(overlay) & (set(manifest.files) | set(patched)))
    if collisions:
        raise IntegrityError(
            f"overlay/{collisions[0]}: upstream has this file too", hint="change upstream's file by a patch"
        )
    receipt_path(layout).unlink(missing_ok=True)
    tree, changed = layout.prepared_dir, 0
    for path in sorted(set(manifest.files) | set(patched)):
        data = patched[path] if path in patched else (pristine.tree / path).read_bytes()
        if data is not None:
            changed += write_if_different(tree / path, data)
    for path in overlay:
        original = layout.patches_dir / "overlay" / path
        if layout.is_checkout:
            changed += link_if_different(tree / path, original)
        else:
            changed += write_if_different(tree / path, original.read_bytes())
    removed = {path for path, data in patched.items() if data is None}
    changed += _remove_stale(tree, (set(manifest.files) | set(patched) | set(overlay)) - removed)
    content = {"inputs": _inputs(layout, manifest, pristine), "stat": stat_fingerprint(tree)}
    write_receipt(receipt_path(layout), content)
    return changed


def _remove_stale(tree: Path, wanted: set[str]) -> int:
    stale = [path for path in walk_files(tree) if path not in wanted]
    for path in stale:
        (tree / path).unlink()
        folder = (tree / path).parent
        while folder != tree and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
    return len(stale)


def _overlay_files(layout: Layout) -> list[str]:
    overlay = layout.patches_dir / "overlay"
    if not overlay.is_dir():
        return []
    return [p for p in walk_files(overlay) if not p.rsplit("/", 1)[-1].startswith(".")]


def _overlay_digest(layout: Layout) -> str:
    overlay = layout.patches_dir / "overlay"
    return fingerprint({path: sha256_file(overlay / path) for path in _overlay_files(layout)})


def _inputs(layout: Layout, manifest: Manifest, pristine: Pristine) -> dict[str, str]:
    return {
        "lock": sha256_file(layout.lock_path),
        "manifest": manifest.digest,
        "forms": fingerprint(pristine.forms),
        "series": series_digest(layout.patches_dir),
        "overlay": _overlay_digest(layout),
        "overlay_as": "links" if layout.is_checkout else "copies",
    }


def _prepared(
    layout: Layout,
    lock: Lock,
    manifest: Manifest,
    pristine: Pristine,
    changed: int = 0,
    seconds: dict[str, float] | None = None,
) -> Prepared:
    series = series_digest(layout.patches_dir)
    overlay = _overlay_files(layout)
    patches = read_series(layout.patches_dir)
    identity = {"manifest": manifest.digest, "series": series, "overlay": _overlay_digest(layout)}
    names = sorted({*manifest.files, *overlay, *(f for p in patches for f in p.files)})
    return Prepared(
        tree=layout.prepared_dir,
        id=fingerprint(identity),
        upstream_build=lock.build,
        upstream_tag=lock.tag,
        series_sha256=series,
        names=sha256_bytes("\n".join(names).encode()),
        patches=len(patches),
        overlay_files=len(overlay),
        origin=pristine.origin,
        changed_files=changed,
        seconds=seconds or {},
    )
