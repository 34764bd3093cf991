"""lucebox imatrix: which inputs of every matrix matter, measured on a text by the build's llama-imatrix."""

import time
from pathlib import Path
from typing import Any

import click

from pylucebox.cli.console import Console
from pylucebox.cli.encoding_options import OUT, processor_count
from pylucebox.cli.options import global_options
from pylucebox.core.builds import find_build
from pylucebox.core.paths import find_layout
from pylucebox.formats.imatrix_maker import Collection, make_imatrix
from pylucebox.runtime.models import find_model, inspect_model


@click.command(short_help="Measure which inputs matter, for convert and quantize.")
@click.argument("model")
@click.option(
    "-f",
    "--file",
    "text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="TEXT",
    help="Text to read.",
)
@click.option("--out", required=True, type=OUT, metavar="FILE", help="File to write.")
@click.option(
    "--ctx-size", type=click.IntRange(min=16), default=512, show_default=True, help="Tokens of a chunk."
)
@click.option("--chunks", type=click.IntRange(min=1), metavar="N", help="Read at most N chunks of the text.")
@click.option("--output-matrix", is_flag=True, help="Measure the inputs of the output matrix too.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Default: all this machine has.")
@click.option("--target", metavar="NAME", help="Build to use. Default: LUCEBOX_TARGET, else the only one.")
@global_options
def command(console: Console, **options: Any) -> None:
    """Run MODEL over a text and record the mean square of every matrix's inputs, by column and expert.

    MODEL is a GGUF file or a name of the models folder; the better its precision, the better the figures.
    `lucebox convert` and `lucebox quantize` take the file with --imatrix.
    """
    layout = find_layout()
    build = find_build(layout, options["target"])
    model = find_model(options["model"], layout.models_dir)
    inspect_model(model)
    wanted = Collection(
        model=model,
        text=options["text"],
        out=options["out"],
        context_tokens=options["ctx_size"],
        chunks=options["chunks"],
        threads=options["threads"] or processor_count(),
        with_output=options["output_matrix"],
    )
    start = time.monotonic()
    made = make_imatrix(build.bin_dir / "llama-imatrix", wanted, console.note)
    for gap in made.gaps(list(made.entries)):
        console.warn(gap)
    seconds = time.monotonic() - start
    tokens = made.chunks * made.chunk_tokens
    console.stage("imatrix", f"{len(made.entries)} matrices, {tokens} tokens", seconds)
    console.answer(str(made.path))
    facts = {"out": str(made.path), "matrices": len(made.entries), "tokens": tokens, "chunks": made.chunks}
    console.result("imatrix", {**facts, "seconds": round(seconds, 3), "receipt": build.id})
