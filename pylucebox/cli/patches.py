"""lucebox patches: what is in the series, whether it holds, and renewing its hunks. For maintainers."""

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console
from pylucebox.cli.options import global_options
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.source.lock import Lock, Manifest
from pylucebox.source.patches import Checked, check_patches, describe_series, find_patch
from pylucebox.source.pristine import ensure_pristine
from pylucebox.source.refresh import Refreshed, checkout_patch, refresh_patch, renumber_patches

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(short_help="List, check and renew the patches of llama.cpp.")
def command() -> None:
    """List, check and renew the patches that lucebox applies to llama.cpp. For maintainers.

    To edit one: checkout, edit, then `refresh NAME --from DIR`. docs/patches.md tells the whole loop.
    """


@command.command("list", short_help="Every patch, from its header.")
@global_options
def list_command(console: Console) -> None:
    """Print number, class, changed lines, upstream status, files and tests of every patch, in order."""
    found = describe_series(find_layout().patches_dir)
    for patch in found:
        console.answer(f"{patch.number}  {patch.kind:<5}{patch.changed_lines:>4} lines  {patch.status}")
        console.answer(f"      {patch.name}: {patch.description}")
        console.answer(f"      files  {' '.join(patch.files)}")
        console.answer(f"      tests  {' '.join(patch.tests)}")
        if patch.proof:
            console.answer(f"      fails without it  {patch.proof}")
    console.result("patches list", {"patches": [asdict(patch) for patch in found]})


@command.command("check", short_help="Apply the series strictly, and hold it to its rules.")
@global_options
def check_command(console: Console) -> None:
    """Check list and folder, headers, sizes and tests; apply all in order, and every fix alone.

    Nothing is written. Exit code 4 when something is wrong.
    """
    layout = find_layout()
    found = check_patches(layout, _pristine(console, layout))
    for note in found.notes:
        console.warn(note)
    if found.problems:
        raise _failed(console, found)
    fixes = f"{found.alone} {'fix' if found.alone == 1 else 'fixes'}"
    console.answer(f"{found.applied} patches apply in order, {fixes} also alone")
    console.result("patches check", asdict(found))


@command.command("checkout", short_help="Write the tree that a patch leads to, to edit it.")
@click.argument("name")
@click.argument("folder", metavar="DIR", type=FOLDER)
@global_options
def checkout_command(console: Console, name: str, folder: Path) -> None:
    """Write llama.cpp with all patches up to NAME, and NAME itself, into the new folder DIR.

    NAME is a file name or its number. Hunks of NAME that no longer fit are left in FILE.rej,
    beside their file.
    """
    layout = find_layout()
    patch = find_patch(layout.patches_dir, name)
    found = checkout_patch(layout, patch, _pristine(console, layout), folder)
    for reject in found.rejects:
        console.warn(f"{folder / reject}: does not fit; work it in by hand and remove the file")
    console.note(f"edit, then: lucebox patches refresh {patch.name} --from {folder}")
    console.answer(str(folder))
    console.result("patches checkout", asdict(found) | {"folder": str(folder)})


@command.command("refresh", short_help="Renew the hunks of patches.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--from", "edited", type=FOLDER, metavar="DIR", help="Take the hunks of NAME from this tree.")
@click.option("--extend", is_flag=True, help="With --from: take in files that the patch did not name.")
@global_options
def refresh_command(console: Console, names: tuple[str, ...], edited: Path | None, extend: bool) -> None:
    """Renew line numbers and context of the patches NAME (default: all), from the pristine source.

    With --from, one patch gets the hunks that lead to the files in DIR: a tree of `patches checkout`, or an
    edited copy of the prepared tree. Headers stay, with a new Last-Update; what is right keeps its bytes.
    """
    if edited and len(names) != 1:
        raise click.UsageError("--from needs the name of one patch.")
    if extend and not edited:
        raise click.UsageError("--extend goes with --from.")
    layout = find_layout()
    if not layout.is_checkout:
        raise RequestError(
            f"{layout.patches_dir}: belongs to an installed package", hint="refresh patches in a clone"
        )
    patches = [find_patch(layout.patches_dir, name) for name in names]
    pristine, today = _pristine(console, layout), date.today().isoformat()
    if edited:
        found = [refresh_patch(layout, patches[0], pristine, edited, today, extend)]
    else:
        wanted = [p.name for p in patches] or [p.name for p in describe_series(layout.patches_dir)]
        found = renumber_patches(layout, wanted, pristine, today)
    _tell(console, found)


def _pristine(console: Console, layout: Layout) -> Path:
    """Return the verified upstream tree; it is fetched or unpacked when it is not there."""
    with console.bar("source", unit="B", scale=True) as bar:
        lock, manifest = Lock.load(layout.lock_path), Manifest.load(layout.manifest_path)
        return ensure_pristine(layout, lock, manifest, progress=bar).tree


def _failed(console: Console, found: Checked) -> IntegrityError:
    for problem in found.problems:
        console.answer(problem)
    count = len(found.problems)
    what = "; ".join(found.problems) if console.json_output else f"{count} found"
    return IntegrityError(f"patch series: {what}", hint="see docs/patches.md for the rules")


def _tell(console: Console, found: list[Refreshed]) -> None:
    for patch in found:
        for reason in patch.later:
            console.warn(f"after {patch.name}, {reason}")
        console.answer(f"{patch.name}: {'renewed' if patch.changed else 'as it was'}")
    result: dict[str, Any] = {"patches": [asdict(patch) for patch in found]}
    console.result("patches refresh", result)
