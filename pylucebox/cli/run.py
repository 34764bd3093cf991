"""lucebox run: serve a model with the built llama-server, with its drafter when there is one."""

import os
import re
import webbrowser
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pylucebox.cli.card import Plan, Served
from pylucebox.cli.console import Console, format_bytes, format_seconds
from pylucebox.cli.memory import MOST_TOKENS, plan_memory, refuse_overcommit
from pylucebox.cli.options import global_options
from pylucebox.core import paths, processes
from pylucebox.core.builds import find_build
from pylucebox.core.errors import LuceboxError, MissingError, RequestError, ServerError, one_line
from pylucebox.core.paths import Layout, find_layout
from pylucebox.core.receipts import BuildReceipt, fingerprint, sha256_file
from pylucebox.formats.inspect import ModelInfo
from pylucebox.measure.machine import describe_machine
from pylucebox.runtime import models
from pylucebox.runtime.client import Client
from pylucebox.runtime.models import inspect_model
from pylucebox.runtime.server import Server, ServerCommand, Waiting, free_port, start

T = TypeVar("T")

EXTRA = "pylucebox.extra"
EMBEDDED_TYPE = "bf16"  # every stored value of the embedded model is exact in it
WAIT_NOTE_S = 10.0
CPU_BACKENDS = ("cpu", "rpc")  # of a build's receipt: the others need a GPU
# Options of llama-server that ours decide, by the option or argument to use instead.
OWNED = {
    "MODEL": (
        *("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"),
        *("-dr", "--docker-repo", "--models-dir", "--models-preset"),
    ),
    "--drafter": (
        *("-md", "--model-draft", "--spec-draft-model"),
        *("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
    ),
    "--spec": ("--spec-type", "--spec-default"),
    "--draft-max": ("--spec-draft-n-max",),
    "--ctx-size": ("-c", "--ctx-size"),
    "--host": ("--host",),
    "--port": ("--port",),
    "--thinking": ("-rea", "--reasoning"),
    "--allow-cpu": ("--allow-cpu",),
}
# Short words for a whole model of somebody else's, which is downloaded and served in place of ours.
PRESET = re.compile(r"--(embd|fim|gpt|vision)-.+-(default|spec)")
FILE = click.Path(dir_okay=False, path_type=Path)


class PassThrough(click.Command):
    """A command that keeps everything after `--` as it is, for another program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[EXTRA] = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- LLAMA_SERVER_ARGS...]"]


@dataclass(frozen=True)
class Chosen:
    """A model to serve and where it comes from; drafter is the one that comes with it."""

    model: ModelInfo
    origin: str
    drafter: Path | None
    drafter_origin: str


@click.command(cls=PassThrough, short_help="Serve a model, with its drafter if it has one.")
@click.argument("model", required=False)
@click.option(
    "--drafter",
    type=FILE,
    help="DSpark drafter. Default: MODEL-dspark.gguf, else the only file beside it with dspark in its name.",
)
@click.option(
    "--spec",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Speculative decoding. auto: when a drafter fits; on: fail when none does.",
)
@click.option("--draft-max", type=click.IntRange(min=1), help="Drafts a cycle. Default: the drafter's block.")
@click.option(
    "--ctx-size", type=click.IntRange(1, MOST_TOKENS), help="Tokens. Default: what fits the memory."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."
)
@click.option(
    "--thinking",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Form of the answers. auto: the one the model was trained in.",
)
@click.option(
    "--open",
    "open_page",
    is_flag=True,
    help="Open the server's page in a browser; builds have none, `-- --path DIR` serves yours.",
)
@click.option(
    "--allow-cpu",
    is_flag=True,
    help="Run on the CPU what the device has no kernel or no room for; everything, where there is no device.",
)
@click.option(
    "--allow-overcommit", is_flag=True, help="Start although the memory plan exceeds what the machine offers."
)
@click.option("--target", metavar="NAME", help="Build to use. Default: LUCEBOX_TARGET, else the only one.")
@click.option("--no-card", is_flag=True, help="Print only the address.")
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    help="Seconds that loading may take.",
)
@global_options
def command(console: Console, **options: Any) -> int:
    """Serve MODEL: a GGUF file, a name of the models folder, or the embedded tiny test model.

    Everything after `--` goes to llama-server untouched. The address is printed on stdout once the server is
    ready. Ctrl-C stops the server; the exit code is the server's own.
    """
    extra: tuple[str, ...] = click.get_current_context().meta[EXTRA]
    _refuse_owned(extra)
    layout = find_layout()
    build = find_build(layout, options["target"])
    chosen = _choose(console, layout, options["model"])
    plan, command = _plan(options, build, chosen, extra)
    if not options["no_card"]:
        _print(console, plan.lines())
    refuse_overcommit(plan.memory, allowed=options["allow_overcommit"])
    with ExitStack() as stack:
        server = _start(console, stack, command, build, layout, options["start_timeout"])
        served = _inspect(console, server, options)
        if not options["no_card"]:
            _print(console, served.lines())
        console.answer(served.url)
        console.result("run", {**plan.as_dict(), **served.as_dict(), "pid": server.child.pid})
        try:
            if options["open_page"]:
                _open_page(console, server)
            code = server.wait(on_warning=console.warn)
        except KeyboardInterrupt:  # the usual end; --json has its object already
            return 130
    if code:
        console.warn(f"llama-server ended with exit code {code}, see {server.log_path}")
    return code


def _open_page(console: Console, server: Server) -> None:
    if not server.client.has_page():
        console.warn("--open: this build serves no web page, only the API")
    elif not webbrowser.open(server.url):
        console.warn("--open: there is no browser to open")


def _refuse_owned(extra: tuple[str, ...]) -> None:
    """llama-server reads option names with _ for - too, and takes no =; we refuse ours in any spelling."""
    for word in extra:
        name = word.partition("=")[0]
        name = name.replace("_", "-") if name.startswith("--") else name
        for ours, theirs in OWNED.items():
            if name in theirs or (ours == "MODEL" and PRESET.fullmatch(name)):
                raise click.UsageError(f"{word} after `--`: use lucebox's own {ours} instead")


def _choose(console: Console, layout: Layout, name: str | None) -> Chosen:
    if name is None:
        embedded = _embedded(console, layout)
        return Chosen(inspect_model(embedded.model), "embedded", embedded.drafter, "embedded")
    path = models.find_model(name, layout.models_dir)
    origin = "named" if path == models.named_path(name) else "models folder"
    model = inspect_model(path)
    if model.is_drafter:
        raise RequestError(f"{path}: is a drafter, not a model", hint=f"lucebox run MODEL --drafter {path}")
    return Chosen(model, origin, models.find_drafter(path), "beside the model")


def _embedded(console: Console, layout: Layout) -> models.EmbeddedModel:
    source = paths.PACKAGE_DIR / "data" / models.EMBEDDED_NAME
    embedded = models.embedded_model(source, layout.models_dir, _converter())
    if embedded.is_converted:
        return embedded
    from pylucebox.formats.convert import convert  # loads gguf: only the first run needs it
    from pylucebox.formats.ledger import Role

    embedded.model.parent.mkdir(parents=True, exist_ok=True)
    with paths.lock(layout.models_dir / f"{models.EMBEDDED_NAME}.lock"), console.bar("convert") as bar:
        for path, role in ((embedded.drafter, Role.DRAFTER), (embedded.model, Role.TARGET)):
            if not path.is_file():
                convert(source, EMBEDDED_TYPE, path, role, bar)
    models.remove_stale_conversions(embedded)
    console.note(f"converted   the embedded model to {EMBEDDED_TYPE}: {embedded.model.parent}")
    return embedded


def _converter() -> str:
    """Identify the conversion by the code that does it: a cache made by other code is not used."""
    code = sorted((paths.PACKAGE_DIR / "formats").glob("*.py"))
    return fingerprint({"type": EMBEDDED_TYPE, "code": {p.name: sha256_file(p) for p in code}})


def _plan(
    options: dict[str, Any], build: BuildReceipt, chosen: Chosen, extra: tuple[str, ...]
) -> tuple[Plan, ServerCommand]:
    speculation = _speculation(options, chosen)
    host, port, context = options["host"], options["port"], options["ctx_size"]
    thinking = {"auto": chosen.model.default_thinking, "on": True, "off": False}[options["thinking"]]
    command = ServerCommand(
        program=build.server_path,
        model=chosen.model.path,
        host=host,
        port=port or free_port(host.split(",")[0].strip()),
        context_tokens=context,
        drafter=speculation.drafter.path if speculation.drafter else None,
        draft_tokens=speculation.draft_tokens or None,
        thinking=thinking,
        allow_cpu=options["allow_cpu"],
        extra=extra,
    )
    plan = Plan(
        model=chosen.model,
        model_origin=chosen.origin,
        build=build,
        device=_device(build, command),
        memory=plan_memory(command, chosen.model, speculation),
        drafter=speculation.drafter,
        drafter_origin="named" if options["drafter"] else chosen.drafter_origin,
        draft_tokens=speculation.draft_tokens,
        why=speculation.why,
        template=_template(chosen.model, extra),
        passed_on=extra,
        environment=tuple(sorted(name for name in os.environ if name.startswith("LLAMA_ARG_"))),
    )
    return plan, command


def _speculation(options: dict[str, Any], chosen: Chosen) -> models.Speculation:
    named, wish = options["drafter"], options["spec"]
    for option in ("drafter", "draft_max"):
        if wish == "off" and options[option] is not None:
            raise click.UsageError(f"--{option.replace('_', '-')} has no meaning with --spec off")
    path = named or chosen.drafter
    drafter = inspect_model(path) if path and wish != "off" else None
    return models.choose_speculation(
        wish, chosen.model, drafter, named=named is not None, draft_tokens=options["draft_max"]
    )


def _device(build: BuildReceipt, command: ServerCommand) -> str:
    """Ask the server itself: it is what will run. Raises MissingError for a GPU build that finds no GPU."""
    lines = processes.run([build.server_path, "--list-devices"], error=ServerError).lines
    heading = next((i for i, line in enumerate(lines) if line.startswith("Available devices")), len(lines))
    found = [line.strip() for line in lines[heading + 1 :] if line.strip() not in ("", "(none)")]
    missing = [name for name in build.backends if name not in CPU_BACKENDS]
    if missing and not found and not (command.allow_cpu or _stays_on_cpu(command)):
        raise MissingError(
            f"the build of target {build.target} is made for {', '.join(missing)}, but finds no such device",
            hint="see `lucebox run --target cpu`, or run this build on the CPU with --allow-cpu",
        )
    return "; ".join(found) or f"CPU only: {describe_machine()}"


def _stays_on_cpu(command: ServerCommand) -> bool:
    layers = command.extra_value("-ngl", "--gpu-layers", "--n-gpu-layers")
    return layers == "0" or command.extra_value("-dev", "--device") == "none"


def _template(model: ModelInfo, extra: tuple[str, ...]) -> str:
    given = [option for option in ("--chat-template", "--chat-template-file") if option in extra]
    if given:
        return f"given with {given[-1]}"
    return (
        "the model file's own"
        if model.has_chat_template
        else "llama-server's default: the model file has none"
    )


def _start(
    console: Console,
    stack: ExitStack,
    command: ServerCommand,
    build: BuildReceipt,
    layout: Layout,
    timeout_s: float,
) -> Server:
    with console.bar("load", unit="B", scale=True) as bar:
        show = _waiting_display(console, bar)
        return stack.enter_context(start(command, build, layout.runs_dir, timeout_s=timeout_s, on_wait=show))


def _waiting_display(console: Console, bar: Callable[[int, int], None]) -> Callable[[Waiting], None]:
    told_s = 0.0

    def show(state: Waiting) -> None:
        nonlocal told_s
        if state.read_bytes is not None:
            bar(state.read_bytes, state.total_bytes)
        if state.elapsed_s - told_s >= WAIT_NOTE_S:
            told_s = state.elapsed_s
            read = "" if state.read_bytes is None else f"{format_bytes(state.read_bytes)} of "
            size = format_bytes(state.total_bytes)
            console.note(f"loading     {format_seconds(told_s)}, {read}{size}; {state.last_line}")

    return show


def _inspect(console: Console, server: Server, options: dict[str, Any]) -> Served:
    """Ask the ready server what it serves, and say where that differs from what was asked for."""
    command, client = server.command, server.client
    if command.drafter is not None and _told(client.speculates) is False:
        raise ServerError(
            "llama-server started without the drafter", hint="--spec off", log_path=server.log_path
        )
    context = _told(client.context_tokens)
    if options["ctx_size"] and context and context < options["ctx_size"]:
        console.warn(f"asked for {options['ctx_size']} tokens, the server gives a request {context}")
    thinking = _told(lambda: _served_form(client))
    if None not in (command.thinking, thinking) and thinking is not command.thinking:
        console.warn(f"asked for --thinking {options['thinking']}, but the chat template decides otherwise")
    return Served(command.url, context, thinking, server.log_path)


def _served_form(client: Client) -> bool | None:
    prompt = client.rendered_prompt([{"role": "user", "content": "?"}]).rstrip()
    return True if prompt.endswith("<think>") else False if prompt.endswith("</think>") else None


def _told(question: Callable[[], T]) -> T | None:
    """Return the answer, None when the server refuses it (an endpoint switched off after `--`)."""
    try:
        return question()
    except LuceboxError:
        return None


def _print(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    for name, text in lines:
        console.note(f"{name:<11} {one_line(text)}")
