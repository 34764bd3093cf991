"""One tree of errors. The class gives the exit code; the instance says what failed and what to try.

Raise near the cause; `cli.main` catches once and prints. Exit code 2 is click's (wrong usage), 130 is Ctrl-C.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

MAX_MESSAGE = 2000  # characters; names and values from files may be of any length


def one_line(text: str) -> str:
    """Return `text` with what does not print escaped and, when it is very long, its middle left out.

    Messages quote names and values from files, which may hold line ends and codes that steer a terminal.
    """
    if len(text) > MAX_MESSAGE:
        half = MAX_MESSAGE // 2
        text = f"{text[:half]} … {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class LuceboxError(Exception):
    """A failure the user can act on.

    message: one line that names the file, the field and what was found there.
    hint: the next command or change to try. log_path: full output of the step that failed.
    log_tail: last lines of that output, printed below the message.
    """

    exit_code = 1
    code = "error"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        log_path: Path | None = None,
        log_tail: Sequence[str] = (),
    ) -> None:
        super().__init__(one_line(message))
        self.message = one_line(message)
        self.hint = hint
        self.log_path = log_path
        self.log_tail = tuple(log_tail)


class RequestError(LuceboxError):
    """A request that cannot be met: bad input file, impossible option value."""

    exit_code = 1
    code = "request"


class MissingError(LuceboxError):
    """Something this machine lacks: a compiler, a build, disk space."""

    exit_code = 3
    code = "missing"


class IntegrityError(LuceboxError):
    """A hash, patch or receipt that does not agree."""

    exit_code = 4
    code = "integrity"


class BuildError(LuceboxError):
    """Configure or compile failed."""

    exit_code = 5
    code = "build"


class ServerError(LuceboxError):
    """The server or a model failed to start."""

    exit_code = 6
    code = "server"


class GateError(LuceboxError):
    """A gate or check fell short."""

    exit_code = 7
    code = "gate"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return " (did you mean X?)" for a near miss among `known`, else ""."""
    close = get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if not close:
        return ""
    original = next(k for k in known if k.lower() == close[0])
    return f" (did you mean {original}?)"
