"""Rewrites the hunks of a patch: from an edited copy of the tree, or with new line numbers alone."""

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import read_receipt, write_receipt
from pylucebox.source.lock import Lock
from pylucebox.source.patches import copy_files
from pylucebox.source.prepare import apply_or_accept
from pylucebox.source.series import Patch, git_env, moved_hunks, read_series
from pylucebox.source.trees import remove_tree, walk_files, write_if_different

MARK = ".lucebox-checkout.json"  # in a checkout: which patch it is for
LEFT_OVER = (".rej", ".orig")
BODY = re.compile(rb"^(--- (a/|/dev/null)|diff --git )", re.MULTILINE)
LAST_UPDATE = re.compile(rb"^Last-Update:.*$", re.MULTILINE)
NOISE = (b"diff --git ", b"index ", b"new file mode ", b"deleted file mode ")
CONTEXT_LINES = 2  # of a patch that has no hunk to learn it from


@dataclass(frozen=True)
class Checkout:
    """A tree to edit. rejects: hunks of the patch that did not fit, each in FILE.rej beside its file."""

    folder: Path
    patch: str
    rejects: tuple[str, ...]


@dataclass(frozen=True)
class Refreshed:
    """What became of one patch. later: why patches behind it no longer apply."""

    name: str
    changed: bool
    files: tuple[str, ...]
    changed_lines: int
    later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """The patches in order, and how to apply them to the files that any of them names."""

    patches: tuple[Patch, ...]
    lock: Lock
    pristine: Path

    @classmethod
    def load(cls, layout: Layout, pristine: Path) -> "Series":
        return cls(tuple(read_series(layout.patches_dir)), Lock.load(layout.lock_path), pristine)

    @property
    def files(self) -> frozenset[str]:
        return frozenset(f for patch in self.patches for f in patch.files)

    def split(self, name: str) -> tuple[tuple[Patch, ...], tuple[Patch, ...]]:
        """Return the patches before `name` and those after it."""
        place = [patch.name for patch in self.patches].index(name)
        return self.patches[:place], self.patches[place + 1 :]

    def apply(self, patches: Sequence[Patch], tree: Path) -> None:
        deviations = {d.patch: d for d in self.lock.deviations}
        for patch in patches:
            apply_or_accept(patch, deviations.get(patch.name), tree)

    def tree(self, folder: Path, patches: Sequence[Patch]) -> Path:
        """Write the named files with `patches` applied into a new `folder` and return it."""
        folder.mkdir()
        copy_files(self.files, self.pristine, folder)
        self.apply(patches, folder)
        return folder


def checkout_patch(layout: Layout, patch: Patch, pristine: Path, folder: Path) -> Checkout:
    """Write the source with all patches up to and with `patch` into a new `folder`, to edit it there.

    A patch that does not fit leaves its hunks as FILE.rej, as git does. Raises RequestError when the folder
    exists, IntegrityError when an earlier patch does not apply.
    """
    if folder.exists():
        raise RequestError(f"{folder}: exists already", hint="name a folder that is not there yet")
    series, partial = Series.load(layout, pristine), folder.with_name(folder.name + ".partial")
    try:
        remove_tree(partial)
        copy_files(walk_files(pristine), pristine, partial)
        series.apply(series.split(patch.name)[0], partial)
        try:
            series.apply([patch], partial)
        except IntegrityError:
            apply_what_fits(patch, partial)
        write_receipt(partial / MARK, {"patch": patch.name})
        rejects = tuple(path for path in walk_files(partial) if path.endswith(".rej"))
        partial.rename(folder)
    except OSError as bad:
        raise RequestError(f"{folder}: cannot be written: {bad.strerror or bad}") from bad
    finally:
        remove_tree(partial)
    return Checkout(folder, patch.name, rejects)


def apply_what_fits(patch: Patch, tree: Path) -> None:
    """Apply the hunks of a patch that fit, and leave the others in FILE.rej beside their file."""
    argv: list[str | Path] = ["git", "apply", "--reject", "--whitespace=nowarn", patch.path.resolve()]
    with suppress(IntegrityError):  # git says so by its exit code; the .rej files tell the rest
        processes.run(argv, cwd=tree, env=git_env(tree), error=IntegrityError, what="git apply")


def refresh_patch(
    layout: Layout, patch: Patch, pristine: Path, edited: Path, today: str, extend: bool = False
) -> Refreshed:
    """Rewrite `patch` so that it leads to the files of `edited`, and keep its header but for Last-Update.

    edited: a checkout of this patch, or a copy of the whole prepared tree, from which the later patches are
    taken off first. today: YYYY-MM-DD. extend: take in files that the patch did not name. Raises RequestError
    for changes in other files, left-over .rej files and a checkout of another patch; then nothing is written.
    """
    series = Series.load(layout, pristine)
    earlier, later = series.split(patch.name)
    is_checkout = _is_checkout(edited, patch)
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        home = Path(name).resolve()
        before, expected = series.tree(home / "before", earlier), series.tree(home / "expected", earlier)
        with suppress(IntegrityError):  # a patch that no longer fits is what a refresh repairs
            series.apply([patch], expected)
        wanted = home / "wanted"
        copy_files(series.files, edited, wanted)
        if not is_checkout:
            _take_off(later, wanted)
        outside = sorted(_changes(layout, series, edited, expected, wanted) - set(patch.files))
        if outside and not extend:
            raise RequestError(
                f"{edited}: {outside[0]} changed too ({len(outside)} do), which {patch.name} does not name",
                hint="undo the change, or take it into the patch with --extend",
            )
        for tree, source in ((before, pristine), (wanted, edited)):
            copy_files(set(outside) - series.files, source, tree)
        files = [*patch.files, *outside]
        if all(_bytes(expected / f) == _bytes(wanted / f) for f in files):
            return _unchanged(patch)
        return _write(patch, _renewed(patch, before, wanted, files, today), series, later, wanted)


def renumber_patches(layout: Layout, names: Sequence[str], pristine: Path, today: str) -> list[Refreshed]:
    """Give the named patches the line numbers at which they apply; one that has them keeps its bytes.

    Raises IntegrityError at the first patch of the series that does not apply.
    """
    series, found = Series.load(layout, pristine), []
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        home = Path(name).resolve()
        before, after = series.tree(home / "before", []), series.tree(home / "after", [])
        for patch in series.patches:
            series.apply([patch], after)
            if patch.name in names:
                is_new = any(_bytes(before / f) != _bytes(after / f) for f in patch.files)
                moved = is_new and moved_hunks(patch, before)  # a deviation may be gone already
                text = _renewed(patch, before, after, patch.files, today) if moved else b""
                found.append(_write(patch, text, series, (), after) if moved else _unchanged(patch))
            for path in patch.files:
                (before / path).unlink(missing_ok=True)
            copy_files(patch.files, after, before)
    return found


def _is_checkout(edited: Path, patch: Patch) -> bool:
    mark = read_receipt(edited / MARK)
    if mark is not None and mark.get("patch") != patch.name:
        raise RequestError(
            f"{edited}: a checkout of {mark.get('patch')}, not of {patch.name}",
            hint=f"lucebox patches checkout {patch.name} FOLDER",
        )
    if not edited.is_dir():
        raise RequestError(
            f"{edited}: no such folder", hint=f"lucebox patches checkout {patch.name} {edited}"
        )
    return mark is not None


def _take_off(later: Sequence[Patch], tree: Path) -> None:
    """Undo the later patches, last first. Raises RequestError naming the one that an edit touches."""
    for patch in reversed(later):
        argv: list[str | Path] = ["git", "apply", "--reverse", "--whitespace=nowarn", patch.path.resolve()]
        try:
            processes.run(argv, cwd=tree, env=git_env(tree), error=IntegrityError, what="git apply")
        except IntegrityError as bad:
            raise RequestError(
                f"{patch.name}, which comes later, cannot be taken off the edited tree",
                log_tail=bad.log_tail,
                hint="edit a checkout instead: lucebox patches checkout NAME FOLDER",
            ) from bad


def _changes(layout: Layout, series: Series, edited: Path, expected: Path, wanted: Path) -> set[str]:
    """Return the files in which the edited tree differs from what it was before it was edited."""
    overlay = layout.patches_dir / "overlay"
    ours = {*(walk_files(overlay) if overlay.is_dir() else ()), MARK}
    found = {path for path in series.files if _bytes(expected / path) != _bytes(wanted / path)}
    theirs = set(walk_files(series.pristine)) - series.files
    there = set(walk_files(edited)) - series.files - ours
    left = sorted(path for path in there - theirs if path.endswith(LEFT_OVER))
    if left:
        raise RequestError(f"{edited / left[0]}: left over", hint="work its hunks in by hand, then remove it")
    both = (path for path in theirs & there if _bytes(series.pristine / path) != _bytes(edited / path))
    return found | (theirs ^ there) | set(both)


def _renewed(patch: Patch, before: Path, after: Path, files: Sequence[str], today: str) -> bytes:
    """Return the patch with its header, dated `today`, and the hunks that lead from `before` to `after`."""
    old = patch.path.read_bytes()
    start = BODY.search(old)
    header = LAST_UPDATE.sub(f"Last-Update: {today}".encode(), old[: start.start()] if start else old)
    body = _diff(before, after, files, _context_lines(old))
    if not body:
        raise RequestError(
            f"{patch.name}: nothing of it is left", hint="take the patch out of the series instead"
        )
    return header + body


def _diff(before: Path, after: Path, files: Sequence[str], context: int) -> bytes:
    """Return git's diff of `files`, without the lines that only git itself reads."""
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        tree, out = Path(name).resolve() / "tree", Path(name).resolve() / "diff"
        tree.mkdir()

        def git(*words: str | Path) -> None:
            processes.run(["git", *words], cwd=tree, env=git_env(tree), error=IntegrityError, what="git")

        git("init", "--quiet")
        copy_files(files, before, tree)
        git("add", "--all", "--force")
        for path in files:
            (tree / path).unlink(missing_ok=True)
        copy_files(files, after, tree)
        git("add", "--ignore-removal", "--force", "--intent-to-add", ".")
        git("diff", "--no-color", "--no-renames", "--no-ext-diff", f"-U{context}", f"--output={out}")
        lines = out.read_bytes().splitlines(keepends=True)
    return b"".join(_without_noise(lines))


def _without_noise(lines: Sequence[bytes]) -> list[bytes]:
    """Drop git's own header lines; a line of content starts with a blank, a sign or a backslash."""
    return [line for line in lines if not line.startswith(NOISE)]


def _context_lines(old: bytes) -> int:
    """Return how many lines of context the hunks of a patch begin with, as most of them do, at most 3."""
    counts: Counter[int] = Counter()
    for hunk in re.split(rb"^@@ .*\n", old, flags=re.MULTILINE)[1:]:
        lines = hunk.split(b"\n")
        counts[next((i for i, line in enumerate(lines) if line[:1] != b" "), 0)] += 1
    usual = counts.most_common(1)[0][0] if counts else CONTEXT_LINES
    return min(max(usual, 1), 3)


def _write(patch: Patch, text: bytes, series: Series, later: Sequence[Patch], after: Path) -> Refreshed:
    """Write the new patch, and say which later ones no longer apply behind it."""
    broken = []
    for other in later:
        try:
            series.apply([other], after)
        except IntegrityError as bad:
            broken.append(bad.message)
    write_if_different(patch.path, text)
    new = Patch.load(patch.path)
    return Refreshed(patch.name, True, new.files, new.changed_lines, tuple(broken))


def _unchanged(patch: Patch) -> Refreshed:
    return Refreshed(patch.name, False, patch.files, patch.changed_lines)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
