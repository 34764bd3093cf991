"""lucebox bench gpu-kernels: matrix products of a patched build beside an unpatched one's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.bench_shared import (
    COUNT,
    FOLDER,
    Forwarding,
    build_option,
    conditions,
    extra_words,
    finish,
    gate_option,
    log_folder,
    make_plan,
    out_option,
    repository_root,
    rounds_options,
)
from pylucebox.cli.console import Console
from pylucebox.cli.options import global_options
from pylucebox.core.paths import find_layout
from pylucebox.measure import gpu_kernels
from pylucebox.measure.binaries import find_binaries
from pylucebox.measure.compare import Comparison
from pylucebox.measure.gpu_kernels import BOUNDS, KINDS, PROGRAM, Program, Selection
from pylucebox.measure.render import format_change
from pylucebox.measure.report import Result
from pylucebox.measure.sources import Source


@click.command("gpu-kernels", cls=Forwarding, short_help="Matrix products on a GPU.")
@build_option
@click.option(
    "--against", type=FOLDER, required=True, metavar="DIR", help="Unpatched build with the same program."
)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Repeatable. Default: all.")
@click.option(
    "--bound",
    "bounds",
    type=click.Choice(BOUNDS),
    multiple=True,
    default=BOUNDS[:1],
    show_default=True,
    help="Reading to hold products against; repeatable.",
)
@click.option("--only", multiple=True, metavar="TEXT", help="Cases and arms that contain this; repeatable.")
@click.option("--columns", type=COUNT, multiple=True, metavar="N", help="Repeatable. Default: all.")
@click.option("--goals", is_flag=True, help="Exit 7 unless every goal is reached.")
@click.option("--built-here", is_flag=True, help="Without a receipt: the build is of the present sources.")
@rounds_options
@out_option
@gate_option
@global_options
def command(
    console: Console,
    where: str | None,
    against: Path,
    goals: bool,
    built_here: bool,
    out: Path | None,
    gate: float | None,
    rounds: int,
    noise_rounds: int | None,
    warmups: int,
    **chosen: Any,
) -> None:  # fmt: skip
    """Hold products at DeepSeek-V4's shapes against an unpatched build's, and against reading alone.

    pair: each ROCmFPX type against the upstream type of its size. bound: each type against a kernel that
    only reads the same bytes. fix: upstream types that a patch makes faster. What follows -- goes to both
    programs.
    """
    layout = find_layout()
    builds = [
        replace(find_binaries(layout, place), name=name)
        for place, name in ((where, "patched"), (str(against), "unpatched"))
    ]
    ours, theirs = (Program(b.program(PROGRAM).resolve(), extra_words()) for b in builds)
    result = conditions(console, layout, "Matrix products on a GPU", "gpu-kernels", builds, PROGRAM)
    if built_here and not result.source.files:
        result = replace(result, source=Source.read(repository_root(layout), "gpu-kernels", "gpu"))
    logs = log_folder(layout)
    lists = [one.records(logs / "list.log") for one in (ours, theirs)]
    selection = Selection(**{**chosen, "kinds": chosen["kinds"] or KINDS})
    contests = gpu_kernels.find_contests(lists[0], lists[1], selection)
    kernels = {b.name: gpu_kernels.device_code(b.bin_dir) for b in builds}
    gpu: dict[str, str] = {}

    def note(c: Comparison) -> None:
        gpu.update({} if gpu else gpu_kernels.describe_gpu(logs / "nvidia-smi.log"))  # clocks under load
        level = c.levels[1].value
        console.note(f"{c.case}: {c.arm_b} {level:.2f} us, against {c.arm_a} {format_change(c.ratio)}")

    with console.bar("bench", unit="run") as bar:
        plan = make_plan(rounds, noise_rounds, warmups)
        found = gpu_kernels.measure(ours, theirs, contests, logs, plan, bar, note)
    _finish(console, replace(result, comparisons=found, settings={**gpu, **kernels}), out, gate, goals)


def _finish(console: Console, result: Result, out: Path | None, gate: float | None, goals: bool) -> None:
    if extra_words():
        result = replace(result, settings={**result.settings, "options": " ".join(extra_words())})
    finish(console, result, out, gate, gpu_kernels.check_goals if goals else None)
