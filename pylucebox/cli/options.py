"""Options every verb takes, before its name or after: `lucebox --json build`, `lucebox build --json`."""

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from pylucebox.cli.console import Console


def global_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -v, -q, --json, --no-progress to a verb; it gets the merged Console as first argument."""

    @click.option("--json", "json_output", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every command that is run and its output.")
    @click.option(
        "-q", "--quiet", count=True, help="Hide progress; -qq hides all but the answer, warnings and errors."
    )
    @click.option("--no-progress", is_flag=True, help="Never draw progress bars.")
    @functools.wraps(function)
    def wrapper(json_output: bool, verbose: bool, quiet: int, no_progress: bool, **options: Any) -> Any:
        console: Console = click.get_current_context().obj or Console()
        if verbose:
            logging.getLogger("pylucebox").setLevel(logging.DEBUG)
        merged = replace(
            console,
            json_output=console.json_output or json_output,
            verbose=console.verbose or verbose,
            quiet=max(console.quiet, quiet),
            progress=console.progress and not no_progress,
        )
        return function(merged, **options)

    return wrapper
