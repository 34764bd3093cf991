"""lucebox imatrix, quantize and convert as commands, on the embedded model."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_model import write_small_model

from pylucebox.cli.main import main
from pylucebox.core.errors import RequestError
from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.inspect import inspect
from pylucebox.formats.quantize import LINE
from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY

CHECKPOINT = PACKAGE_DIR / "data/tiny-ds4"


@pytest.fixture(autouse=True)
def cpu(build: BuildReceipt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUCEBOX_TARGET", build.target)
    monkeypatch.setenv("LUCEBOX_NO_PROGRESS", "1")
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in words])
    out, err = capsys.readouterr()
    assert int(ended.value.code or 0) == code, err
    return out, err


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exact") / "exact.gguf"
    with pytest.raises(SystemExit):
        main(["-q", "convert", str(CHECKPOINT), "--to", "exact", "--out", str(path)])
    return path


@pytest.fixture(scope="module")
def imatrix(build: BuildReceipt, exact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the command, of two chunks of this repository's own words."""
    folder = tmp_path_factory.mktemp("imatrix")
    text = folder / "text.txt"
    text.write_text((PACKAGE_DIR / "data/tiny-ds4/README.md").read_text() * 3)
    out = folder / "i.gguf"
    words = ["imatrix", exact, "-f", text, "--out", out, "--ctx-size", 256, "--chunks", 2, "--threads", 1]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--target", build.target])
    assert not ended.value.code and [p.name for p in folder.iterdir()] == ["text.txt", "i.gguf"]
    return out


def test_the_imatrix_covers_every_matrix_of_the_layers(exact: Path, imatrix: Path) -> None:
    made = read_imatrix(imatrix)
    assert (made.chunks, made.chunk_tokens) == (2, 256)
    for t in read_header(exact).tensors:
        if t.name.startswith("blk.") and len(t.shape) > 1 and t.type.name != "I32" and "_ape" not in t.name:
            found = made.find(t.name, t.shape)
            assert found is not None and found.values.max() > 0, t.name
            assert len(found.values) == {3: 16}.get(len(t.shape), 2 if "attn_output_a" in t.name else 1)


def test_quantize_with_all_it_takes(
    capsys: pytest.CaptureFixture[str], exact: Path, imatrix: Path, tmp_path: Path
) -> None:
    (tmp_path / "r").write_text("blk\\.0\\..*down_exps = q8_0\n")
    words = [
        "quantize",
        exact,
        "q.gguf",
        "--to",
        "rocmfp2_strix",
        "--imatrix",
        imatrix,
        "--rules",
        "r",
        "--search",
    ]
    plan: dict[str, Any] = json.loads(run(capsys, "--json", *words, "--dry-run")[0])["result"]
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    out, err = run(capsys, *words, "--threads", "1")
    assert out == "q.gguf\n" and "no entry for 2 matrices, such as token_embd.weight" in err
    header = read_header(tmp_path / "q.gguf")
    types = {t.name: t.type.name.lower() for t in header.tensors}
    assert types == plan["tensors"]
    assert (
        types["blk.0.ffn_down_exps.weight"] == "q8_0"
        and types["blk.1.ffn_down_exps.weight"] == "q3_0_rocmfpx"
    )
    assert header.value("lucebox.recipe") == "q2_0_rocmfp2_strix" and header.value(DIALECT_KEY) == "A"
    assert (
        header.value("lucebox.quantize.search") is True and header.value("quantize.imatrix.chunks_count") == 2
    )
    assert {p.name for p in tmp_path.iterdir()} == {"r", "q.gguf"}
    converted = ["convert", CHECKPOINT, *words[3:], "--out", "c.gguf", "--threads", "1"]
    run(capsys, *converted)
    ours, theirs = read_header(tmp_path / "c.gguf"), header
    a, b = (tmp_path / "c.gguf").read_bytes(), (tmp_path / "q.gguf").read_bytes()
    places = {t.name: (theirs.data_offset + t.offset, t.size_bytes) for t in theirs.tensors}
    for t in ours.tensors:
        start, size = places[t.name]
        assert a[ours.data_offset + t.offset :][: t.size_bytes] == b[start : start + size], t.name


def test_the_result_names_the_whole_receipt(
    capsys: pytest.CaptureFixture[str], build: BuildReceipt, exact: Path
) -> None:
    out, _ = run(capsys, "--json", "quantize", exact, "q.gguf", "--to", "q4_0_rocmfp4")
    assert json.loads(out)["result"]["receipt"] == build.id


def test_the_plan_for_people(capsys: pytest.CaptureFixture[str], exact: Path) -> None:
    out, err = run(capsys, "quantize", exact, "q.gguf", "--to", "q4_0_rocmfp4_fast", "--dry-run")
    lines = out.splitlines()
    assert err == "" and lines[0].startswith("q.gguf   q4_0_rocmfp4_fast, ") and "bits a weight" in lines[0]
    assert any(line.split()[:3] == ["q4_0_rocmfp4_fast", "93", "tensors"] for line in lines)
    assert lines[-1].startswith("  disk ") and not Path("q.gguf").exists()


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (
            "hc_ = q8_0\n",
            "r:1: 'hc_' matches only tensors that stay as stored: output_hc_fn.weight is F32",
        ),
        ("ffn_dwon = q8_0\n", "r:1: 'ffn_dwon' matches no matrix of the model"),
    ],
)
def test_rules_without_effect(
    capsys: pytest.CaptureFixture[str], exact: Path, tmp_path: Path, rules: str, what: str
) -> None:
    (tmp_path / "r").write_text(rules)
    _, err = run(capsys, "quantize", exact, "q.gguf", "--to", "rocmfp3", "--rules", "r", code=1)
    assert what in err.splitlines()[0]
    _, err = run(capsys, "quantize", exact, "q.gguf", "--to", "f16", "--rules", "r", code=1)
    assert "rules have no effect with --to f16" in err


def test_types_that_need_an_importance_matrix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "small.gguf")
    _, err = run(capsys, "quantize", model, "q.gguf", "--to", "iq2_xxs", code=1)
    assert "type IQ2_XXS needs an importance matrix" in err and "hint: make one with `lucebox imatrix" in err
    assert not Path("q.gguf").exists()


@pytest.mark.parametrize("out", ["7b.gguf", "q8_0", "1"])
def test_a_name_that_looks_like_a_type_is_a_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, out: str
) -> None:
    model = write_small_model(tmp_path / "small.gguf")
    assert run(capsys, "quantize", model, out, "--to", "q4_0")[0] == f"{out}\n"
    assert read_header(Path(out)).value("general.file_type") == 2
    _, err = run(capsys, "quantize", model, model, "--to", "q4_0", code=1)
    assert "is the model itself" in err


def test_a_failure_of_the_program_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is cut between plan and work."""
    model = write_small_model(tmp_path / "small.gguf")
    from pylucebox.cli import quantize as verb

    inner = verb.write_quantization

    def cut_first(*arguments: Any) -> Path:
        model.write_bytes(model.read_bytes()[:-4096])
        return inner(*arguments)

    monkeypatch.setattr(verb, "write_quantization", cut_first)
    _, err = run(capsys, "quantize", model, "q.gguf", "--to", "q4_0", code=1)
    assert err.startswith("error: llama-quantize failed (exit 1)")
    assert [p.name for p in tmp_path.iterdir()] == ["small.gguf"]


def without_key(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(DIALECT_KEY.encode(), b"lucebox.rocmfp2.dialekt"))


def test_a_file_of_another_dialect_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without the key the blocks are looked at: ours pass and get their key, mirrored levels do not."""
    model, packed = write_small_model(tmp_path / "small.gguf"), tmp_path / "packed.gguf"
    run(capsys, "quantize", model, packed, "--to", "rocmfp2", "--pure")
    without_key(packed)
    inspect(packed)
    again = ["quantize", packed, "again.gguf", "--to", "rocmfp2", "--pure", "--allow-requantize"]
    run(capsys, *again)
    assert read_header(Path("again.gguf")).value(DIALECT_KEY) == "A"
    header = read_header(packed)
    data = bytearray(packed.read_bytes())
    for t in header.tensors:
        if t.type.id == 107:
            for at in range(header.data_offset + t.offset, header.data_offset + t.offset + t.size_bytes, 10):
                data[at + 8] |= 0x80
    packed.write_bytes(data)
    with pytest.raises(RequestError, match="of type 107 in another dialect: its blocks look like D"):
        inspect(packed)
    _, err = run(capsys, *again, code=1)
    assert "in another dialect: its blocks look like D (scales with a sign bit, known as fp2s)" in err


def test_too_short_a_text(capsys: pytest.CaptureFixture[str], exact: Path, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a few words")
    _, err = run(capsys, "imatrix", exact, "-f", "t", "--out", "i.gguf", code=1)
    assert err.startswith("error: t: 11 bytes are too short for 1024 tokens\n\nhint: give at least 2 chunks")
    (tmp_path / "t").write_text("word " * 300)  # more bytes than tokens
    _, err = run(capsys, "imatrix", exact, "-f", "t", "--out", "i.gguf", code=1)
    assert err.startswith("error: llama-imatrix failed (exit 1)")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_progress_lines_are_understood(build: BuildReceipt) -> None:
    line = "[   3/ 240] blk.0.hc_attn_fn.weight  - [  1024,    24,     1], type =    f32, size =    0.094 MiB"
    found = LINE.match(line)
    assert found and found.groups() == ("3", "blk.0.hc_attn_fn.weight", "f32")
    assert all(c.name == c.name.lower() for c in Codec.by_id.values())
