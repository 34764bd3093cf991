"""Makes an importance matrix of a model and a text with the build's llama-imatrix."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.imatrix import ImportanceMatrix, read_imatrix
from pylucebox.formats.output_file import partial_file
from pylucebox.formats.shards import find_shards

FEWEST_CHUNKS = 2  # llama-imatrix takes no shorter text
ESTIMATE = re.compile(r"(\d+\.\d+ seconds per pass - ETA .*)$")


@dataclass(frozen=True)
class Collection:
    """What to run. chunks: at most so many pieces of `context_tokens` of the text; None for all of it."""

    model: Path
    text: Path
    out: Path
    context_tokens: int = 512
    chunks: int | None = None
    threads: int = 1
    with_output: bool = False


def make_imatrix(
    program: Path, wanted: Collection, on_estimate: Callable[[str], None] | None = None
) -> ImportanceMatrix:
    """Run `program`, check that its file suits the model, rename it; a failure leaves nothing behind.

    on_estimate: called with the program's own estimate of the time. Raises RequestError when the program
    fails (a text too short for one chunk, for example), IntegrityError when its file cannot be used.
    """
    if not wanted.text.is_file():
        raise RequestError(f"{wanted.text}: no such file", hint="give a text like what the model will read")
    size_bytes, needed = wanted.text.stat().st_size, FEWEST_CHUNKS * wanted.context_tokens
    if size_bytes < needed:  # a token has at least one byte
        raise RequestError(
            f"{wanted.text}: {size_bytes} bytes are too short for {needed} tokens",
            hint=f"give at least {FEWEST_CHUNKS} chunks of text, or a smaller --ctx-size",
        )

    def follow(line: str) -> None:
        if on_estimate and (found := ESTIMATE.search(line)):
            on_estimate(found[1])

    with partial_file(wanted.out) as (partial, stream):
        processes.run(_words(program, wanted, partial), on_line=follow, error=RequestError)
        os.fsync(stream.fileno())
        made = _checked(wanted.model, partial)
    return ImportanceMatrix(
        wanted.out, made.chunks, made.chunk_tokens, made.datasets, made.entries, made.data_offset
    )


def _words(program: Path, wanted: Collection, partial: Path) -> list[str | Path]:
    words: list[str | Path] = [program, "-m", wanted.model.resolve(), "-f", wanted.text.resolve()]
    words += ["-o", partial.resolve(), "--output-format", "gguf", "--no-ppl"]
    words += ["-c", str(wanted.context_tokens), "-t", str(wanted.threads)]
    if wanted.chunks is not None:
        words += ["--chunks", str(wanted.chunks)]
    if wanted.with_output:
        words.append("--process-output")
    return words


def _checked(model: Path, partial: Path) -> ImportanceMatrix:
    made = read_imatrix(partial)
    shapes = {t.name: t.shape for shard in find_shards(model) for t in read_header(shard).tensors}
    strange = [name for name in made.entries if name not in shapes]
    if strange:
        raise IntegrityError(f"{partial}: has an entry for {strange[0]}, which {model} does not have")
    for name in made.entries:
        made.slices(name, shapes[name])
    return made
