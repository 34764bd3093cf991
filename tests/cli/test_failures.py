"""No verb ends in a traceback: signals, refusals of the system and faults of ours become one line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pylucebox.cli import failures
from pylucebox.cli.main import main
from pylucebox.core import processes
from pylucebox.core.paths import PACKAGE_DIR

SOURCE = PACKAGE_DIR / "data/tiny-ds4"
LONG = "a" * 300
ROOT = PACKAGE_DIR.parent


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def error_of(out: str) -> dict[str, str]:
    answer = json.loads(out)
    assert answer["schema"] == 1 and answer["ok"] is False
    error: dict[str, str] = answer["error"]
    return error


@pytest.mark.parametrize(
    "words",
    [
        ["convert", LONG, "--dry-run"],
        ["convert", str(SOURCE), "--dry-run", "--out", LONG],
        ["convert", str(SOURCE), "--dry-run", "--out", f"{SOURCE}/config.json/x.gguf"],
    ],
)
def test_a_path_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, *words, "--json")
    assert code == 1 and error_of(out)["code"] == "request"
    code, _, err = run(capsys, *words)
    assert code == 1 and err.startswith("error: ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("bad", "code", "exit_code", "text"),
    [
        (PermissionError(13, "Permission denied", "/ro/x"), "missing", 3, "/ro/x: Permission denied"),
        (OSError(28, "No space left on device"), "missing", 3, "No space left on device"),
        (NotADirectoryError(20, "Not a directory", "/a/b"), "request", 1, "/a/b: Not a directory"),
        (MemoryError(), "missing", 3, "not enough memory"),
        (KeyError("x"), "internal", 1, "a fault of lucebox: KeyError: 'x'"),
    ],
)
def test_any_exception_has_a_line_and_a_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    bad: Exception,
    code: str,
    exit_code: int,
    text: str,
) -> None:
    from pylucebox.cli import build as verb

    def fail() -> None:
        raise bad

    monkeypatch.setattr(verb, "find_layout", fail)
    ended, out, _ = run(capsys, "--json", "build")
    assert ended == exit_code
    assert (error_of(out)["code"], error_of(out)["message"]) == (code, text)


def test_a_current_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    code, out, _ = run(capsys, "--json", "build", "--dry-run")
    assert code == 3 and error_of(out)["message"] == "the current folder no longer exists"


def test_ctrl_c_is_an_object_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from pylucebox.cli import build as verb

    monkeypatch.setattr(verb, "find_layout", lambda: os.kill(os.getpid(), signal.SIGTERM))
    code, out, _ = run(capsys, "--json", "build")
    assert code == 130 and error_of(out)["code"] == "interrupted"
    code, out, err = run(capsys, "build")
    assert (code, out, err.strip()) == (130, "", "")


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with failures.ending_like_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("existing", ["fifo", "folder"])
def test_output_replaces_ordinary_files_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: str
) -> None:
    out = tmp_path / "out.gguf"
    os.mkfifo(out) if existing == "fifo" else out.mkdir()
    kind = out.stat().st_mode
    assert run(capsys, "convert", str(SOURCE), "--drafter", "--out", str(out))[0] in (1, 2)
    assert out.stat().st_mode == kind and [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


def test_a_name_that_is_no_utf8_is_printed_as_it_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.gguf")
    words = [sys.executable, "-c", "from pylucebox.cli.main import main; main()"]
    words += ["convert", str(SOURCE), "--drafter", "--dry-run", "--out", str(tmp_path / name)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(words, capture_output=True, env=env, check=True)
    assert b"\xff.gguf" in done.stdout


def test_a_program_that_cannot_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "llama-server"
    broken.write_bytes(b"")
    broken.chmod(0o755)
    with pytest.raises(processes.MissingError, match="llama-server: cannot be started: Exec format error"):
        processes.run([broken])


def test_an_interrupted_step_ends_what_it_started(tmp_path: Path) -> None:
    """Ninja ends its compilers on SIGTERM; killed outright, it would leave them writing to the build."""
    ended = tmp_path / "ended"
    script = f"trap 'sleep 0.2; touch {ended}; exit 1' TERM; echo ready; while :; do sleep 0.05; done"

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.run(["/bin/sh", "-c", script], on_line=interrupt)
    assert ended.exists() and time.monotonic() - began < processes.END_GRACE_S


@pytest.mark.parametrize(
    ("words", "environment", "is_coloured"),
    [
        (["--color"], {}, True),
        (["--color"], {"NO_COLOR": "1"}, True),
        (["--no-color", "--color"], {}, True),
        ([], {}, False),
        (["--no-color"], {}, False),
    ],
)
def test_errors_obey_the_colour_options(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    environment: dict[str, str],
    is_coloured: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, err = run(capsys, *words, "convert", "no-such-folder")
    assert code == 1 and ("\x1b[" in err) is is_coloured


@pytest.mark.parametrize(
    ("words", "usage"), [([], "lucebox [OPTIONS]"), (["bench"], "lucebox bench [OPTIONS]")]
)
def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str], words: list[str], usage: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and err.startswith(f"Usage: {usage}") and "hint:" not in err
    code, out, _ = run(capsys, "--json", *words)
    assert code == 2 and error_of(out)["message"] == "Missing command."


def test_wrong_usage_points_to_the_command_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: lucebox bench run --help" in run(capsys, "bench", "run", "no-such-file")[2]
    assert "hint: lucebox --help" in run(capsys, "-C", "no-such-folder", "build")[2]


@pytest.mark.parametrize("words", [["build", "--dry-run"], ["imatrix", "x", "-f", __file__, "--out", "y"]])
def test_a_target_of_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setenv("LUCEBOX_TARGET", "cuda")
    _, _, err = run(capsys, *words)
    assert "error: LUCEBOX_TARGET: " in err and "'cuda'" in err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bench", "report", "no-such-folder"], "bench report"),
        (["bench", "--rounds"], "bench"),
        (["-q", "convert", "no-such-folder"], "convert"),
        (["no-such-command"], ""),
    ],
)
def test_an_error_names_its_command_as_a_result_does(
    capsys: pytest.CaptureFixture[str], words: list[str], command: str
) -> None:
    _, out, _ = run(capsys, "--json", *words)
    assert json.loads(out)["command"] == command


@pytest.mark.parametrize("words", [["patches", "list"], ["patches", "list", "--json"]])
def test_an_output_that_takes_nothing_is_no_traceback(words: list[str]) -> None:
    argv = [sys.executable, "-m", "pylucebox", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and done.stderr.startswith("error: No space left on device\n")
    assert "Traceback" not in done.stderr
