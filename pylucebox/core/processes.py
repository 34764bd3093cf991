"""The only place that starts programs: argv lists, never a shell, output teed to a log file."""

import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylucebox.core.errors import BuildError, LuceboxError, MissingError, RequestError

logger = logging.getLogger(__name__)

TAIL_LINES = 12
END_GRACE_S = 5.0  # for a program to end what it has started


@dataclass(frozen=True)
class Output:
    """What a finished program printed (stdout and stderr together, in order)."""

    lines: tuple[str, ...]


def run(
    argv: Sequence[str | Path],
    *,
    log_path: Path | None = None,
    errors_path: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    on_line: Callable[[str], None] | None = None,
    error: type[LuceboxError] = BuildError,
    what: str | None = None,
    timeout_s: float | None = None,
) -> Output:
    """Run `argv` to its end and return its output.

    timeout_s: when it and all that it started are killed, which counts as a failure.
    log_path: file that receives the command and every line. on_line: called with each line as it comes.
    errors_path: file that takes stderr, so that the output is stdout alone.
    env: added to ours, None removes a variable. Raises `error`, carrying the log's path and tail, when the
    exit code is not 0, and MissingError when the program does not exist.
    """
    words = [str(a) for a in argv]
    how = {"cwd": cwd, "env": _environment(env), "stdin": subprocess.DEVNULL}
    child = _start(words, errors_path, start_new_session=timeout_s is not None, **how)
    late = threading.Event()
    clock = threading.Timer(timeout_s, _kill_late, (child, late)) if timeout_s else None
    if clock:
        clock.start()
    try:
        lines = _collect(child, words, log_path, on_line)
        status = child.wait()
    finally:
        if clock:
            clock.cancel()
    if status != 0:
        last = _read_lines(errors_path) if errors_path else lines
        raise error(
            f"{what or Path(words[0]).name} "
            + (f"did not end in {timeout_s:g} s" if late.is_set() else f"failed (exit {status})"),
            log_path=errors_path or log_path,
            log_tail=tuple(last[-TAIL_LINES:]),
        )
    return Output(tuple(lines))


def _kill_late(child: "subprocess.Popen[str]", late: threading.Event) -> None:
    """Kill a program that leads a process group of its own, with the group: a wrapper's compiler too."""
    late.set()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def prefer_libraries(folder: Path) -> dict[str, str | None]:
    """Return the environment in which a program finds shared libraries in `folder` before any other."""
    others = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), *([others] if others else [])])}


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    return {k: v for k, v in {**os.environ, **(changes or {})}.items() if v is not None}


class Conversation:
    """A program that stays resident and answers each line it is given with one line.

    Use as a context manager: leaving it closes the program's input and waits for its end. stderr goes to
    `errors_path`; env: as in `run`. Raises MissingError when the program does not exist.
    """

    def __init__(
        self, argv: Sequence[str | Path], errors_path: Path, env: Mapping[str, str | None] | None = None
    ) -> None:
        self._errors_path = errors_path
        words = [str(a) for a in argv]
        self._name = Path(words[0]).name
        self._child = _start(words, errors_path, env=_environment(env), stdin=subprocess.PIPE)

    def ask(self, line: str) -> str:
        """Send one line and return the answer. Raises RequestError when the program ended instead."""
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            status = self._child.wait()
            raise RequestError(
                f"{self._name} ended (exit {status}) instead of answering {line!r}",
                log_path=self._errors_path,
                log_tail=tuple(_read_lines(self._errors_path)[-TAIL_LINES:]),
            )
        return answer.rstrip("\n")

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._child.kill()
        with suppress(BrokenPipeError):
            self._child.communicate()


def _start(words: list[str], errors_path: Path | None, **how: Any) -> "subprocess.Popen[str]":
    logger.debug("run: %s", shlex.join(words))
    with ExitStack() as files:
        errors = files.enter_context(errors_path.open("w")) if errors_path else subprocess.STDOUT
        try:
            return subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace", **how
            )
        except FileNotFoundError as missing:
            raise MissingError(
                f"{words[0]}: program not found", hint="install it and run the command again"
            ) from missing
        except OSError as bad:  # not executable, not a program of this machine
            raise MissingError(
                f"{words[0]}: cannot be started: {bad.strerror or bad}",
                hint="install it again and run the command again",
            ) from bad


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _collect(
    child: "subprocess.Popen[str]",
    words: list[str],
    log_path: Path | None,
    on_line: Callable[[str], None] | None,
) -> list[str]:
    lines: list[str] = []
    assert child.stdout is not None
    try:
        where = log_path or Path(os.devnull)
        with where.open("w", encoding="utf-8", errors="surrogateescape", buffering=1) as log:
            log.write(f"$ {shlex.join(words)}\n")
            for raw in child.stdout:
                line = raw.rstrip("\n")
                log.write(line + "\n")
                lines.append(line)
                logger.debug("%s", line)
                if on_line:
                    on_line(line)
    except BaseException:
        _end(child)
        raise
    return lines


def _end(child: "subprocess.Popen[str]") -> None:
    """Ask a program to end, so that it ends its own (ninja its compilers), and insist after a while."""
    try:
        child.terminate()
        child.wait(END_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()
