"""What the commands of `lucebox bench` share: options, conditions of a measurement, the end of each."""

import shlex
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pylucebox.cli.console import Console
from pylucebox.cli.freshness import is_current
from pylucebox.core.paths import Layout
from pylucebox.measure.benchmark import Plan
from pylucebox.measure.binaries import Binaries
from pylucebox.measure.compare import Comparison, check_gate
from pylucebox.measure.machine import describe_machine
from pylucebox.measure.render import markdown
from pylucebox.measure.report import Result
from pylucebox.measure.sources import Source

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUT = click.Path(dir_okay=False, path_type=Path)
OUT_FOLDER = click.Path(file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)


if TYPE_CHECKING:
    _Floats = click.ParamType[float]
else:  # before 8.4 it takes no parameter
    _Floats = click.ParamType


class Percent(_Floats):
    """A change such as -2%, as the share -0.02."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else float(str(value).removesuffix("%")) / 100
        except ValueError:
            self.fail(f"'{value}' is not a change such as -2%", param, ctx)


class Recorded(click.Command):
    """A command that remembers the words it was called with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["lucebox.command"] = shlex.join(["lucebox", "bench", str(self.name), *args])
        return super().parse_args(ctx, args)


class Forwarding(Recorded):
    """A command that hands on the words after -- to a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        ctx.meta["lucebox.extra"] = tuple(args[split + 1 :])
        rest = super().parse_args(ctx, args[:split])
        ctx.meta["lucebox.command"] = shlex.join(["lucebox", "bench", str(self.name), *args])
        return rest


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def join_options(*options: Decorator) -> Decorator:
    """Join option decorators into one."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


build_option = click.option(
    "--build",
    "where",
    metavar="WHERE",
    help="Target name or build folder. Default: LUCEBOX_TARGET, else the only one.",
)
out_option = click.option("--out", type=OUT, metavar="FILE", help="Also keep the result as JSON.")
gate_option = click.option(
    "--gate", type=Percent(), help="Exit 7 unless every interval lies above this change, e.g. -2%."
)
unlike_option = click.option("--allow-unlike", is_flag=True, help="Compare what differs in other ways too.")
INTERVAL = click.IntRange(min=2)  # rounds that an interval needs
warmups_option = click.option(
    "--warmups", type=click.IntRange(min=0), default=1, show_default=True, help="Not counted."
)
rounds_options = join_options(
    click.option("--rounds", type=INTERVAL, default=8, show_default=True, help="Rounds of A B B A."),
    click.option(
        "--noise-rounds", type=click.IntRange(min=0), help="Rounds of A A A A, 0 or from 2. Default: as many."
    ),
    warmups_option,
)
single_rounds_options = join_options(
    click.option("--rounds", type=INTERVAL, default=8, show_default=True, help="Rounds of four samples."),
    warmups_option,
)
workload_options = join_options(
    click.option("-p", "--prompt-tokens", type=click.IntRange(min=0), default=512, show_default=True),
    click.option("-n", "--decode-tokens", type=click.IntRange(min=0), default=128, show_default=True),
    click.option("--depth", "depths", type=click.IntRange(min=0), multiple=True, default=(0,), metavar="N",
                 help="Tokens already in the context; repeatable."),
    click.option("--threads", type=COUNT, multiple=True, metavar="N",
                 help="Repeatable. Default: one a processor."),
    click.option("--repetitions", type=COUNT, default=1, show_default=True, help="Within one sample."),
)  # fmt: skip


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: its stem, or all of it where stems are equal; a repeat is numbered."""
    stems = [p.stem for p in paths]
    names = [p.stem if stems.count(p.stem) == 1 else str(p) for p in paths]
    return [n if n not in names[:i] else f"{n} ({names[:i].count(n) + 1})" for i, n in enumerate(names)]


def make_plan(rounds: int, noise_rounds: int | None, warmups: int) -> Plan:
    """Return how often to measure; the noise floor gets as many rounds as the comparison."""
    return Plan(rounds, rounds if noise_rounds is None else noise_rounds, warmups)


def extra_words() -> tuple[str, ...]:
    """Return the words after --."""
    extra: tuple[str, ...] = click.get_current_context().meta["lucebox.extra"]
    return extra


def repository_root(layout: Layout) -> Path:
    """Return the folder that paths of a result's sources start from."""
    return layout.vendor_dir.parent


def log_folder(layout: Layout) -> Path:
    """Return the folder that takes the output of the programs that are measured."""
    folder = layout.bench_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def conditions(
    console: Console, layout: Layout, title: str, what: str, builds: Sequence[Binaries], program: str
) -> Result:
    """Return a result without figures. Its sources are known when a build is what the tree gives now."""
    current = [b for b in builds if is_current(layout, b.receipt)]
    if not current:
        console.warn("no build of the present sources was measured: the result names no sources")
    receipt = current[0].receipt if current else None
    return Result(
        what=title,
        date=date.today().isoformat(),
        command=click.get_current_context().meta["lucebox.command"],
        machine=describe_machine(),
        receipts={b.name: b.identity(program) for b in builds},
        source=Source.read(repository_root(layout), what, receipt.target) if receipt else Source(),
    )


def finish(
    console: Console,
    result: Result,
    out: Path | None,
    gate: float | None = None,
    judge: Callable[[Sequence[Comparison]], None] | None = None,
) -> None:
    """Keep, print and judge a result; with --json a failed gate prints the error object only."""
    if out:
        result.save(out)
        console.note(f"written    {out}")
    console.answer(markdown(result, stale=False).rstrip())
    if gate is not None:
        check_gate(result.comparisons, gate)
    if judge:
        judge(result.comparisons)
    name = f"bench {click.get_current_context().info_name}"
    console.result(name, {**result.to_json(), "file": str(out) if out else None})
