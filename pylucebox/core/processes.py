"""The only place that starts programs: argv lists, never a shell, output teed to a log file."""

import logging
import os
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import BuildError, LuceboxError, MissingError

logger = logging.getLogger(__name__)

TAIL_LINES = 12


@dataclass(frozen=True)
class Output:
    """What a finished program printed (stdout and stderr together, in order)."""

    lines: tuple[str, ...]


def run(
    argv: Sequence[str | Path],
    *,
    log_path: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    error: type[LuceboxError] = BuildError,
    what: str | None = None,
) -> Output:
    """Run `argv` to its end and return its output.

    log_path: file that receives the command and every line. on_line: called with each line as it comes.
    env: added to ours. Raises `error`, carrying the log's path and tail, when the exit code is not 0, and
    MissingError when the program does not exist.
    """
    words = [str(a) for a in argv]
    logger.debug("run: %s", shlex.join(words))
    try:
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as missing:
        raise MissingError(
            f"{words[0]}: program not found", hint="install it and run the command again"
        ) from missing
    lines = _collect(child, words, log_path, on_line)
    status = child.wait()
    if status != 0:
        tail = deque(lines, maxlen=TAIL_LINES)
        raise error(
            f"{what or Path(words[0]).name} failed (exit {status})", log_path=log_path, log_tail=tuple(tail)
        )
    return Output(tuple(lines))


def _collect(
    child: "subprocess.Popen[str]",
    words: list[str],
    log_path: Path | None,
    on_line: Callable[[str], None] | None,
) -> list[str]:
    lines: list[str] = []
    assert child.stdout is not None
    try:
        with (log_path or Path(os.devnull)).open("w", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(words)}\n")
            for raw in child.stdout:
                line = raw.rstrip("\n")
                log.write(line + "\n")
                lines.append(line)
                logger.debug("%s", line)
                if on_line:
                    on_line(line)
    except BaseException:
        child.kill()
        child.wait()
        raise
    return lines
