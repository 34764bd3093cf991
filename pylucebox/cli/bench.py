"""lucebox bench: speed and quality, measured in turns, with an interval and the conditions."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pylucebox.cli import bench_gpu
from pylucebox.cli.bench_shared import (
    COUNT,
    FILE,
    FOLDER,
    OUT,
    OUT_FOLDER,
    Forwarding,
    Recorded,
    build_option,
    conditions,
    distinct_names,
    extra_words,
    finish,
    gate_option,
    log_folder,
    make_plan,
    out_option,
    repository_root,
    rounds_options,
    single_rounds_options,
    unlike_option,
    workload_options,
)
from pylucebox.cli.console import Console
from pylucebox.cli.options import global_options
from pylucebox.core.errors import RequestError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.core.receipts import sha256_file
from pylucebox.measure import kernels, llama_bench, perplexity
from pylucebox.measure.benchmark import Plan
from pylucebox.measure.binaries import Binaries, check_alike, find_binaries
from pylucebox.measure.compare import Comparison
from pylucebox.measure.difference import compare_results
from pylucebox.measure.folder import write_report
from pylucebox.measure.llama_bench import LlamaBench, Workload
from pylucebox.measure.machine import describe_machine
from pylucebox.measure.programs import Pair, list_records, measure_pairs, pairs_of
from pylucebox.measure.render import format_change
from pylucebox.measure.report import load


@click.group(short_help="Measure speed and quality.")
def command() -> None:
    """Measure speed and quality, and say how sure the figures are.

    Arms take turns, A is first measured against itself, every ratio has a 95 % interval.
    """


command.add_command(bench_gpu.command)


@command.command("kernels", cls=Recorded, short_help="Dot products beside upstream's.")
@click.option("--only", default="", metavar="TEXT", help="Pairs whose case or type contains this.")
@click.option("--goals", is_flag=True, help="Exit 7 unless every pair's lower end reaches its goal.")
@build_option
@rounds_options
@out_option
@gate_option
@global_options
def kernels_command(
    console: Console,
    only: str,
    goals: bool,
    where: str | None,
    out: Path | None,
    gate: float | None,
    **rounds: Any,
) -> None:
    """Measure every ROCmFPX dot product beside the upstream type of its size, and its own scalar code."""
    layout = find_layout()
    build = find_binaries(layout, where)
    argv: list[str | Path] = [build.program(kernels.PROGRAM)]
    title = "ROCmFPX dot products beside upstream's"
    result = conditions(console, layout, title, "kernels", [build], kernels.PROGRAM)
    pairs = kernels.find_pairs(list_records(argv, log_folder(layout) / "list.log"), only)
    found = _measure_pairs(console, layout, argv, pairs, make_plan(**rounds))
    finish(console, replace(result, comparisons=found), out, gate, kernels.check_goals if goals else None)


@command.command("program", cls=Forwarding, short_help="Two arms of a native benchmark program.")
@click.argument("program")
@click.option("--arm", required=True, metavar="NAME", help="Arm to judge.")
@click.option("--against", required=True, metavar="NAME", help="Arm to hold it against.")
@build_option
@rounds_options
@out_option
@gate_option
@global_options
def program_command(
    console: Console,
    program: str,
    arm: str,
    against: str,
    where: str | None,
    out: Path | None,
    gate: float | None,
    **rounds: Any,
) -> None:
    """Hold two arms of PROGRAM against each other, in every case that has both.

    PROGRAM is a program of the build that keeps the contract in docs/benchmarks.md. What follows -- goes
    to it untouched.
    """
    layout = find_layout()
    build = find_binaries(layout, where)
    argv: list[str | Path] = [build.program(program), *extra_words()]
    result = conditions(console, layout, f"{program}: {arm} against {against}", "program", [build], program)
    records = list_records(argv, log_folder(layout) / "list.log")
    pairs = pairs_of(records, against, arm)
    if not pairs:
        known = ", ".join(sorted({r.arm for r in records}))
        raise RequestError(f"{program} has no case with both '{arm}' and '{against}'; its arms: {known}")
    found = _measure_pairs(console, layout, argv, pairs, make_plan(**rounds))
    settings = {"options": shlex.join(extra_words())} if extra_words() else {}
    finish(console, replace(result, comparisons=found, settings=settings), out, gate)


@command.command("run", cls=Forwarding, short_help="Decode and prompt speed of a model.")
@click.argument("model", type=FILE)
@build_option
@workload_options
@single_rounds_options
@out_option
@global_options
def run_command(
    console: Console,
    model: Path,
    where: str | None,
    rounds: int,
    warmups: int,
    out: Path | None,
    **workload: Any,
) -> None:
    """Measure decode and prompt tokens a second of MODEL. What follows -- goes to llama-bench untouched."""
    layout = find_layout()
    build = find_binaries(layout, where)
    side = _side(layout, model.stem, build, model, workload)
    title = f"Speed of {model.stem}"
    result = conditions(console, layout, title, "speed", [build], llama_bench.PROGRAM)
    with console.bar("bench", unit="run") as bar:
        levels = llama_bench.measure_levels(side, make_plan(rounds, 0, warmups), bar)
    finish(console, replace(result, levels=levels, settings=llama_bench.shared_settings([side])), out)


@command.command("ab", cls=Forwarding, short_help="Two models or two builds in turns.")
@click.argument("a")
@click.argument("b")
@click.argument("model", type=FILE, required=False)
@build_option
@workload_options
@rounds_options
@unlike_option
@out_option
@gate_option
@global_options
def ab_command(
    console: Console,
    a: str,
    b: str,
    model: Path | None,
    where: str | None,
    allow_unlike: bool,
    out: Path | None,
    gate: float | None,
    **options: Any,
) -> None:
    """Hold B against A. With MODEL both are builds (target name or folder), without it both are models.

    What follows -- goes to llama-bench untouched.
    """
    layout = find_layout()
    plan = make_plan(*(options.pop(name) for name in ("rounds", "noise_rounds", "warmups")))
    if model:
        sides = _two_builds(layout, a, b, model, where, allow_unlike)
    else:
        sides = _two_models(layout, a, b, where)
    first, second = (_side(layout, name, build, path, options) for name, build, path in sides)
    title = f"{second.name} against {first.name}" + (f" on {model.stem}" if model else "")
    builds = list({build.bin_dir: build for _, build, _ in sides}.values())
    result = conditions(console, layout, title, "speed", builds, llama_bench.PROGRAM)
    with console.bar("bench", unit="run") as bar:
        found = llama_bench.measure_speed(first, second, plan, bar, allow_unlike)
    settings = llama_bench.shared_settings([first, second])
    finish(console, replace(result, comparisons=found, settings=settings), out, gate)


@command.command("quality", cls=Forwarding, short_help="Divergence from the F32 master.")
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option("--reference", type=FILE, required=True, help="The F32 master.")
@click.option("-f", "--file", "text", type=FILE, required=True, help="Text to evaluate.")
@click.option("--ctx-size", type=click.IntRange(min=8), default=512, show_default=True, help="Of a chunk.")
@click.option("--chunks", type=COUNT, help="Default: as many as the text holds.")
@click.option("--threads", type=COUNT, help="Default: one a processor.")
@click.option("--keep-base", type=OUT, metavar="FILE", help="Keep the master's log probabilities.")
@build_option
@out_option
@global_options
def quality_command(
    console: Console,
    models: tuple[Path, ...],
    reference: Path,
    text: Path,
    keep_base: Path | None,
    where: str | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Hold each MODEL against the F32 master: perplexity, KL divergence, top-1 agreement.

    What follows -- goes to llama-perplexity untouched.
    """
    layout = find_layout()
    build = find_binaries(layout, where)
    setup = _setup(layout, build, **options)
    title = f"Quality against {reference.stem}"
    result = conditions(console, layout, title, "quality", [build], perplexity.PROGRAM)
    path = keep_base or log_folder(layout) / f"base-{os.getpid()}"
    named = dict(zip(distinct_names(models), models, strict=True))
    try:
        with console.bar("quality", unit="model") as bar:
            base, qualities = perplexity.evaluate(setup, reference, text, named, path, bar)
    finally:
        if not keep_base:
            path.unlink(missing_ok=True)
    settings = {
        "context": f"{base.context_tokens} tokens",
        "chunks": str(base.chunks),
        "text": f"{text.name} (sha256 {sha256_file(text)[:12]})",
        "reference": f"{reference.name}, perplexity {base.perplexity:.4f}",
        **({"options": shlex.join(setup.extra)} if setup.extra else {}),
    }
    finish(console, replace(result, qualities=qualities, settings=settings), out)


@command.command("compare", cls=Recorded, short_help="What changed between two result files.")
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@unlike_option
@gate_option
@global_options
def compare_command(console: Console, a: Path, b: Path, allow_unlike: bool, gate: float | None) -> None:
    """Hold result file B against A. They were not measured in turns: prefer `bench ab` where you can."""
    first, second = load(a), load(b)
    result = replace(
        second,
        what=f"{b.name} against {a.name}",
        command=click.get_current_context().meta["lucebox.command"],
        receipts={f"{path.name}:": ", ".join(r.receipts.values()) for path, r in ((a, first), (b, second))},
        comparisons=compare_results(first, second, allow_unlike),
        levels=(),
    )
    finish(console, result, None, gate)


@command.command("report", cls=Recorded, short_help="Tables and pictures of a folder of results.")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--out", type=OUT_FOLDER, metavar="DIR", help="Default: the same.")
@global_options
def report_command(console: Console, folder: Path, out: Path | None) -> None:
    """Write table.md and SVG pictures of every result file in DIR; stale results say so."""
    written = write_report(folder, out or folder, repository_root(find_layout()))
    for path in written:
        console.answer(str(path))
    console.result("bench report", {"files": [str(path) for path in written]})


def _measure_pairs(
    console: Console, layout: Layout, argv: Sequence[str | Path], pairs: Sequence[Pair], plan: Plan
) -> tuple[Comparison, ...]:
    def note(c: Comparison) -> None:
        console.note(f"{c.case}: {c.arm_b} against {c.arm_a} {format_change(c.ratio)}")

    with console.bar("bench", unit="run") as bar:
        return measure_pairs(argv, pairs, log_folder(layout) / "serve.log", plan, bar, note)


_Sides = list[tuple[str, Binaries, Path]]


def _two_builds(layout: Layout, a: str, b: str, model: Path, where: str | None, allow_unlike: bool) -> _Sides:
    """Return name, build and model of each side when two builds run one model."""
    if where:
        raise click.UsageError("--build and two builds to compare exclude each other")
    builds = [find_binaries(layout, a), find_binaries(layout, b)]
    if not allow_unlike:
        check_alike(*builds)
    names = distinct_names([Path(a), Path(b)])
    return [(name, replace(one, name=name), model) for name, one in zip(names, builds, strict=True)]


def _two_models(layout: Layout, a: str, b: str, where: str | None) -> _Sides:
    """Return name, build and model of each side when one build runs two models."""
    paths = [Path(a), Path(b)]
    for path in paths:
        if not path.is_file():
            raise click.UsageError(f"'{path}' is no model file; to compare two builds, name a MODEL as well")
    build = find_binaries(layout, where)
    return [(name, build, path) for name, path in zip(distinct_names(paths), paths, strict=True)]


def _side(layout: Layout, name: str, build: Binaries, model: Path, options: Any) -> LlamaBench:
    """Return one side of a speed measurement; `options` are those of `workload_options`."""
    work = Workload(**{**options, "threads": options["threads"] or (describe_machine().cores,)})
    if work.tests == 0:
        raise click.UsageError("--prompt-tokens 0 and --decode-tokens 0 leave nothing to measure")
    program = build.program(llama_bench.PROGRAM)
    return LlamaBench(name, program, model, work, log_folder(layout), extra_words())


def _setup(
    layout: Layout, build: Binaries, ctx_size: int, chunks: int | None, threads: int | None
) -> perplexity.Setup:
    return perplexity.Setup(
        program=build.program(perplexity.PROGRAM),
        context_tokens=ctx_size,
        chunks=chunks,
        threads=threads or describe_machine().cores,
        log_dir=log_folder(layout),
        extra=extra_words(),
    )
