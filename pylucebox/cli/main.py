"""The `lucebox` group: global options, lazy verbs, errors to exit codes."""

import difflib
import importlib
import io
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from pylucebox.cli.console import Console, print_error
from pylucebox.cli.failures import as_error, ending_like_interrupt, interrupted
from pylucebox.core.errors import LuceboxError, MissingError

# Verb -> module in this package. Modules load on use, so that `lucebox build` needs neither numpy nor gguf.
VERBS = ("build", "doctor", "run", "inspect", "convert", "quantize", "imatrix", "bench", "patches")

# What each variable does, as docs/commands.md tells it.
KNOWN_ENVIRONMENT = {
    "LUCEBOX_HOME": "Folder for converted models, logs of runs and, when installed, sources and builds. "
    "Default: the user's cache folder.",
    "LUCEBOX_MODELS": "The models folder, where `run` and `imatrix` look for names. "
    "Default: `models` in LUCEBOX_HOME.",
    "LUCEBOX_TARGET": "Target of commands that are given none.",
    "LUCEBOX_NO_PROGRESS": "Set to anything: never draw progress bars.",
    "LUCEBOX_REQUIRE": "For the test suite: fail, do not skip, where one of these is missing: "
    "native, hip, nvcc, clang, gpu.",
}


class Verbs(click.Group):
    """A group whose commands live one in a module named like the verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"pylucebox.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no such command '{args[0]}'" + (f" (did you mean {close[0]}?)" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pylucebox", prog_name="lucebox")
@click.option("-v", "--verbose", is_flag=True, help="Print every command that is run and its output.")
@click.option(
    "-q", "--quiet", count=True, help="Hide progress; -qq hides all but the answer, warnings and errors."
)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--color/--no-color", default=None, help="Force or forbid colour (default: when a terminal).")
@click.option("--no-progress", is_flag=True, help="Never draw progress bars.")
@click.option(
    "-C",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work as if started in DIR.",
)
@click.pass_context
def group(
    ctx: click.Context,
    verbose: bool,
    quiet: int,
    json_output: bool,
    color: bool | None,
    no_progress: bool,
    directory: Path | None,
) -> None:
    """Run DeepSeek-V4-Flash on one box: build the patched llama.cpp, convert models, serve them."""
    if directory:
        os.chdir(directory)
    _check_current_folder()
    ctx.obj = Console(
        json_output=json_output,
        quiet=quiet,
        verbose=verbose,
        progress=not no_progress,
        color=_color_or_environment(color),
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    logging.getLogger("pylucebox").setLevel(logging.DEBUG if verbose else logging.WARNING)
    for name in sorted(os.environ):
        if name.startswith("LUCEBOX_") and name not in KNOWN_ENVIRONMENT:
            ctx.obj.warn(f"unknown environment variable {name} is ignored")


def _check_current_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as gone:
        raise MissingError(
            "the current folder no longer exists", hint="cd to another, or use -C DIR"
        ) from gone


def main(argv: list[str] | None = None) -> Any:
    """Entry point: run a verb and turn errors into exit codes."""
    words = sys.argv[1:] if argv is None else argv
    own = words[: words.index("--")] if "--" in words else words
    json_output = "--json" in own
    command = _named_command(own)
    color = _wanted_color(own)
    _keep_odd_names()
    try:
        with ending_like_interrupt():
            status = group.main(args=words, prog_name="lucebox", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        error = interrupted()
    except Exception as bad:
        if isinstance(bad, NoArgsIsHelpError) and not json_output:
            click.echo(bad.format_message(), err=True)
            sys.exit(bad.exit_code)
        error = as_error(bad, command)
    else:
        sys.exit(status if isinstance(status, int) else 0)
    if json_output or error.exit_code != 130:
        _print_error(error, command, json_output, color)
    sys.exit(error.exit_code)


def _print_error(error: LuceboxError, command: str, json_output: bool, color: bool | None) -> None:
    """Print an error; where stdout takes no object (a full disk, a closed pipe), on stderr for people."""
    try:
        print_error(error, command, json_output, color)
    except OSError:
        with suppress(OSError):
            print_error(error, command, False, color)


def _named_command(words: list[str]) -> str:
    """Return the command that a command line names, as results call it: "build", "bench run", "" for none."""
    start = next((i for i, word in enumerate(words) if word in VERBS), len(words))
    command = " ".join(words[start : start + 1])
    below = words[start + 1 : start + 2]
    is_group = command in ("bench", "patches")
    return f"{command} {below[0]}" if is_group and below and below[0].isalpha() else command


def _color_or_environment(color: bool | None) -> bool | None:
    """Return what --color or --no-color said, else False with NO_COLOR, else None: a terminal decides."""
    return False if color is None and os.environ.get("NO_COLOR") else color


def _wanted_color(words: list[str]) -> bool | None:
    """Return the choice of colour of a command line that may be too wrong for click to read it."""
    given = [word == "--color" for word in words if word in ("--color", "--no-color")]
    return _color_or_environment(given[-1] if given else None)


def _keep_odd_names() -> None:
    """Let stdout print every file name, also one that is not valid UTF-8 or not in the terminal's charset."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_unicode else "backslashreplace")
