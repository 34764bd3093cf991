"""What maintainers ask of the series: what is in it, and whether every patch keeps its class's promises."""

import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import IntegrityError, RequestError, did_you_mean
from pylucebox.core.paths import Layout
from pylucebox.source.lock import Lock
from pylucebox.source.prepare import apply_or_accept
from pylucebox.source.series import (
    Patch,
    check_series,
    moved_hunks,
    named_tests,
    proven_test,
    read_series,
    series_names,
)

OFFERED = ("Pending", "Submitted", "Backport", "Denied")  # upstream states of a repair


@dataclass(frozen=True)
class Described:
    """One patch in figures. number: the four digits of its name. proof: the test that fails without a fix."""

    number: str
    name: str
    kind: str
    status: str
    description: str
    files: tuple[str, ...]
    changed_lines: int
    tests: tuple[str, ...]
    proof: str


@dataclass(frozen=True)
class Checked:
    """Findings on a series. problems: empty when all is well. notes: what works and could be better.

    applied: patches that apply in their order; None when there was no source to apply them to.
    alone: fixes that apply to the pristine source with no other patch before them.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    patches: int
    applied: int | None
    alone: int


def describe_series(patches_dir: Path) -> list[Described]:
    """Return every patch of the series, in order. Raises IntegrityError when one cannot be read."""
    return [
        Described(
            number=patch.name.partition("-")[0],
            name=patch.name,
            kind=patch.headers.get("Class", ""),
            status=patch.headers.get("Upstream-Status", ""),
            description=patch.headers.get("Description", "").partition("\n")[0],
            files=patch.files,
            changed_lines=patch.changed_lines,
            tests=tuple(named_tests(patch)),
            proof=proven_test(patch),
        )
        for patch in read_series(patches_dir)
    ]


def find_patch(patches_dir: Path, name: str) -> Patch:
    """Return the patch called `name`: its file name, with or without .patch, or its number alone.

    Raises RequestError when the series has none, IntegrityError when it has several.
    """
    names = series_names(patches_dir)
    found = [n for n in names if name in (n, n.removesuffix(".patch"), n.partition("-")[0])]
    hint = "see `lucebox patches list`"
    if not found:
        raise RequestError(f"no patch of the series is called '{name}'{did_you_mean(name, names)}", hint=hint)
    if len(found) > 1:
        raise IntegrityError(f"{name}: several patches of the series have that number", hint=hint)
    return Patch.load(patches_dir / found[0])


def check_patches(layout: Layout, pristine: Path | None) -> Checked:
    """Check the whole series: list, headers, class limits and, where `pristine` is given, application.

    Every patch must apply in its order, and every fix also alone. Nothing is written.
    """
    problems = check_series(layout.patches_dir)
    lock = Lock.load(layout.lock_path)
    there = [n for n in series_names(layout.patches_dir) if (layout.patches_dir / n).is_file()]
    patches = [Patch.load(layout.patches_dir / n) for n in there]
    fixes = [p for p in patches if p.headers.get("Class") == "fix"]
    deviations = {d.patch for d in lock.deviations}
    problems += [
        f"{p.name}: a fix is offered upstream; its Upstream-Status is one of {', '.join(OFFERED)}"
        for p in fixes
        if p.name not in deviations and not p.headers.get("Upstream-Status", "").startswith(OFFERED)
    ]
    if pristine is None:
        return Checked(tuple(problems), (), len(patches), None, 0)
    broken, notes, applied = _check_order(lock, patches, pristine)
    lonely = [problem for fix in fixes for problem in _check_alone(lock, fix, pristine)]
    return Checked((*problems, *broken, *lonely), notes, len(patches), applied, len(fixes) - len(lonely))


def copy_files(paths: Iterable[str], source: Path, target: Path) -> None:
    """Copy those of `paths` that `source` has, byte for byte."""
    for path in paths:
        if (source / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((source / path).read_bytes())


def _check_order(lock: Lock, patches: list[Patch], pristine: Path) -> tuple[list[str], tuple[str, ...], int]:
    """Apply the patches one after the other; one that fails is passed over, so that all are tried."""
    deviations = {d.patch: d for d in lock.deviations}
    problems, notes, applied = [], [], 0
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        tree = Path(name).resolve() / "tree"
        tree.mkdir()
        copy_files({f for p in patches for f in p.files}, pristine, tree)
        for patch in patches:
            with suppress(IntegrityError):  # apply_or_accept says why
                if patch.name not in deviations and (moved := moved_hunks(patch, tree)):
                    notes.append(f"{patch.name}: line numbers of {moved} hunks are off; refresh renews them")
            try:
                apply_or_accept(patch, deviations.get(patch.name), tree)
                applied += 1
            except IntegrityError as bad:
                problems.append(bad.message)
    return problems, tuple(notes), applied


def _check_alone(lock: Lock, fix: Patch, pristine: Path) -> list[str]:
    deviation = next((d for d in lock.deviations if d.patch == fix.name), None)
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        tree = Path(name).resolve() / "tree"
        tree.mkdir()
        copy_files(fix.files, pristine, tree)
        try:
            apply_or_accept(fix, deviation, tree)
        except IntegrityError as bad:
            return [f"alone on the pristine source, {bad.message}"]
    return []
