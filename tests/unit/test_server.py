"""The launcher against a stand-in for llama-server: waiting, failing, stopping, what is kept of a run."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pylucebox.core.errors import MissingError, RequestError, ServerError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.runtime.client import Client, DraftCounters
from pylucebox.runtime.server import (
    KEEP_RUNS,
    ServerCommand,
    Waiting,
    check_address,
    free_port,
    make_run_folder,
    start,
)

FAKE_SERVER = Path(__file__).parent.parent / "fake_server.py"
RECEIPT = BuildReceipt("0f" * 32, "cpu", 11549, "00", ("CPU",), "gcc", FAKE_SERVER.parent)
BOUND_S = 10.0  # far above what any of these takes; only a failure waits so long


@pytest.fixture
def command(tmp_path: Path) -> ServerCommand:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * 100)
    return ServerCommand(FAKE_SERVER, model, port=free_port("127.0.0.1"))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda **faults: monkeypatch.setenv("FAKE_SERVER", json.dumps(faults))


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_ready_then_stopped_and_port_free(command: ServerCommand, tmp_path: Path, plan) -> None:
    plan(load_s=0.4)
    seen: list[Waiting] = []
    with start(command, RECEIPT, tmp_path / "runs", on_wait=seen.append) as server:
        assert server.client.is_ready()
        assert server.client.context_tokens() == 2048
        pid = server.child.pid
        assert os.getsid(pid) == pid != os.getsid(0)
    assert is_gone(pid)
    check_address("127.0.0.1", command.port)
    assert any(w.last_line.startswith(("loading", '"GET /health')) for w in seen)
    assert all(w.total_bytes == 100 and (w.read_bytes is None or w.read_bytes <= 100) for w in seen)


def test_the_run_folder_says_what_was_started(command, tmp_path, plan, monkeypatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    monkeypatch.setenv("LLAMA_ARG_API_KEY_FILE", "/secret")
    extra = ("--api-key", "hush", "--alias", "a b")
    with start(ServerCommand(**{**vars(command), "extra": extra}), RECEIPT, tmp_path / "runs") as server:
        folder = server.run_dir
    line = (folder / "command").read_text()
    assert "hush" not in line and "--api-key '***' --alias 'a b'" in line
    assert (folder / "env").read_text() == "LLAMA_ARG_THREADS=3\n"
    assert json.loads((folder / "receipt").read_text())["id"] == RECEIPT.id
    assert "loading" in (folder / "server.log").read_text()
    assert folder.stat().st_mode & 0o077 == 0


def test_only_the_last_runs_are_kept(command: ServerCommand, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for index in range(KEEP_RUNS + 4):
        old = tmp_path / f"20200101-000000-{index:06d}-{gone.pid}"
        old.mkdir()
        (old / "command").touch()
    in_use = tmp_path / f"20190101-000000-000000-{os.getpid()}"
    in_use.mkdir()
    (in_use / "command").touch()
    unrelated = tmp_path / "notes"
    unrelated.mkdir()
    made = make_run_folder(tmp_path, command, RECEIPT)
    left = sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("2020"))
    assert len(left) == KEEP_RUNS - 1 and left[-1].split("-")[2] == f"{KEEP_RUNS + 3:06d}"
    assert made.is_dir() and in_use.is_dir() and unrelated.is_dir()


def test_a_server_that_ends_while_loading(command: ServerCommand, tmp_path: Path, plan) -> None:
    plan(fail=3, lines=[f"line {i}" for i in range(30)])
    with pytest.raises(ServerError) as caught, start(command, RECEIPT, tmp_path / "runs"):
        pytest.fail("never ready")
    assert caught.value.message == "llama-server ended (exit 3) before it was ready"
    assert caught.value.log_tail == tuple(f"line {i}" for i in range(20, 30))
    assert caught.value.log_path is not None and caught.value.log_path.is_file()
    assert caught.value.exit_code == 6


def test_a_server_that_never_gets_ready(command: ServerCommand, tmp_path: Path, plan) -> None:
    plan(load_s=60)
    with (
        pytest.raises(ServerError, match=r"not ready after 0\.4 s") as caught,
        start(command, RECEIPT, tmp_path / "runs", timeout_s=0.4),
    ):
        pytest.fail("never ready")
    assert caught.value.log_path is not None and caught.value.log_path.is_file()
    assert until(lambda: not Client(command.url).is_ready())


def test_a_missing_program(command: ServerCommand, tmp_path: Path) -> None:
    absent = ServerCommand(tmp_path / "llama-server", command.model, port=command.port)
    with pytest.raises(MissingError, match="no such program"), start(absent, RECEIPT, tmp_path / "runs"):
        pytest.fail("never ready")


def test_a_taken_port_is_refused_before_anything_starts(command: ServerCommand, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", command.port))
        other.listen()
        taken = pytest.raises(ServerError, match=f"port {command.port}: Address already in use")
        with taken, start(command, RECEIPT, tmp_path / "runs"):
            pytest.fail("a stranger's server passed for ours")
    assert not (tmp_path / "runs").exists()


def test_a_host_that_is_not_ours(command: ServerCommand, tmp_path: Path) -> None:
    elsewhere = ServerCommand(FAKE_SERVER, command.model, host="127.0.0.1, 192.0.2.1", port=command.port)
    with pytest.raises(ServerError, match=r"192\.0\.2\.1 port"), start(elsewhere, RECEIPT, tmp_path / "runs"):
        pytest.fail("not reachable")


def test_stop_insists(command: ServerCommand, tmp_path: Path, plan) -> None:
    plan(ignore_term=True)
    with start(command, RECEIPT, tmp_path / "runs") as server:
        assert server.child.stop(grace_s=0.2) == 128 + signal.SIGKILL


def test_an_error_inside_the_block_stops_the_server(command: ServerCommand, tmp_path: Path, plan) -> None:
    with pytest.raises(KeyboardInterrupt), start(command, RECEIPT, tmp_path / "runs") as server:
        raise KeyboardInterrupt
    assert server.child.poll() == 0
    assert is_gone(server.child.pid)


def test_sigterm_is_handed_on_and_the_server_decides_the_exit_code(command, tmp_path, plan) -> None:
    plan(exit_code=7)
    before = signal.getsignal(signal.SIGTERM)
    with start(command, RECEIPT, tmp_path / "runs") as server:
        os.kill(os.getpid(), signal.SIGTERM)
        assert server.wait() == 7
    assert signal.getsignal(signal.SIGTERM) is before


LAUNCHER = """
import json, sys
from pathlib import Path
from pylucebox.core.receipts import BuildReceipt
from pylucebox.runtime.server import ServerCommand, start
program, model, port, runs = sys.argv[1:]
receipt = BuildReceipt("0", "cpu", 1, "0", (), "", Path(program).parent)
with start(ServerCommand(Path(program), Path(model), port=int(port)), receipt, Path(runs)) as server:
    print(server.child.pid, flush=True)
    server.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_no_orphan_after_kill_9_of_the_launcher(command: ServerCommand, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LAUNCHER, FAKE_SERVER, command.model, str(command.port), tmp_path / "runs"]
    launcher = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    assert not is_gone(pid)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert until(lambda: is_gone(pid))
    check_address("127.0.0.1", command.port)


def test_a_silent_drafter_is_reported_once(command, tmp_path, plan, monkeypatch) -> None:
    monkeypatch.setattr("pylucebox.runtime.server.DRAFT_WATCH_S", 0.05)
    plan(tokens=70, drafts=0)
    warnings: list[str] = []

    def stop(text: str) -> None:
        warnings.append(text)
        server.child.send(signal.SIGTERM)

    drafting = ServerCommand(**{**vars(command), "drafter": command.model})
    with start(drafting, RECEIPT, tmp_path / "runs") as server:
        assert server.wait(on_warning=stop) == 0
    assert warnings == ["the drafter proposed nothing in 70 tokens"]


def test_a_working_drafter_is_not_reported(command, tmp_path, plan, monkeypatch) -> None:
    monkeypatch.setattr("pylucebox.runtime.server.DRAFT_WATCH_S", 0.01)
    plan(tokens=70, drafts=5)
    with start(ServerCommand(**{**vars(command), "drafter": command.model}), RECEIPT, tmp_path) as server:
        assert server._drafter_judged(pytest.fail)


def test_command_lines() -> None:
    plain = ServerCommand(Path("/b/llama-server"), Path("/m.gguf")).argv()
    assert plain[1:] == (
        [
            "--model",
            "/m.gguf",
            "--host",
            "127.0.0.1",
            "--port",
            "8080",
            "--spec-type",
            "none",
            "--reasoning",
            "auto",
            "--metrics",
        ]
    )
    drafted = ServerCommand(
        Path("/b/llama-server"),
        Path("/m.gguf"),
        context_tokens=512,
        drafter=Path("/d.gguf"),
        draft_tokens=5,
        thinking=False,
        extra=("--metrics", "-fa", "off"),
    ).argv()
    assert drafted[7:] == (
        [
            "--ctx-size",
            "512",
            "--spec-type",
            "draft-dspark",
            "--spec-draft-model",
            "/d.gguf",
            "--spec-draft-n-max",
            "5",
            "--reasoning",
            "off",
            "--metrics",
            "-fa",
            "off",
        ]
    )


@pytest.mark.parametrize(
    ("host", "extra", "url"),
    [
        ("0.0.0.0", (), "http://127.0.0.1:8080"),
        ("::", (), "http://[::1]:8080"),
        ("127.0.0.1,::1", (), "http://127.0.0.1:8080"),
        ("localhost", ("--api-prefix", "/llm"), "http://localhost:8080/llm"),
        ("localhost", ("--ssl-cert-file", "c", "--ssl-key-file", "k"), "https://localhost:8080"),
    ],
)
def test_addresses(host: str, extra: tuple[str, ...], url: str) -> None:
    assert ServerCommand(Path("s"), Path("m"), host=host, extra=extra).url == url


def test_client(command: ServerCommand, tmp_path: Path, plan) -> None:
    with start(command, RECEIPT, tmp_path / "runs") as server:
        client = server.client
        reply = client.chat([{"role": "user", "content": "2 + 2"}], temperature=0)
        assert (reply.text, reply.finish, reply.timings.tokens_per_second) == ("four", "stop", 4.0)
        assert (reply.timings.drafted, reply.timings.accepted) == (5, 4)
        assert client.complete([1, 2]).token_ids == (7, 1)
        assert client.rendered_prompt([{"role": "user", "content": "x"}]).endswith("<think>")
        assert client.draft_counters() == DraftCounters(9, 2, 4, 3, (2, 1))
        assert not client.speculates() and not client.has_page()
        with pytest.raises(RequestError, match="404 File Not Found"):
            client._json("GET", "/nothing")
    with pytest.raises(ServerError, match="no answer"):
        client.props()


def test_counters_since() -> None:
    early, late = DraftCounters(5, 1, 5, 3, (1, 1, 1)), DraftCounters(20, 4, 20, 12, (4, 3, 3, 2))
    assert late.since(early) == DraftCounters(15, 3, 15, 9, (3, 2, 2, 2))
    assert late.since(DraftCounters(0, 0, 0, 0, ())) == late


def test_a_proxy_of_the_user_is_not_asked(command, tmp_path, plan, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    with start(command, RECEIPT, tmp_path / "runs") as server:
        assert server.client.is_ready()
