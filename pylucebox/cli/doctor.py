"""lucebox doctor: what this machine has, what a target needs, and what to do about the difference."""

import getpass
import json
import os
import platform
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console, format_bytes
from pylucebox.cli.detection import show_detection
from pylucebox.cli.freshness import is_current
from pylucebox.cli.options import global_options
from pylucebox.core.paths import Layout, check_output, find_layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.measure.report import write_text
from pylucebox.native.checks import Check, lacking
from pylucebox.native.detect import Detection, detect
from pylucebox.native.doctor import device_checks
from pylucebox.native.preflight import preflight
from pylucebox.native.targets import TARGETS, Target, find_target
from pylucebox.source.lock import Lock, Manifest
from pylucebox.source.prepare import find_prepared
from pylucebox.source.pristine import find_pristine

REPORTED_VARIABLES = (
    "CC", "CXX", "CUDACXX", "CUDA_PATH", "CUDA_HOME", "ROCM_PATH", "HIP_PATH", "HIPCXX",
    "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAFLAGS", "HIPFLAGS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION", "LD_LIBRARY_PATH", "LUCEBOX_HOME", "LUCEBOX_MODELS", "LUCEBOX_TARGET",
)  # fmt: skip
COLOURS = {"ok": "green", "missing": "red", "absent": "yellow"}
EXIT_MISSING = 3


@dataclass(frozen=True)
class Diagnosis:
    """The checks of one target."""

    target: Target
    checks: list[Check]

    @property
    def is_ready(self) -> bool:
        return not lacking(self.checks)


@click.command(short_help="Check what this machine lacks for a build.")
@click.option(
    "--target",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"Repeatable; one of {', '.join(TARGETS)}. Default: LUCEBOX_TARGET, else the GPUs found, else cpu.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all of it to this file, without names of you or your machine, for a bug report.",
)
@global_options
def command(console: Console, names: tuple[str, ...], report: Path | None) -> int:
    """Check what this machine has, what a target needs, and what to do about the difference.

    "absent" is what a build does without. Exit code 3 when a target cannot be built here.
    """
    if report:
        check_output(report)
    layout, found = find_layout(), detect()
    chosen = os.environ.get("LUCEBOX_TARGET")
    said_by = "LUCEBOX_TARGET" if chosen and not names else ""
    wanted = names or ((chosen,) if chosen else found.targets)
    targets = [find_target(name, said_by) for name in dict.fromkeys(wanted)]
    if not said_by and not names:
        show_detection(console, found)
    results = [Diagnosis(target, _checks(layout, target, found)) for target in targets]
    for number, one in enumerate(results):
        _print_table(console, one, number > 0)
    facts = _facts(layout, found, results)
    if report:
        write_text(report, redact(json.dumps(facts, indent=1)) + "\n")
        console.note(f"report written to {report}")
    console.result("doctor", facts)
    return 0 if all(one.is_ready for one in results) else EXIT_MISSING


def _checks(layout: Layout, target: Target, found: Detection) -> list[Check]:
    checks = [*preflight(target, layout), *device_checks(target, found)]
    return [*checks, _source_check(layout), _build_check(layout, target)]


def _source_check(layout: Layout) -> Check:
    lock = Lock.load(layout.lock_path)
    if find_prepared(layout):
        return Check("source", f"llama.cpp {lock.tag}, patched", lock.tag, True)
    archive = layout.archive_dir / lock.filename
    if archive.is_file() or find_pristine(layout, Manifest.load(layout.manifest_path)):
        return Check("source", "fetched, to be patched by `lucebox build`", lock.tag, True)
    remedy = f"`lucebox build` fetches {format_bytes(lock.size_bytes)}, or takes --archive FILE"
    return Check("source", f"{lock.filename} not fetched yet", lock.tag, True, remedy)


def _build_check(layout: Layout, target: Target) -> Check:
    receipt = BuildReceipt.load(layout.build_dir(target.name))
    needed = "of the sources there are now"
    if receipt is None:
        return Check("build", "none yet", needed, True, f"lucebox build --target {target.name}")
    found = f"receipt {receipt.short_id}{', portable' if receipt.portable else ''}"
    if is_current(layout, receipt):
        return Check("build", found, needed, True)
    return Check("build", f"{found}, out of date", needed, True, receipt.build_command)


def _state(check: Check) -> str:
    return ("absent" if check.remedy else "ok") if check.ok else "missing"


def _print_table(console: Console, one: Diagnosis, is_next: bool) -> None:
    """Print a row a check; what to do stands below its check, so that lines stay short."""
    console.answer(f"{chr(10) if is_next else ''}{one.target.name}: {one.target.summary}")
    rows = [("state", "check", "needed", "found")]
    rows += [(_state(check), check.name, check.needed, check.found) for check in one.checks]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for number, (state, name, needed, found) in enumerate(rows):
        mark = click.style(f"{state:<{widths[0]}}", fg=COLOURS.get(state))
        console.answer(f"  {mark}  {name:<{widths[1]}}  {needed:<{widths[2]}}  {found}")
        remedy = one.checks[number - 1].remedy if number else ""
        if remedy:
            console.answer(f"  {'':<{widths[0]}}  {'':<{widths[1]}}  -> {remedy}")
    ready = "can be built here" if one.is_ready else "cannot be built here yet"
    console.answer(f"  {one.target.name} {ready}")


def _facts(layout: Layout, found: Detection, results: list[Diagnosis]) -> dict[str, Any]:
    rows = {
        one.target.name: [{**asdict(check), "state": _state(check)} for check in one.checks]
        for one in results
    }
    return {
        "lucebox": version("pylucebox"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpus": [asdict(gpu) for gpu in found.gpus],
        "problems": list(found.problems),
        "environment": {name: os.environ[name] for name in REPORTED_VARIABLES if name in os.environ},
        "ready": {one.target.name: one.is_ready for one in results},
        "checks": rows,
        "home": str(layout.build_root.parent),
    }


def redact(text: str) -> str:
    """Return `text` without the user's home folder, user name and host name."""
    secrets = {str(Path.home()): "~", socket.gethostname(): "HOST"}
    with suppress(OSError, KeyError):  # a user id without a name
        secrets[getpass.getuser()] = "USER"
    for secret, stand_in in secrets.items():
        if len(secret) > 3 and secret != "root":
            text = text.replace(secret, stand_in)
    return text
