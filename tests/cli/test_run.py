"""lucebox run against a stand-in for llama-server: card, refusals, exit codes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pylucebox.cli import run
from pylucebox.cli.main import main
from pylucebox.core.paths import PACKAGE_DIR, Layout, find_layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.convert import convert
from pylucebox.formats.ledger import Role
from pylucebox.runtime import memory
from pylucebox.runtime.models import embedded_model
from pylucebox.runtime.server import free_port

FAKE_SERVER = Path(__file__).parent.parent / "fake_server.py"
LAST_QUESTION = "/apply-template"  # the last thing `run` asks before it waits


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with a real drafter and a real target in it, converted once a session."""
    folder = tmp_path_factory.mktemp("models")
    source = PACKAGE_DIR / "data/tiny-ds4"
    convert(source, "mxfp4", folder / "small.gguf")
    return folder


@pytest.fixture
def layout(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    build_dir = tmp_path / "build/cpu"
    (build_dir / "bin").mkdir(parents=True)
    (build_dir / "bin/llama-server").symlink_to(FAKE_SERVER)
    BuildReceipt("5f0c1e9" + "0" * 57, "cpu", 11549, "0", ("cpu",), "gcc", build_dir).save(build_dir)
    monkeypatch.setenv("LUCEBOX_MODELS", str(models_dir))
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    made = replace(find_layout(), build_root=tmp_path / "build", cache_dir=tmp_path / "cache")
    monkeypatch.setattr(run, "find_layout", lambda: made)
    return made


@pytest.fixture
def lucebox(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    def call(*words: str, **plan: object) -> Done:
        monkeypatch.setenv("FAKE_SERVER", json.dumps({"end_at": LAST_QUESTION, **plan}))
        with pytest.raises(SystemExit) as ended:
            main(["run", *words] if "--port" in words else ["run", "--port", "0", *words])
        captured = capfd.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return call


def card(text: str) -> dict[str, str]:
    return {line[:11].strip(): line[12:] for line in text.splitlines() if line[11:12] == " "}


def test_the_embedded_model_with_its_drafter(lucebox, models_dir: Path) -> None:
    done = lucebox()
    assert done.code == 0
    facts = card(done.err)
    assert facts["model"].startswith(f"tiny-ds4, embedded: {models_dir}/tiny-ds4-")
    assert facts["build"] == "cpu, receipt 5f0c1e9, llama.cpp b11549"
    assert facts["device"].startswith("CPU only: ")
    assert facts["memory"].endswith(" MiB at 2048 tokens, estimated from headers")
    assert facts["drafter"].endswith("-dspark.gguf")
    assert facts["speculation"] == "on, up to 5 drafts a cycle: the drafter fits the model"
    assert facts["thinking"] == "off: prompts end in </think>"
    assert facts["template"] == "the model file's own"
    assert facts["context"] == "2048 tokens a request"
    assert done.out == facts["address"] + "\n"
    again = lucebox("--no-card")
    assert (again.code, again.err) == (0, "")
    log = Path(facts["log"])
    command = (log.parent / "command").read_text()
    assert "--spec-type draft-dspark" in command and "--spec-draft-n-max 5 --reasoning off" in command


def test_a_build_that_gives_no_plan_is_warned_of(lucebox, caplog: pytest.LogCaptureFixture) -> None:
    assert lucebox().code == 0
    (said,) = [r for r in caplog.records if "gives no memory plan" in r.message]
    assert said.levelname == "WARNING" and "is not refused" in said.message


def test_json_is_one_object_however_noisy_stderr_is(lucebox) -> None:
    done = lucebox("--json", "-v", "--spec", "off", "--thinking", "on", lines=["noise"] * 50)
    body = json.loads(done.out)
    assert (body["schema"], body["command"], body["ok"]) == (1, "run", True)
    result = body["result"]
    assert result["url"].startswith("http://127.0.0.1:") and result["context_tokens"] == 2048
    assert result["speculation"] == {"on": False, "draft_tokens": 0, "why": "--spec off"}
    assert result["thinking"] is True and result["drafter"] is None
    assert result["memory"]["needed_bytes"] > result["model"]["size_bytes"]
    assert "device" in done.err


def test_the_plan_is_the_builds_own(lucebox) -> None:
    done = lucebox("small", "--ctx-size", "4096", plan=1 << 30)
    assert card(done.err)["memory"] == "1.0 GiB at 4096 tokens, asked of the build"
    assert "this machine's memory 1.0 GiB of" in done.err and "weights 1.0 GiB, caches 4.0 MiB" in done.err


def test_what_does_not_fit_is_refused_unless_told(lucebox) -> None:
    refused = lucebox("small", "--ctx-size", "4096", plan=1 << 60)
    assert (
        refused.code == 1
        and "error: the model does not fit: this machine's memory 1048576.0 TiB of" in refused.err
    )
    assert "--allow-overcommit" in refused.err and "address" not in card(refused.err)
    assert lucebox("small", "--ctx-size", "4096", "--allow-overcommit", plan=1 << 60).code == 0


def test_a_context_that_nobody_chose_is_cut_by_the_server(lucebox, monkeypatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda root: 1 << 30)
    done = lucebox("small", plan=1 << 20)
    assert done.code == 0 and card(done.err)["memory"] == "6.0 MiB at 4096 tokens, asked of the build"


@pytest.mark.parametrize(
    ("words", "devices", "code"),
    [
        ((), [], 3),
        (("--allow-cpu",), [], 0),
        (("--", "-ngl", "0"), [], 0),
        (("--", "--device", "none"), [], 0),
        ((), ["ROCm0: Radeon (1 MiB, 1 MiB free)"], 0),
    ],
)
def test_a_gpu_build_needs_a_gpu(
    lucebox, layout: Layout, words: tuple[str, ...], devices: list[str], code: int
) -> None:
    folder = layout.build_root / "cpu"
    BuildReceipt("5f0c1e9" + "0" * 57, "cpu", 11549, "0", ("cpu", "rpc", "hip"), "gcc", folder).save(folder)
    done = lucebox("small", *words, devices=devices)
    assert done.code == code
    if code:
        assert "error: the build of target cpu is made for hip, but finds no such device\n" in done.err
        assert "--allow-cpu" in done.err


def test_a_model_by_name_without_drafter(lucebox) -> None:
    done = lucebox("small")
    facts = card(done.err)
    assert facts["model"].startswith("tiny-ds4, models folder: ")
    assert facts["speculation"] == "off: no drafter beside the model" and facts["drafter"] == "none"
    assert "MXFP4" in done.err


def test_the_exit_code_is_the_servers(lucebox) -> None:
    done = lucebox("small", exit_code=9)
    assert done.code == 9
    assert "warning: llama-server ended with exit code 9, see " in done.err


def test_arguments_after_the_dashes_arrive_untouched(lucebox) -> None:
    done = lucebox("small", "--", "-fa", "off", "--alias", "a -x b")
    assert done.code == 0
    facts = card(done.err)
    assert facts["passed on"] == "-fa off --alias a -x b"
    assert (Path(facts["log"]).parent / "command").read_text().endswith("-fa off --alias 'a -x b'\n")


def test_arguments_after_the_dashes_are_not_taken_for_a_model(lucebox) -> None:
    assert card(lucebox("--", "-fa", "off").err)["model"].startswith("tiny-ds4, embedded")


def test_a_drafter_is_no_model(lucebox, tmp_path: Path) -> None:
    drafter = tmp_path / "other.gguf"
    convert(PACKAGE_DIR / "data/tiny-ds4", "mxfp4", drafter, Role.DRAFTER)
    done = lucebox(str(drafter))
    assert done.code == 1 and done.err.startswith(f"error: {drafter}: is a drafter, not a model\n")
    assert f"hint: lucebox run MODEL --drafter {drafter}" in done.err


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("--port", "--port"),
        ("-c", "--ctx-size"),
        ("--ctx_size", "--ctx-size"),
        ("--model=x", "MODEL"),
        ("--models-dir", "MODEL"),
        ("--gpt-oss-20b-default", "MODEL"),
        ("--fim_qwen_7b_spec", "MODEL"),
        ("-md", "--drafter"),
        ("--spec-draft-hf", "--drafter"),
        ("--spec-default", "--spec"),
        ("--spec-type", "--spec"),
        ("--spec-draft-n-max", "--draft-max"),
        ("--reasoning", "--thinking"),
    ],
)
def test_options_of_ours_are_refused_after_the_dashes(lucebox, word: str, ours: str) -> None:
    done = lucebox("small", "--", "--alias", "x", word, "1")
    assert done.code == 2
    assert done.err.startswith(f"error: {word} after `--`: use lucebox's own {ours} instead\n")
    assert done.out == ""


def test_without_a_build(lucebox, layout: Layout) -> None:
    (layout.build_dir("cpu") / "receipt.json").unlink()
    done = lucebox("small")
    assert done.code == 3
    assert done.err == "error: nothing is built yet\n\nhint: lucebox build\n"
    assert lucebox("small", "--target", "cpux").code == 3


def test_unknown_models(lucebox, tmp_path: Path) -> None:
    done = lucebox("mall")
    assert done.code == 3 and "(did you mean small?)" in done.err
    assert lucebox(str(tmp_path / "none.gguf")).code == 1
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    done = lucebox("--json", str(tmp_path / "bad.gguf"))
    assert done.code == 1
    assert json.loads(done.out)["error"]["code"] == "request"


def test_a_named_drafter_that_does_not_fit_is_an_error(lucebox, models_dir: Path) -> None:
    done = lucebox("small", "--drafter", str(models_dir / "small.gguf"))
    assert done.code == 1 and "cannot draft for" in done.err
    assert lucebox("small", "--drafter", str(models_dir / "absent.gguf")).code == 1
    assert lucebox("small", "--spec", "on").code == 1


def test_contradicting_options(lucebox, models_dir: Path) -> None:
    assert lucebox("small", "--spec", "off", "--drafter", str(models_dir / "small.gguf")).code == 2
    assert lucebox("small", "--spec", "off", "--draft-max", "2").code == 2
    assert lucebox("small", "--draft-max", "2").code == 1
    assert lucebox("--draft-max", "6").code == 1


def test_a_server_that_fails_to_start(lucebox) -> None:
    done = lucebox("small", fail=1, lines=["loading", "error: no such tensor"])
    assert done.code == 6
    assert "error: llama-server ended (exit 1) before it was ready\n  loading\n" in done.err
    assert "  error: no such tensor\nlog: " in done.err and "\nhint: " in done.err
    body = json.loads(lucebox("--json", "small", fail=1).out)
    assert body["error"]["code"] == "server" and Path(body["error"]["log"]).is_file()


def test_a_server_that_takes_too_long(lucebox) -> None:
    done = lucebox("small", "--start-timeout", "0.3", load_s=60)
    assert done.code == 6 and "was not ready after 0.3 s" in done.err


def test_a_taken_port(lucebox) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = lucebox("small", "--port", str(port))
    assert done.code == 6 and f"cannot listen at 127.0.0.1 port {port}" in done.err


def test_what_was_asked_for_and_is_not_served_is_said(lucebox) -> None:
    done = lucebox("small", "--ctx-size", "4096")
    assert "warning: asked for 4096 tokens, the server gives a request 2048" in done.err
    done = lucebox(speculative=False)
    assert done.code == 6 and "without the drafter" in done.err


def test_open_says_when_there_is_nothing_to_open(lucebox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.webbrowser, "open", lambda url: pytest.fail("opened"))
    done = lucebox("small", "--open", end_at="/")
    assert done.code == 0
    assert "warning: --open: this build serves no web page, only the API" in done.err


def test_llama_servers_own_environment_is_shown(lucebox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    assert card(lucebox("small").err)["environment"] == "llama-server also reads LLAMA_ARG_THREADS"


def test_stale_conversions_are_removed(lucebox, models_dir: Path) -> None:
    stale, other = models_dir / "tiny-ds4-0123456789ab", models_dir / "tiny-ds4-mine"
    stale.mkdir()
    other.mkdir()
    current = embedded_model(PACKAGE_DIR / "data/tiny-ds4", models_dir, run._converter())
    current.drafter.unlink(missing_ok=True)
    done = lucebox()
    assert done.code == 0 and f"converted   the embedded model to bf16: {current.model.parent}" in done.err
    assert not stale.exists() and other.is_dir() and current.is_converted


LAUNCHER = """
import sys
from dataclasses import replace
from pathlib import Path
from pylucebox.cli import run
from pylucebox.core.paths import find_layout
from pylucebox.cli.main import main
root = Path(sys.argv[1])
layout = replace(find_layout(), build_root=root / "build", cache_dir=root / "cache")
run.find_layout = lambda: layout
main(["run", "small", "--port", sys.argv[2], "--json"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 4)])
def test_signals_stop_the_server_and_wait(layout: Layout, tmp_path: Path, number: int, code: int) -> None:
    port = free_port("127.0.0.1")
    environment = {**os.environ, "FAKE_SERVER": json.dumps({"exit_code": 4})}
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(port)]
    # A shell may have us started with Ctrl-C ignored; the launcher must not inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        launcher = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert launcher.stdout is not None
    pid = json.loads(launcher.stdout.readline())["result"]["pid"]
    launcher.send_signal(number)
    launcher.communicate(timeout=20)
    assert launcher.returncode == code
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_help_names_the_arguments_after_the_dashes() -> None:
    done = CliRunner().invoke(run.command, ["--help"])
    assert done.exit_code == 0
    assert "[OPTIONS] [MODEL] [-- LLAMA_SERVER_ARGS...]" in done.output
