"""Programs that run beside us for hours: own session, output to a file, an end that is ours to give."""

import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pylucebox.core.errors import MissingError

logger = logging.getLogger(__name__)

EXEC_CHILD = Path(__file__).with_name("exec_child.py")


class Child:
    """A long-running program in a session of its own that cannot outlive us, not even after kill -9 (Linux).

    Its output goes straight to a file, so that nothing blocks when nobody reads. Start it from the main
    thread: the kernel ties its life to the thread that started it.
    """

    def __init__(self, argv: Sequence[str | Path], *, log_path: Path, env: Mapping[str, str] | None = None):
        """Start `argv`; stdout and stderr are appended to `log_path`. env: added to ours."""
        words = [str(a) for a in argv]
        if not os.access(words[0], os.X_OK):
            raise MissingError(f"{words[0]}: no such program", hint="run `lucebox build`")
        logger.debug("start: %s", shlex.join(words))
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(EXEC_CHILD), str(os.getpid()), *words],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code as a shell would report it (128 + signal number), None while it runs."""
        return _shell_code(self._process.poll())

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end and return the exit code, None when `timeout_s` passes first."""
        try:
            return _shell_code(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Send a signal to the program and everything it started."""
        if self._process.poll() is None:
            os.killpg(self.pid, number)

    def stop(self, grace_s: float) -> int:
        """Ask the program to end, insist after `grace_s` seconds or on Ctrl-C, and return its exit code."""
        try:
            self.send(signal.SIGTERM)
            code = self.wait(grace_s)
        except KeyboardInterrupt:
            code = None
        if code is None:
            self.send(signal.SIGKILL)
            code = self.wait()
        assert code is not None
        return code


def _shell_code(status: int | None) -> int | None:
    return 128 - status if status is not None and status < 0 else status
