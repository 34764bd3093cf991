"""lucebox build: fetch, verify, patch and compile llama.cpp for one or more targets."""

import os
import shlex
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console
from pylucebox.cli.detection import show_detection, show_toolkit
from pylucebox.cli.options import global_options
from pylucebox.core.builds import find_build
from pylucebox.core.errors import MissingError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native import cmake
from pylucebox.native.checks import require
from pylucebox.native.detect import Detection, detect
from pylucebox.native.preflight import preflight
from pylucebox.native.targets import TARGETS, Target, find_target
from pylucebox.source.lock import Lock, Manifest
from pylucebox.source.prepare import Prepared, find_prepared, prepare
from pylucebox.source.pristine import find_pristine
from pylucebox.source.series import series_digest, series_names

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(short_help="Fetch, patch and compile llama.cpp.")
@click.option(
    "--target",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"Repeatable; one of {', '.join(TARGETS)}. Default: LUCEBOX_TARGET, else the GPUs found, else cpu.",
)
@click.option("--archive", type=FILE, help="Take the source from this archive instead of the package index.")
@click.option("--source", type=FOLDER, help="Take the source from this checkout of llama.cpp instead.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once. Default: one a processor.")
@click.option("--portable", is_flag=True, help="For every processor of this kind, not for this very one.")
@click.option("--fresh", is_flag=True, help="Configure and compile from an empty folder.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and start nothing.")
@click.option(
    "--print-server", is_flag=True, help="Print the path of the built llama-server, and build nothing."
)
@global_options
def command(
    console: Console,
    names: tuple[str, ...],
    archive: Path | None,
    source: Path | None,
    jobs: int | None,
    portable: bool,
    fresh: bool,
    dry_run: bool,
    print_server: bool,
) -> None:
    """Fetch, verify, patch and compile llama.cpp.

    Each target has its own folder below build/. A build whose inputs did not change is left alone.
    The path of llama-server is printed on stdout.
    """
    if archive and source:
        raise click.UsageError("--archive and --source exclude each other")
    layout = find_layout()
    targets, why = _targets(names, portable)
    if print_server:
        _answer(console, [(find_build(layout, target.name), False) for target in targets])
        return
    if dry_run:
        _print_plan(console, layout, targets, archive, source, jobs or _processors())
        return
    missing = _not_current(layout, targets, fresh or bool(archive or source))
    if missing and why:
        show_detection(console, why)
    for target in missing:
        checks = preflight(target, layout)
        require(checks, target.name)
        show_toolkit(console, checks)
    prepared = _prepare(console, layout, archive, source)
    built = [_build(console, layout, target, prepared, jobs or _processors(), fresh) for target in targets]
    _answer(console, [(one.receipt, one.changed) for one in built])


def _targets(names: tuple[str, ...], portable: bool) -> tuple[list[Target], Detection | None]:
    """Return the targets that were named, else LUCEBOX_TARGET, else of the GPUs found, which come second."""
    chosen = os.environ.get("LUCEBOX_TARGET")
    said_by = "LUCEBOX_TARGET" if chosen and not names else ""
    found = None if names or chosen else detect()
    wanted = names or ((chosen,) if chosen else found.targets if found else ())
    return [find_target(name, said_by, portable) for name in dict.fromkeys(wanted)], found


def _not_current(layout: Layout, targets: list[Target], is_new: bool) -> list[Target]:
    """Return the targets for which there is something to do. Starts nothing."""
    prepared = None if is_new else find_prepared(layout)
    return [one for one in targets if not (prepared and _is_current(layout, one, _source(prepared)))]


def _is_current(layout: Layout, target: Target, source: cmake.Source) -> bool:
    try:
        return cmake.find_current(layout, target, source) is not None
    except MissingError:  # the checks name all that is missing
        return False


def _prepare(console: Console, layout: Layout, archive: Path | None, source: Path | None) -> Prepared:
    with console.bar("source", unit="B", scale=True) as bar:
        prepared = prepare(
            layout,
            archive=archive,
            source=source,
            progress=bar,
            on_wait=lambda: console.note(
                "waiting for another `lucebox build` to finish preparing the source"
            ),
        )
    how = "linked" if layout.is_checkout else "copied"
    results = {
        "source": f"llama.cpp {prepared.upstream_tag}, {prepared.origin} verified",
        "patches": f"{prepared.patches} applied, {prepared.overlay_files} overlay files {how}",
    }
    for step, seconds in prepared.seconds.items():
        console.stage(step, results[step], seconds)
    return prepared


def _build(
    console: Console, layout: Layout, target: Target, prepared: Prepared, jobs: int, fresh: bool
) -> cmake.Built:
    source = _source(prepared)
    current = None if fresh else cmake.find_current(layout, target, source)
    if current:
        built = cmake.Built(current, changed=False)
    else:
        with console.bar("compile", unit="step") as bar:
            built = cmake.build(
                layout,
                target,
                source,
                jobs=jobs,
                fresh=fresh,
                progress=bar,
                on_step=console.stage,
                on_wait=lambda: console.note(f"waiting for another `lucebox build --target {target.name}`"),
            )
    state = "" if built.changed else ", nothing to do"
    path = _shown(built.receipt.server_path)
    console.stage("built", f"{path}   receipt {built.receipt.short_id}{state}")
    return built


def _answer(console: Console, builds: list[tuple[BuildReceipt, bool]]) -> None:
    for receipt, _ in builds:
        console.answer(str(receipt.server_path))
    console.result("build", {"builds": [_describe(receipt, changed) for receipt, changed in builds]})


def _describe(receipt: BuildReceipt, changed: bool) -> dict[str, Any]:
    return {
        "target": receipt.target,
        "receipt": receipt.id,
        "changed": changed,
        "upstream_build": receipt.upstream_build,
        "backends": list(receipt.backends),
        "compiler": receipt.compiler,
        "toolkit": receipt.toolkit,
        "arch": receipt.arch,
        "portable": receipt.portable,
        "link_stub": receipt.link_stub,
        "flags": dict(receipt.flags),
        "device_code": dict(receipt.device_code),
        "server": str(receipt.server_path),
        "quantize": str(receipt.quantize_path),
        "library": str(receipt.library_path),
        "bin_dir": str(receipt.bin_dir),
    }


def _print_plan(
    console: Console,
    layout: Layout,
    targets: list[Target],
    archive: Path | None,
    source: Path | None,
    jobs: int,
) -> None:
    lock = Lock.load(layout.lock_path)
    plan = [("source", _source_plan(layout, lock, archive, source))]
    plan.append(
        ("patches", f"apply {len(series_names(layout.patches_dir))} to {_shown(layout.prepared_dir)}")
    )
    prepared = find_prepared(layout)
    if prepared and not archive and not source:
        plan = [("source", "up to date"), ("patches", "up to date")]
    for target in targets:
        known = _source(prepared) if prepared else _unprepared(layout, lock)
        if prepared and cmake.find_current(layout, target, known):
            plan.append(("built", f"{target.name} is up to date"))
            continue
        tools = cmake.tools_for(target)
        plan.append(("configure", shlex.join(cmake.configure_command(layout, target, known, tools))))
        plan.append(("compile", shlex.join(cmake.compile_command(layout, target, tools, jobs))))
    for step, what in plan:
        console.answer(f"{step:<10} {what}")
    console.result("build", {"plan": [{"step": step, "what": what} for step, what in plan]})


def _source_plan(layout: Layout, lock: Lock, archive: Path | None, source: Path | None) -> str:
    if source:
        return f"verify and copy {source}"
    if archive:
        return f"verify and unpack {archive}"
    if find_pristine(layout, Manifest.load(layout.manifest_path)):
        return "up to date"
    if (layout.archive_dir / lock.filename).is_file():
        return f"verify and unpack {_shown(layout.archive_dir / lock.filename)}"
    return f"fetch {lock.filename} ({lock.size_bytes} bytes) from the configured package index"


def _source(prepared: Prepared) -> cmake.Source:
    return cmake.Source(
        tree=prepared.tree,
        id=prepared.id,
        names=prepared.names,
        upstream_build=prepared.upstream_build,
        upstream_tag=prepared.upstream_tag,
        series_sha256=prepared.series_sha256,
    )


def _unprepared(layout: Layout, lock: Lock) -> cmake.Source:
    series = series_digest(layout.patches_dir)
    return cmake.Source(layout.prepared_dir, "", "", lock.build, lock.tag, series)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shown(path: Path) -> str:
    """Return the path as people type it: relative below the current folder, else absolute."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
