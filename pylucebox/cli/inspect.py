"""lucebox inspect: what a model file or checkpoint is, how it is stored, and what memory it would take."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pylucebox.cli.console import Console, format_bytes
from pylucebox.cli.memory import MOST_TOKENS, memory_lines, plan_memory
from pylucebox.cli.options import global_options
from pylucebox.core.builds import find_build
from pylucebox.core.errors import LuceboxError, MissingError, RequestError, one_line
from pylucebox.core.paths import find_layout
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.inspect import ModelInfo
from pylucebox.formats.model_keys import SHOWN
from pylucebox.formats.tensor_table import Share, TensorTable, read_checkpoint_table, read_gguf_table
from pylucebox.runtime.memory import Demand
from pylucebox.runtime.models import Speculation, choose_speculation, inspect_model
from pylucebox.runtime.server import ServerCommand

# Keys of a model that people ask for; the architecture's name stands before each.
KEYS = (
    "context_length",
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.key_length",
    "attention.sliding_window",
    "attention.indexer.top_k",
    "expert_count",
    "expert_used_count",
    "block_size",
    "target_layers",
)
# What llama-server takes for --cache-type-k and --cache-type-v.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MOST_SEQUENCES = 256  # llama.cpp's
TOKENS = click.IntRange(1, MOST_TOKENS)
# Options of the memory plan, which nothing but a target has.
OF_THE_PLAN = ("ctx_size", "parallel", "batch_size", "ubatch_size", "cache_type", "target")
PATH = click.Path(exists=True, path_type=Path)


@click.command(short_help="Show what a model file is and what memory it takes.")
@click.argument("file", type=PATH)
@click.option("--ctx-size", type=TOKENS, help="Tokens to plan for. Default: the model's own.")
@click.option(
    "--parallel",
    type=click.IntRange(1, MOST_SEQUENCES),
    help="Sequences. Default: four that share one cache.",
)
@click.option("--batch-size", type=TOKENS, help="Tokens of a batch. Default: the server's.")
@click.option("--ubatch-size", type=TOKENS, help="Tokens of a micro-batch. Default: 512.")
@click.option(
    "--cache-type",
    type=click.Choice(CACHE_TYPES, case_sensitive=False),
    default="f16",
    show_default=True,
    metavar="TYPE",
    help=f"Type of the caches: {', '.join(CACHE_TYPES)}.",
)
@click.option("--drafter", type=PATH, help="DSpark drafter to plan for.")
@click.option("--target", metavar="NAME", help="Build to ask. Default: LUCEBOX_TARGET, else the only one.")
@click.option("--headers-only", is_flag=True, help="Ask no build: estimate the memory from headers.")
@global_options
def command(console: Console, file: Path, **options: Any) -> None:
    """Show kind, keys, types and memory plan of FILE: a GGUF model, its first shard, or a checkpoint folder.

    Only headers are read. A checkpoint has no plan: what is served is its conversion.
    """
    if file.is_dir():
        _refuse_plan_options(file, "checkpoint", (*OF_THE_PLAN, "drafter"))
        _show_checkpoint(console, file)
        return
    info, table = inspect_model(file), read_gguf_table(file)
    plan = _plan(console, file, info, options)
    lines = [*_model_lines(info, table), *_table_lines(table)]
    if plan is not None or info.is_target:
        lines += memory_lines(plan)
    _print(console, lines)
    console.result(
        "inspect",
        {"kind": _kind(info), **info.as_dict(), **_table_dict(table), "memory": plan and plan.as_dict()},
    )


def _show_checkpoint(console: Console, folder: Path) -> None:
    checkpoint, table = open_checkpoint(folder), read_checkpoint_table(folder)
    config = checkpoint.config
    drafter = checkpoint.draft_kind or "none"
    _print(
        console,
        [
            ("kind", f"checkpoint of {len(table.files)} safetensors files, draft stages: {drafter}"),
            ("layers", str(config.num_hidden_layers)),
            *(("note", note) for note in checkpoint.notes),
            *_table_lines(table),
        ],
    )
    facts = {"kind": "checkpoint", "path": str(folder), "layers": config.num_hidden_layers}
    console.result("inspect", {**facts, "draft_kind": checkpoint.draft_kind, **_table_dict(table)})


def _refuse_plan_options(file: Path, kind: str, names: tuple[str, ...]) -> None:
    """Raise RequestError when an option was given that says nothing of a file of this kind."""
    source = click.get_current_context().get_parameter_source
    given = next((name for name in names if source(name) is ParameterSource.COMMANDLINE), None)
    if given:
        option = f"--{given.replace('_', '-')}"
        raise RequestError(
            f"{file}: {option} is of a memory plan, and a {kind} has none", hint=f"leave {option} out"
        )


def _plan(console: Console, file: Path, info: ModelInfo, options: dict[str, Any]) -> Demand | None:
    """Return the memory plan of a target; None for a drafter, which is served beside one."""
    drafter = inspect_model(options["drafter"]) if options["drafter"] else None
    if not info.is_target:
        if drafter:
            raise RequestError(f"{file}: is no model to draft for", hint="leave --drafter out")
        _refuse_plan_options(file, f"{_kind(info)} of architecture {info.architecture[:SHOWN]}", OF_THE_PLAN)
        return None
    speculation = (
        choose_speculation("on", info, drafter, named=True, draft_tokens=None)
        if drafter
        else Speculation(None, 0, "no drafter given")
    )
    command = ServerCommand(
        program=_program(console, options),
        model=file,
        context_tokens=options["ctx_size"] or info.context_tokens,
        drafter=options["drafter"],
        draft_tokens=speculation.draft_tokens or None,
        extra=tuple(_extra(options)),
    )
    return plan_memory(command, info, speculation, headers_only=options["headers_only"])


def _program(console: Console, options: dict[str, Any]) -> Path:
    """Return the server to ask; a path that does not exist where nothing is built and none was named.

    Where something is built but cannot be asked, a warning says why.
    """
    layout = find_layout()
    try:
        return find_build(layout, options["target"]).server_path
    except LuceboxError as bad:
        if options["target"]:
            raise
        is_unbuilt = isinstance(bad, MissingError) and not os.environ.get("LUCEBOX_TARGET")
        if not options["headers_only"] and not is_unbuilt:
            console.warn(f"no build is asked for the memory plan: {bad.message}")
        return Path("llama-server")


def _extra(options: dict[str, Any]) -> Iterator[str]:
    for option in ("parallel", "batch_size", "ubatch_size"):
        if options[option]:
            yield from (f"--{option.replace('_', '-')}", str(options[option]))
    yield from ("--cache-type-k", options["cache_type"], "--cache-type-v", options["cache_type"])


def _kind(info: ModelInfo) -> str:
    return "target" if info.is_target else "drafter" if info.is_drafter else "model"


def _model_lines(info: ModelInfo, table: TensorTable) -> Iterator[tuple[str, str]]:
    shards = f" in {len(table.files)} files" if len(table.files) > 1 else ""
    yield "kind", f"{_kind(info)}, GGUF{shards}: {info.path}"
    yield "name", info.name
    yield "architecture", info.architecture
    yield "size", f"{format_bytes(info.file_bytes)}, {table.total.values / 1e9:.3f} billion values"
    if info.recipe:
        yield "recipe", info.recipe
    for key in KEYS:
        value = info.keys.get(f"{info.architecture}.{key}")
        if value is not None:
            yield key, ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if info.dspark:
        head = "with" if info.dspark.has_confidence_head else "no"
        yield "dspark", f"Markov rank {info.dspark.markov_rank}, {head} confidence head"
    yield "tokenizer", f"{info.vocab_size} tokens" if info.has_tokenizer else "none in the file"
    yield "template", "in the file" if info.has_chat_template else "none in the file"


def _table_lines(table: TensorTable) -> Iterator[tuple[str, str]]:
    for title, shares in (("type", table.by_type()), ("role", table.by_role())):
        yield title, f"{'':<20}{'tensors':>9}{'size':>12}{'bits a weight':>16}"
        for name, share in shares.items():
            yield "", _row(name, share)
    yield "total", _row("", table.total)


def _row(name: str, share: Share) -> str:
    size, bits = format_bytes(share.size_bytes), share.bits_per_weight
    return f"{name:<20}{share.tensors:>9}{size:>12}{bits:>16.3f}"


def _table_dict(table: TensorTable) -> dict[str, Any]:
    return {
        "types": {name: share.as_dict() for name, share in table.by_type().items()},
        "roles": {name: share.as_dict() for name, share in table.by_role().items()},
        "total": table.total.as_dict(),
    }


def _print(console: Console, lines: list[tuple[str, str]]) -> None:
    for name, text in lines:
        console.answer(f"{name:<25} {one_line(text)}".rstrip())
