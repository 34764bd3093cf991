"""Starts llama-server, waits until it answers, and makes sure that it ends with us."""

import json
import logging
import os
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pylucebox.core.child import Child
from pylucebox.core.errors import LuceboxError, ServerError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.runtime.client import Client

logger = logging.getLogger(__name__)

KEEP_RUNS = 20
TAIL_LINES = 10
POLL_S = 0.05
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}  # file names may be no valid UTF-8
STOP_GRACE_S = 10.0
SILENT_DRAFTER_TOKENS = 64  # so many tokens without one draft mean that the drafter is not at work
DRAFT_WATCH_S = 5.0
SECRET_OPTIONS = ("--api-key", "--hf-token", "-hft")
# What llama-server (LLAMA_ARG_X is option --x) and its back-ends read from the environment.
SERVER_ENVIRONMENT = ("LLAMA_ARG_", "GGML_", "CUDA_VISIBLE_", "HIP_VISIBLE_", "ROCR_VISIBLE_", "HSA_")


@dataclass(frozen=True)
class ServerCommand:
    """Everything that decides the command line of one server.

    host: one address or several, comma-separated. context_tokens: None lets the server fit it to the memory.
    drafter: DSpark drafter file, None for no speculation. draft_tokens: drafts a cycle, None for the server's
    default. thinking: None leaves the chat template's own default. allow_cpu: run on the CPU what the device
    has no kernel or room for; refused otherwise. extra: handed on untouched after ours.
    """

    program: Path
    model: Path
    host: str = "127.0.0.1"
    port: int = 8080
    context_tokens: int | None = None
    drafter: Path | None = None
    draft_tokens: int | None = None
    thinking: bool | None = None
    allow_cpu: bool = False
    extra: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """Return the command line. What we decide is stated always: no LLAMA_ARG_* variable decides it."""
        words = [str(self.program), "--model", str(self.model), "--host", self.host, "--port", str(self.port)]
        if self.context_tokens is not None:  # 0 would forbid the server to fit the context to the memory
            words += ["--ctx-size", str(self.context_tokens)]
        if self.drafter is None:
            words += ["--spec-type", "none"]
        else:
            words += ["--spec-type", "draft-dspark", "--spec-draft-model", str(self.drafter)]
            if self.draft_tokens is not None:
                words += ["--spec-draft-n-max", str(self.draft_tokens)]
        words += ["--reasoning", {None: "auto", True: "on", False: "off"}[self.thinking]]
        if self.allow_cpu:
            words.append("--allow-cpu")
        if "--metrics" not in self.extra:
            words.append("--metrics")
        return [*words, *self.extra]

    def record(self) -> str:
        """Return the command line for people and logs, secrets replaced."""
        words = self.argv()
        for index in range(1, len(words)):
            if words[index - 1] in SECRET_OPTIONS:
                words[index] = "***"
        return shlex.join(words)

    def extra_value(self, *names: str) -> str | None:
        """Return the last value given to an option of these names among the further arguments."""
        values = [value for name, value in zip(self.extra, self.extra[1:], strict=False) if name in names]
        return values[-1] if values else None

    @property
    def hosts(self) -> list[str]:
        return [host.strip() for host in self.host.split(",")]

    @property
    def url(self) -> str:
        """The address at which this machine reaches the server."""
        scheme = "https" if self.extra_value("--ssl-cert-file") else "http"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.hosts[0], self.hosts[0])
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}{self.extra_value('--api-prefix') or ''}"

    def client(self) -> Client:
        """Return a client with the key among the further arguments or in the environment, if there is one."""
        keys = self.extra_value("--api-key") or os.environ.get("LLAMA_API_KEY") or ""
        return Client(self.url, api_key=keys.split(",")[0] or None)


@dataclass(frozen=True)
class Waiting:
    """How far a server has come in loading. read_bytes is None where the system does not tell."""

    elapsed_s: float
    read_bytes: int | None
    total_bytes: int
    last_line: str


@dataclass(frozen=True)
class Server:
    """A server that is ready. It is stopped when the block of `start` ends."""

    command: ServerCommand
    client: Client
    child: Child
    run_dir: Path

    @property
    def url(self) -> str:
        return self.command.url

    @property
    def log_path(self) -> Path:
        return self.run_dir / "server.log"

    def wait(self, on_warning: Callable[[str], None] = logger.warning) -> int:
        """Wait for the server's end and return its exit code.

        on_warning: called once if the server speculates, but proposes nothing in its first tokens.
        """
        watching = self.command.drafter is not None
        while watching and (code := self.child.wait(DRAFT_WATCH_S)) is None:
            watching = not self._drafter_judged(on_warning)
        if not watching:
            code = self.child.wait()
        assert code is not None
        return code

    def _drafter_judged(self, on_warning: Callable[[str], None]) -> bool:
        with suppress(LuceboxError):
            counters = self.client.draft_counters()
            if counters.drafted:
                return True
            if counters.predicted_tokens >= SILENT_DRAFTER_TOKENS:
                on_warning(f"the drafter proposed nothing in {counters.predicted_tokens} tokens")
                return True
        return False


@contextmanager
def start(
    command: ServerCommand,
    receipt: BuildReceipt,
    runs_dir: Path,
    *,
    timeout_s: float = 900.0,
    on_wait: Callable[[Waiting], None] | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it when the block ends, however that happens.

    Command line, environment, build receipt and output are kept in a new folder of `runs_dir`. SIGTERM and
    SIGHUP are handed on while the block runs. Raises ServerError, with the last lines and the path of the
    log, when the server ends or `timeout_s` passes before it is ready, or the address is taken.
    """
    for host in command.hosts:
        check_address(host, command.port)
    run_dir = make_run_folder(runs_dir, command, receipt)
    child = Child(command.argv(), log_path=run_dir / "server.log")
    server = Server(command, command.client(), child, run_dir)
    try:
        with _forwarded_signals(child):
            _wait_ready(server, timeout_s, on_wait)
            yield server
    finally:
        child.stop(STOP_GRACE_S)


def free_port(host: str) -> int:
    """Return a TCP port of `host` that nobody uses now."""
    with _bound_socket(host, 0) as listener:
        return int(listener.getsockname()[1])


def check_address(host: str, port: int) -> None:
    """Raise ServerError when `port` of `host` cannot be ours: a stranger must not pass for our server."""
    _bound_socket(host, port).close()


def _bound_socket(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can look like this
        if listener is not None:
            listener.close()
        raise ServerError(
            f"cannot listen at {host} port {port}: {getattr(error, 'strerror', None) or error}",
            hint="choose another --port (0 takes a free one) or --host",
        ) from error
    return listener


def make_run_folder(runs_dir: Path, command: ServerCommand, receipt: BuildReceipt) -> Path:
    """Create the folder of a new run with command line, environment and receipt; drop old ones."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    _prune_runs(runs_dir, KEEP_RUNS - 1)
    folder = runs_dir / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    (folder / "command").write_text(command.record() + "\n", **TEXT)
    (folder / "env").write_text(_recorded_environment(os.environ), **TEXT)
    content = {**asdict(receipt), "bin_dir": str(receipt.bin_dir)}
    (folder / "receipt").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder


def _recorded_environment(environment: Mapping[str, str]) -> str:
    names = sorted(n for n in environment if n.startswith(SERVER_ENVIRONMENT) and "KEY" not in n)
    return "".join(f"{name}={environment[name]}\n" for name in names)


def _prune_runs(runs_dir: Path, keep: int) -> None:
    folders = sorted(p for p in runs_dir.iterdir() if (p / "command").is_file())
    for folder in folders[: max(0, len(folders) - keep)]:
        if not _is_alive(folder.name.rpartition("-")[2]):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _forwarded_signals(child: Child) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (signal.SIGTERM, signal.SIGHUP)
    numbers = [n for n in known if signal.getsignal(n) is not signal.SIG_IGN]  # nohup stays in force
    before = [signal.signal(number, lambda number, _: child.send(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _wait_ready(server: Server, timeout_s: float, on_wait: Callable[[Waiting], None] | None) -> None:
    total_bytes = sum(p.stat().st_size for p in (server.command.model, server.command.drafter) if p)
    began = time.monotonic()
    while True:
        code = server.child.poll()
        if code is not None:
            raise _failure(server, f"llama-server ended (exit {code}) before it was ready")
        if server.client.is_ready() and server.child.poll() is None:
            return
        elapsed_s = time.monotonic() - began
        if elapsed_s > timeout_s:
            raise _failure(server, f"llama-server was not ready after {timeout_s:g} s")
        if on_wait:
            last = "".join(last_lines(server.log_path, 1))
            on_wait(Waiting(elapsed_s, read_bytes(server.child.pid, total_bytes), total_bytes, last))
        time.sleep(POLL_S)


def _failure(server: Server, message: str) -> ServerError:
    return ServerError(
        message,
        hint="read the log; every argument after `--` goes to llama-server as it is",
        log_path=server.log_path,
        log_tail=last_lines(server.log_path, TAIL_LINES),
    )


def last_lines(path: Path, count: int) -> Sequence[str]:
    """Return the last `count` lines of a log that may still be growing."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 512 * count))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-count:])


def read_bytes(pid: int, total_bytes: int) -> int | None:
    """Return how much of its model files a process has read: by read(2), or mapped and present in memory.

    Source: rchar of /proc/PID/io and RssFile of /proc/PID/status. None where the system does not tell.
    """
    try:
        counted = _proc_number(Path(f"/proc/{pid}/io"), "rchar:")
        mapped = _proc_number(Path(f"/proc/{pid}/status"), "RssFile:") * 1024
    except (OSError, StopIteration):
        return None
    return min(max(counted, mapped), total_bytes)


def _proc_number(path: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(field))
