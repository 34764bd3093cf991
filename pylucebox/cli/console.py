"""All printing. stdout carries the answer, stderr all else; with --json one object and nothing more."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from tqdm import tqdm

from pylucebox.core.errors import LuceboxError


@dataclass(frozen=True)
class Console:
    """How one command talks. quiet 1 hides progress, 2 all but the answer, warnings and errors."""

    json_output: bool = False
    quiet: int = 0
    verbose: bool = False
    progress: bool = True
    color: bool | None = None

    def note(self, text: str) -> None:
        """Print a line for people on stderr."""
        if self.quiet < 2:
            click.echo(text, err=True, color=self.color)

    def stage(self, name: str, result: str, seconds: float | None = None) -> None:
        """Print one finished step: what, result, seconds."""
        self.note(f"{name:<10} {result:<48} {'' if seconds is None else format_seconds(seconds):>8}".rstrip())

    def warn(self, text: str) -> None:
        """Print a warning on stderr; -qq does not hide it."""
        click.echo(click.style("warning: ", fg="yellow") + text, err=True, color=self.color)

    def answer(self, text: str) -> None:
        """Print the command's answer on stdout, unless --json asked for an object instead."""
        if not self.json_output:
            click.echo(text, color=self.color)

    def result(self, command: str, result: dict[str, Any]) -> None:
        """Print the JSON envelope of a success, when --json was given."""
        if self.json_output:
            click.echo(json.dumps({"schema": 1, "command": command, "ok": True, "result": result}))

    @contextmanager
    def bar(self, what: str, unit: str = "", scale: bool = False) -> Iterator["Bar | Ticks"]:
        """Show progress on stderr while the block runs: a bar on a terminal, else a line now and then.

        Silent when quiet, with --no-progress or LUCEBOX_NO_PROGRESS.
        """
        hidden = self.quiet > 0 or not self.progress or bool(os.environ.get("LUCEBOX_NO_PROGRESS"))
        if not hidden and not sys.stderr.isatty():
            yield Ticks(what, self.note)
            return
        with tqdm(
            desc=what, unit=unit, unit_scale=scale, leave=False, disable=hidden, file=sys.stderr
        ) as inner:
            yield Bar(inner)


class Bar:
    """A progress callback that moves a bar: call it with (done, total)."""

    def __init__(self, inner: "tqdm[Any]") -> None:
        self._inner = inner

    def __call__(self, done: int, total: int) -> None:
        self._inner.total = total
        self._inner.update(done - self._inner.n)


class Ticks:
    """A progress callback for logs: a line at most every TICK_S seconds, so that short steps print none."""

    TICK_S = 15.0

    def __init__(self, what: str, note: Callable[[str], None]) -> None:
        self._what, self._note, self._last = what, note, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= self.TICK_S and total:
            self._last = now
            self._note(f"{self._what:<10} {100 * done // total} %")


def format_seconds(seconds: float) -> str:
    """Return "1.9s" or "6m 31s"."""
    return f"{seconds:.1f}s" if seconds < 60 else f"{int(seconds // 60)}m {int(seconds % 60):02d}s"


def format_bytes(size_bytes: float) -> str:
    """Return a size in binary units, for example "31.2 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def print_error(error: LuceboxError, command: str, json_output: bool, color: bool | None = None) -> None:
    """Print an error for people on stderr, or as the JSON envelope on stdout."""
    if json_output:
        body = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "details": list(error.log_tail),
            "log": str(error.log_path) if error.log_path else None,
        }
        click.echo(json.dumps({"schema": 1, "command": command, "ok": False, "error": body}))
        return
    click.echo(click.style("error: ", fg="red") + error.message, err=True, color=color)
    for line in error.log_tail:
        click.echo(f"  {line}", err=True, color=color)
    if error.log_path:
        click.echo(f"log: {error.log_path}", err=True, color=color)
    if error.hint:
        click.echo(f"\nhint: {error.hint}", err=True, color=color)
