"""lucebox quantize: a GGUF model in other types, by the build's llama-quantize."""

import time
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console, format_bytes
from pylucebox.cli.encoding_options import OUT, encoding_options, list_types, processor_count
from pylucebox.cli.options import global_options
from pylucebox.core.builds import find_build
from pylucebox.core.paths import find_layout
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.presets import find_file_type
from pylucebox.formats.quantize import QuantizationPlan, Wish, plan_quantization, write_quantization
from pylucebox.formats.rules import read_rules


@click.command(short_help="Write a GGUF model in other types.")
@click.argument("model", metavar="IN", required=False, type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", required=False, type=OUT)
@click.option("--to", "name", metavar="TYPE", help="A name of --list-types.")
@encoding_options
@click.option("--allow-requantize", is_flag=True, help="Round tensors again that are quantised already.")
@click.option("--target", metavar="NAME", help="Build to use. Default: LUCEBOX_TARGET, else the only one.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and write nothing.")
@global_options
def command(console: Console, **options: Any) -> None:
    """Write the GGUF model IN as OUT with its weights as TYPE.

    llama-quantize decides every tensor's type; what steers a DeepSeek-V4 model (mixing matrices, compressors,
    router, indexer) stays as stored. OUT appears under its name once it is complete and read back.
    """
    if options["list_types"]:
        list_types(console, "quantize")
        return
    for given, what in (("model", "argument 'IN'"), ("out", "argument 'OUT'"), ("name", "option '--to'")):
        if options[given] is None:
            raise click.UsageError(f"Missing {what}.")
    build = find_build(find_layout(), options["target"])
    plan = plan_quantization(build.quantize_path, _wish(options))
    for note in plan.notes:
        console.warn(note)
    if options["dry_run"]:
        _print_plan(console, plan)
    else:
        _write(console, plan, build.id)


def _wish(options: dict[str, Any]) -> Wish:
    rules, imatrix = options["rules_path"], options["imatrix_path"]
    return Wish(
        model=options["model"],
        out=options["out"],
        file_type=find_file_type(options["name"]),
        rules=read_rules(rules) if rules else None,
        imatrix=read_imatrix(imatrix) if imatrix else None,
        threads=options["threads"] or processor_count(),
        pure=options["pure"],
        search=options["search"],
        allow_requantize=options["allow_requantize"],
    )


def _print_plan(console: Console, plan: QuantizationPlan) -> None:
    name = plan.wish.file_type.name.lower()
    console.answer(f"{plan.out}   {name}, {format_bytes(plan.data_bytes)}, {plan.bits:.2f} bits a weight")
    for kind, (tensors, size) in plan.types.items():
        console.answer(f"  {kind.lower():<18} {tensors:>6} tensors {format_bytes(size):>12}")
    for forced, rule in plan.forced.items():
        console.answer(f"  line {rule.line:<4} {forced} {rule.type.name.lower()}")
    console.answer(f"  disk     {format_bytes(plan.free_disk_bytes)} free")
    console.result("quantize", {"dry_run": True, **plan.as_dict()})


def _write(console: Console, plan: QuantizationPlan, receipt: str) -> None:
    start = time.monotonic()
    with console.bar("quantize", unit="B", scale=True) as bar:
        write_quantization(plan, bar)
    seconds = time.monotonic() - start
    size_bytes = plan.out.stat().st_size
    what = f"{len(plan.tensors)} tensors, {plan.bits:.2f} bits a weight, {format_bytes(size_bytes)}"
    console.stage("quantize", what, seconds)
    console.answer(str(plan.out))
    done = {"size_bytes": size_bytes, "seconds": round(seconds, 3), "receipt": receipt}
    console.result("quantize", {"dry_run": False, **plan.as_dict(), **done})
