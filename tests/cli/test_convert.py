"""lucebox convert: exit code, stdout, JSON, one line of error, nothing left behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic_checkpoint import make_tensors, save_checkpoint, small_config

from pylucebox.cli.main import main
from pylucebox.formats import convert as stage


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config()
    return save_checkpoint(tmp_path_factory.mktemp("models") / "tiny", config, make_tensors(config, "dspark"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["convert", *(str(w) for w in words)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_writes_the_target_under_a_default_name(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, source, "--to", "bf16")
    assert (code, out) == (0, "tiny-bf16.gguf\n")
    assert err.startswith("target     126 tensors, bf16, ")
    assert [p.name for p in here.iterdir()] == ["tiny-bf16.gguf"]


def test_writes_both_files_in_one_go(source: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, source, "--to", "q8_0", "--out", "t.gguf", "--drafter-out", "d.gguf")
    assert (code, out) == (0, "t.gguf\nd.gguf\n")
    assert run(capsys, source, "--drafter", "--to", "q8_0")[:2] == (0, "tiny-q8_0-dspark.gguf\n")
    assert (here / "d.gguf").read_bytes() == (here / "tiny-q8_0-dspark.gguf").read_bytes()


def test_dry_run_prints_the_plan_and_writes_nothing(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, source, "--dry-run", "--out", "t.gguf")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("t.gguf   target, mxfp4, ")
    assert "  MXFP4                  12 tensors" in out and "  I32                     2 tensors" in out
    assert "  inputs                413 tensors: 162 written, 82 scales merged, 169 skipped" in lines
    assert "                        169 skipped: belongs to the drafter file" in lines
    assert lines[-1].startswith("  disk ") and "memory at most" in lines[-1]
    assert list(here.iterdir()) == []


def test_json_is_one_object(source: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", source, "--to", "f16", "--out", "x.gguf")
    envelope: dict[str, Any] = json.loads(out)
    assert code == 0 and envelope["ok"] and envelope["command"] == "convert"
    (file,) = envelope["result"]["files"]
    assert file["size_bytes"] == (here / "x.gguf").stat().st_size and file["role"] == "target"
    assert file["ledger"] == {
        "inputs": 413,
        "written": 162,
        "merged": 82,
        "skipped": {"belongs to the drafter file": 169},
        "outputs": 126,
    }
    assert sum(t["tensors"] for t in file["types"].values()) == 126


FAILURES = [
    (["--mtp"], 1, "carries a DSpark drafter of 3 stages and no MTP head", "hint: use --drafter"),
    (["--to", "q8"], 1, "no output type 'q8' (did you mean q8_0?)", "hint: known are f32"),
    (["--out", "absent/x.gguf"], 1, "no such folder", "hint: create it"),
    (["--max-memory", "1M"], 1, "--max-memory 1048576 bytes is too little", "hint: give at least"),
    (["--max-memory", "lots"], 2, "'lots' is no size such as 512M or 2G", "hint: lucebox convert --help"),
    (["--max-memory", "0"], 2, "is no size", "hint: lucebox convert --help"),
    (["--drafter", "--mtp"], 2, "exclude each other", "hint: lucebox convert --help"),
    (["--out", "a", "--drafter-out", "./a"], 2, "name the same file", "hint: lucebox convert --help"),
    (["--out", "."], 2, "is a directory", "hint: lucebox convert --help"),
]


@pytest.mark.parametrize(("words", "code", "what", "hint"), FAILURES)
def test_failures_are_one_line_and_a_hint(
    source: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    what: str,
    hint: str,
) -> None:
    status, out, err = run(capsys, source, *words)
    assert (status, out) == (code, "")
    lines = err.splitlines()
    assert (
        lines[0].startswith("error: ") and what in lines[0] and lines[1] == "" and lines[2].startswith(hint)
    )
    assert len(lines) == 3 and list(here.iterdir()) == []


def test_errors_in_json(source: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json", here / "absent")
    envelope = json.loads(out)
    assert (code, err, envelope["ok"], envelope["error"]["code"]) == (1, "", False, "request")
    assert "no such folder" in envelope["error"]["message"]


def broken(source: Path, here: Path, change: str) -> Path:
    folder = here / "broken"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    shard = folder / "model-00002-of-00003.safetensors"
    if change == "missing":
        shard.unlink()
    elif change == "extra":
        (folder / "model-00009-of-00003.safetensors").write_bytes(b"x")
    else:
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data[: len(data) // 2])
    return folder


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("missing", "1 of 3 shards are missing: model-00002-of-00003.safetensors"),
        ("extra", "1 shards are not in the index: model-00009-of-00003.safetensors"),
        ("truncated", "model-00002-of-00003.safetensors: truncated: tensor "),
    ],
)
def test_broken_checkpoints(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str], change: str, what: str
) -> None:
    code, _, err = run(capsys, broken(source, here, change), "--out", "x.gguf")
    assert code == 1 and what in err.splitlines()[0] and not list(here.glob("x*"))


def test_full_disk_has_its_own_exit_code(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    code, _, err = run(capsys, source)
    assert code == 3 and "bytes of disk are needed, 100 are free" in err and list(here.iterdir()) == []


def test_interrupt_exits_130_and_leaves_nothing(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "_verify", interrupt)
    assert run(capsys, source)[0] == 130 and list(here.iterdir()) == []


def test_sigterm_exits_130_and_leaves_nothing(
    source: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    def terminate(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(stage, "_verify", terminate)
    assert run(capsys, source)[0] == 130 and list(here.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_thin_script_takes_the_same_words(source: Path, here: Path) -> None:
    import subprocess
    import sys

    script = Path(__file__).parents[2] / "tools" / "convert_to_gguf.py"
    words = [sys.executable, str(script), str(source), "--to", "exact", "--out", "x.gguf"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here, check=True)
    assert done.stdout == "x.gguf\n" and (here / "x.gguf").is_file()
