"""lucebox quantize and imatrix without a build: lists, wrong words, unusable files; exit codes and hints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imatrix_maker import write_imatrix

from pylucebox.cli import encoding_options
from pylucebox.cli import quantize as verb
from pylucebox.cli.main import main
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.presets import FILE_TYPES
from pylucebox.formats.recipes import RECIPES


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def built(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose programs do not exist: nothing here may get as far as running one."""
    receipt = BuildReceipt("0" * 64, "cpu", 1, "0", ("cpu",), "c++", here / "absent-bin")
    monkeypatch.setattr(verb, "find_build", lambda layout, target: receipt)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("command", ["quantize", "convert"])
def test_one_list_of_types_for_both_verbs(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = run(capsys, command, "--list-types")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) == len(FILE_TYPES) + len(RECIPES.keys() - FILE_TYPES.keys()) + 2
    assert next(line for line in lines if line.startswith("q2_0_rocmfp2_strix")).split()[1:5] == [
        "2.50",
        "convert,",
        "quantize",
        "cpu",
    ]
    for name, words in (("q4_k_m", "4.50 quantize cpu cuda hip"), ("tq2_0", "2.06 quantize cpu")):
        assert next(line for line in lines if line.startswith(name)).split()[1:] == words.split()


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", "quantize", "--list-types")
    rows: list[dict[str, Any]] = json.loads(out)["result"]["types"]
    found = {row["name"]: row for row in rows}
    assert code == 0 and found["q8_0_rocmfpx"]["bits"] == 8.25
    assert found["exact"]["verbs"] == ["convert"] and found["iq2_s"]["verbs"] == ["quantize"]
    assert all(row["kernels"] for row in rows)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "Missing argument 'IN'"),
        (["a.gguf"], "Missing argument 'OUT'"),
        (["a.gguf", "b.gguf"], "Missing option '--to'"),
        (["a.gguf", "b.gguf", "--to", "q8_0", "--threads", "0"], "'--threads'"),
        (["a.gguf", "b.gguf", "--to", "q8_0", "--rules", "absent"], "'absent' does not exist"),
    ],
)
def test_wrong_words_exit_2(capsys: pytest.CaptureFixture[str], words: list[str], what: str) -> None:
    code, out, err = run(capsys, "quantize", *words)
    assert (code, out) == (2, "") and what in err and "hint: lucebox quantize --help" in err


def test_without_a_build_exit_3(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    monkeypatch.setattr("pylucebox.core.builds.list_builds", lambda layout: [])
    code, out, err = run(capsys, "quantize", "a.gguf", "b.gguf", "--to", "q8_0")
    assert (code, out) == (3, "") and err == "error: nothing is built yet\n\nhint: lucebox build\n"
    (here / "t").write_text("text")
    assert run(capsys, "imatrix", "a.gguf", "-f", "t", "--out", "i.gguf")[0] == 3


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (
            ["--to", "q2_0_rocmfp3"],
            "no output type 'q2_0_rocmfp3' (did you mean q2_0_rocmfp2?)",
            "lucebox quantize",
        ),
        (["--to", "q8_0"], "a.gguf: no such file", "check the path"),
        (["--to", "q8_0", "--rules", "bad.rules"], "bad.rules:2: no tensor type 'q9'", "known are bf16"),
        (["--to", "q8_0", "--imatrix", "old.dat"], "old.dat: is no GGUF file", "llama-imatrix --in-file"),
        (["--to", "q8_0", "--imatrix", "nan.gguf"], "a.gguf: no such file", "check the path"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], what: str, hint: str
) -> None:
    (here / "bad.rules").write_text("# one\nffn = q9\n")
    (here / "old.dat").write_bytes(b"\x01\0\0\0rest")
    write_imatrix(here / "nan.gguf", {"a.weight": (np.full((1, 4), np.nan), np.ones((1, 1)))})
    before = sorted(here.iterdir())
    code, out, err = run(capsys, "quantize", "a.gguf", "b.gguf", *words)
    lines = err.splitlines()
    assert (code, out, len(lines)) == (1, "", 3)
    assert what in lines[0] and lines[2].startswith(f"hint: {hint}")
    assert sorted(here.iterdir()) == before


def test_the_encoder_is_a_builds_or_pythons(
    layout: Layout, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_options, "list_builds", lambda _: [])
    assert type(encoding_options.find_encoder(layout, 1, False)).__name__ == "NumpyEncoder"
    broken = BuildReceipt("0" * 64, "cpu", 1, "0", ("cpu",), "c++", here / "absent-bin")
    monkeypatch.setattr(encoding_options, "list_builds", lambda _: [broken])
    assert encoding_options.find_encoder(layout, 1, True).search is True


def test_converting_without_a_build_says_so(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from synthetic_checkpoint import make_tensors, save_checkpoint, small_config

    config = small_config()
    source = save_checkpoint(here / "tiny", config, make_tensors(config, None))
    monkeypatch.setattr(encoding_options, "list_builds", lambda _: [])
    code, out, err = run(capsys, "convert", source, "--to", "rocmfp4_fast", "--out", "o.gguf")
    assert (code, out) == (0, "o.gguf\n")
    assert "warning: no finished build: encoding in Python" in err
