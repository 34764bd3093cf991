"""What ends a command early: signals that count as Ctrl-C, and errors that no stage has named."""

import errno
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click
from click.exceptions import NoArgsIsHelpError

from pylucebox.core.errors import LuceboxError, MissingError, RequestError

logger = logging.getLogger(__name__)

# The user's words are wrong, not the machine.
REQUEST_ERRNOS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)


@contextmanager
def ending_like_interrupt() -> Iterator[None]:
    """Treat SIGTERM and a closed terminal like Ctrl-C: children are ended and partial files removed.

    A signal that is ignored (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in old.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def as_error(bad: Exception, command: str) -> LuceboxError:
    """Return any exception as an error with a line for people, a code and an exit code.

    What the system refused names the file; anything else is a fault of ours and says so.
    """
    logger.debug("%s", type(bad).__name__, exc_info=bad)
    if isinstance(bad, LuceboxError):
        return bad
    if isinstance(bad, click.ClickException):
        context = bad.ctx if isinstance(bad, click.UsageError) else None
        path = context.command_path if context else f"lucebox {command}".strip()
        message = "Missing command." if isinstance(bad, NoArgsIsHelpError) else bad.format_message()
        usage = LuceboxError(message, hint=f"{path} --help")
        usage.code, usage.exit_code = "usage", bad.exit_code
        return usage
    if isinstance(bad, MemoryError):
        return MissingError("not enough memory", hint="end other programs, or use a larger machine")
    if isinstance(bad, OSError) and bad.strerror:
        kind = RequestError if bad.errno in REQUEST_ERRNOS else MissingError
        where = f"{bad.filename}: " if bad.filename else ""
        return kind(f"{where}{bad.strerror}", hint="check the path, its permissions and the free disk space")
    ours = LuceboxError(
        f"a fault of lucebox: {type(bad).__name__}: {bad}",
        hint="run it again with -v, and report what it prints",
    )
    ours.code = "internal"
    return ours


def interrupted() -> LuceboxError:
    """Return the error that stands for Ctrl-C."""
    error = LuceboxError("interrupted")
    error.code, error.exit_code = "interrupted", 130
    return error
