"""What `convert` and `quantize` share: options for encoders, and the one list of types."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console
from pylucebox.core.builds import list_builds
from pylucebox.core.errors import LuceboxError
from pylucebox.core.paths import Layout
from pylucebox.formats.encoders import NumpyEncoder, RowEncoder
from pylucebox.formats.presets import FILE_TYPES, FileType
from pylucebox.formats.recipes import MIXES, RECIPES
from pylucebox.native.targets import BACKENDS, CPU_ONLY_TYPES

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUT = click.Path(dir_okay=False, path_type=Path)


def processor_count() -> int:
    """Return the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoding_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --imatrix, --rules, --pure, --search, --threads and --list-types to a verb."""
    options = (
        click.option(
            "--imatrix",
            "imatrix_path",
            type=FILE,
            metavar="FILE",
            help="Importance matrix of the model, from `lucebox imatrix`.",
        ),
        click.option(
            "--rules",
            "rules_path",
            type=FILE,
            metavar="FILE",
            help="Lines PATTERN = TYPE: tensors whose names match get that type. The first match decides.",
        ),
        click.option("--pure", is_flag=True, help="The main type for every tensor, no mix."),
        click.option(
            "--search",
            is_flag=True,
            help="Search better scales for the ROCmFPX types. Other bytes than the reference's, same format.",
        ),
        click.option(
            "--threads", type=click.IntRange(min=1), metavar="N", help="Default: all this machine has."
        ),
        click.option("--list-types", is_flag=True, help="List the names of --to, and do nothing else."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def find_encoder(layout: Layout, threads: int | None, search: bool) -> RowEncoder:
    """Return the encoder of a finished build, CPU builds first; without one ours in Python, same bytes."""
    from pylucebox.runtime.native_encoder import NativeEncoder

    for build in sorted(list_builds(layout), key=lambda receipt: receipt.target != "cpu"):
        try:
            return NativeEncoder.of(build, threads or processor_count(), search)
        except LuceboxError:
            continue  # an older build without our encoders
    return NumpyEncoder(search)


def list_types(console: Console, command: str) -> None:
    """Print every name of --to: bits a weight, the verbs that take it, the back-ends with kernels."""
    rows = [_row(t) for t in FILE_TYPES.values()]
    rows += [
        {"name": r.name, "bits": None, "verbs": ["convert"], "kernels": list(BACKENDS), "about": r.about}
        for r in RECIPES.values()
        if r.name not in FILE_TYPES
    ]
    console.answer(f"{'name':<28}{'bits':>7}  {'verbs':<18}{'kernels':<16}about")
    for row in rows:
        bits = "" if row["bits"] is None else f"{row['bits']:.2f}"
        verbs, kernels = ", ".join(row["verbs"]), " ".join(row["kernels"])
        console.answer(f"{row['name']:<28}{bits:>7}  {verbs:<18}{kernels:<16}{row['about']}".rstrip())
    console.answer("bits: a weight of the type that fills most of the file; a mix has a few more")
    console.result(command, {"types": rows})


def _row(file_type: FileType) -> dict[str, Any]:
    name = file_type.name.lower()
    kernels = BACKENDS[:1] if file_type.base.lower() in CPU_ONLY_TYPES else BACKENDS
    return {
        "name": name,
        "bits": file_type.bits,
        "verbs": ["convert", "quantize"] if name in RECIPES or name in MIXES else ["quantize"],
        "kernels": list(kernels),
        "about": file_type.about or (RECIPES[name].about if name in RECIPES else ""),
    }
