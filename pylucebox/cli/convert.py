"""lucebox convert: a DeepSeek-V4 checkpoint to GGUF files for the server."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console, format_bytes
from pylucebox.cli.encoding_options import OUT, encoding_options, find_encoder, list_types
from pylucebox.cli.options import global_options
from pylucebox.core.paths import find_layout
from pylucebox.formats.checkpoint import Checkpoint, open_checkpoint
from pylucebox.formats.convert import ConversionPlan, plan_conversion, write_conversion
from pylucebox.formats.encoders import NumpyEncoder
from pylucebox.formats.encoding import Encoding
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.ledger import Role
from pylucebox.formats.output_file import check_disk
from pylucebox.formats.recipes import RECIPES, find_recipe
from pylucebox.formats.rules import read_rules

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TYPES_HELP = "; ".join(f"{r.name}: {r.about}" for r in RECIPES.values())


def parse_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes that "1048576", "512M" or "2GiB" mean."""
    if value is None:
        return None
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (text[:-1], text[-1]) if text and text[-1] in UNITS else (text, "")
    try:
        size = int(float(number) * UNITS[unit])
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is no size such as 512M or 2G", ctx, param)
    return size


@dataclass(frozen=True)
class Wanted:
    """One file to write. is_second: beside the one that rules and importance matrix are for."""

    role: Role
    out: Path
    is_second: bool = False


@click.command(short_help="Convert a DeepSeek-V4 checkpoint to GGUF.")
@click.argument("source", metavar="SRC", required=False, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "recipe",
    default="mxfp4",
    show_default=True,
    metavar="TYPE",
    help=f"{TYPES_HELP}; and the ROCmFPX types, see --list-types.",
)
@click.option(
    "--out",
    type=OUT,
    metavar="FILE",
    help="File to write. Default: the folder's name and TYPE, here; a drafter's ends in -dspark.",
)
@click.option("--drafter", is_flag=True, help="Write the DSpark drafter instead of the target model.")
@click.option("--mtp", is_flag=True, help="Write the classic MTP head instead of the target model.")
@click.option(
    "--drafter-out",
    type=OUT,
    metavar="FILE",
    help="Write the DSpark drafter as well, to FILE; --rules and --imatrix are not for it.",
)
@click.option(
    "--aux-heads",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the drafter's Markov and confidence heads from this safetensors file.",
)
@click.option("--name", help="The model's name inside the file. Default: the folder's name.")
@click.option(
    "--max-memory", metavar="SIZE", callback=parse_size, help="Allocate no more than this, for example 512M."
)
@encoding_options
@click.option("--dry-run", is_flag=True, help="Print the plan, and write nothing.")
@global_options
def command(console: Console, **options: Any) -> None:
    """Convert the DeepSeek-V4 checkpoint in the folder SRC, as DeepSeek published it, to GGUF.

    The plan is made from the headers first: every tensor of the checkpoint must have its place, and the files
    must fit on the disk. Data is streamed. A file appears under its name once it is complete and read back.
    """
    if options["list_types"]:
        list_types(console, "convert")
        return
    wanted = _wanted(options)
    checkpoint = open_checkpoint(options["source"], options["aux_heads"])
    encoding = _encoding(options)
    plans = [_plan(checkpoint, one, options, encoding) for one in wanted]
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        console.warn(note)
    if options["dry_run"]:
        _print_plans(console, plans)
        return
    check_disk(plans)
    if plans[0].recipe.mix and isinstance(encoding.encoder, NumpyEncoder):
        console.warn("no finished build: encoding in Python, the same bytes at a fraction of the speed")
    _write(console, plans)


def _wanted(options: dict[str, Any]) -> list[Wanted]:
    drafter, mtp, drafter_out = options["drafter"], options["mtp"], options["drafter_out"]
    if options["source"] is None:
        raise click.UsageError("Missing argument 'SRC'.")
    if drafter + mtp + bool(drafter_out) > 1:
        raise click.UsageError("--drafter, --mtp and --drafter-out exclude each other")
    role = Role.DRAFTER if drafter else Role.MTP if mtp else Role.TARGET
    to = find_recipe(options["recipe"], options["pure"]).name
    wanted = [Wanted(role, options["out"] or default_out(options["source"], to, role))]
    if drafter_out:
        wanted.append(Wanted(Role.DRAFTER, drafter_out, is_second=True))
        if drafter_out.absolute() == wanted[0].out.absolute():
            raise click.UsageError("--out and --drafter-out name the same file")
    return wanted


def _plan(
    checkpoint: Checkpoint, wanted: Wanted, options: dict[str, Any], encoding: Encoding
) -> ConversionPlan:
    return plan_conversion(
        checkpoint,
        wanted.role,
        options["recipe"],
        wanted.out,
        name=options["name"],
        max_memory_bytes=options["max_memory"],
        encoding=Encoding(encoding.encoder) if wanted.is_second else encoding,
        is_pure=options["pure"],
    )


def _encoding(words: dict[str, Any]) -> Encoding:
    rules, imatrix = words["rules_path"], words["imatrix_path"]
    return Encoding(
        find_encoder(find_layout(), words["threads"], words["search"]),
        read_imatrix(imatrix) if imatrix else None,
        read_rules(rules) if rules else None,
    )


def default_out(source: Path, recipe: str, role: Role) -> Path:
    """Return the file written without --out: in the current folder, named after the checkpoint.

    The drafter is named so that `lucebox run` finds it beside the target.
    """
    name = source.resolve().name
    if role is Role.DRAFTER:
        return Path(f"{name}-{recipe}-dspark.gguf")
    return Path(f"{name}-mtp-{recipe}.gguf" if role is Role.MTP else f"{name}-{recipe}.gguf")


def _print_plans(console: Console, plans: list[ConversionPlan]) -> None:
    for plan in plans:
        console.answer(f"{plan.out}   {plan.role.value}, {plan.recipe.name}, {format_bytes(plan.size_bytes)}")
        for kind, (tensors, size) in plan.types.items():
            console.answer(f"  {kind:<18} {tensors:>6} tensors {format_bytes(size):>12}")
        ledger = plan.ledger
        console.answer(
            f"  {'inputs':<18} {ledger.inputs:>6} tensors: {ledger.written} written,"
            f" {ledger.merged} scales merged, {sum(ledger.skipped.values())} skipped"
        )
        for reason, count in ledger.skipped.items():
            console.answer(f"  {'':<18} {count:>6} skipped: {reason}")
        console.answer(
            f"  disk     {format_bytes(plan.free_disk_bytes)} free;"
            f" memory at most {format_bytes(plan.peak_memory_bytes)}"
        )
    console.result("convert", {"dry_run": True, "files": [plan.as_dict() for plan in plans]})


def _write(console: Console, plans: list[ConversionPlan]) -> None:
    files = []
    for plan in plans:
        start = time.monotonic()
        with console.bar(plan.role.value, unit="B", scale=True) as bar:
            result = write_conversion(plan, bar)
        seconds = time.monotonic() - start
        for warning in result.warnings:
            console.warn(warning)
        what = f"{result.tensors} tensors, {plan.recipe.name}, {format_bytes(result.size_bytes)}"
        console.stage(plan.role.value, what, seconds)
        files.append({**plan.as_dict(), "warnings": list(result.warnings), "seconds": round(seconds, 3)})
    for plan in plans:
        console.answer(str(plan.out))
    console.result("convert", {"dry_run": False, "files": files})
