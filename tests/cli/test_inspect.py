"""lucebox inspect: kind, types, roles and plan of files and checkpoints; one line for what is neither."""

import json
from pathlib import Path

import pytest
from synthetic_checkpoint import TINY_MODEL

from pylucebox.cli.main import main
from pylucebox.formats.convert import convert
from pylucebox.formats.ledger import Role
from pylucebox.formats.tensor_table import role_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    convert(TINY_MODEL, "mxfp4", folder / "m.gguf")
    convert(TINY_MODEL, "bf16", folder / "d.gguf", Role.DRAFTER)
    return folder / "m.gguf", folder / "d.gguf"


def run(capfd: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, words)])
    captured = capfd.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_a_target(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, pair[0], "--headers-only", "--ctx-size", "2048")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split(None, 1) == ["kind", f"target, GGUF: {pair[0]}"]
    row = next(line.split() for line in lines if line.strip().startswith("MXFP4"))
    assert row[-1] == "4.250"
    assert any(
        line.startswith("memory") and "at 2048 tokens, estimated from headers" in line for line in lines
    )


def test_json_adds_up(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, pair[0], "--json", "--headers-only", "--drafter", pair[1], "--ctx-size", "2048")
    result = json.loads(out)["result"]
    assert code == 0 and result["kind"] == "target"
    for grouped in ("types", "roles"):
        assert sum(share["bytes"] for share in result[grouped].values()) == result["total"]["bytes"]
        assert sum(share["tensors"] for share in result[grouped].values()) == result["tensors"]
    (place,) = result["memory"]["places"]
    assert place["target"]["weights_bytes"] == result["total"]["bytes"]
    assert place["needed_bytes"] == place["target"]["total_bytes"] + place["drafter"]["total_bytes"]
    assert place["drafter"]["weights_bytes"] > 0 and not result["memory"]["measured"]


def test_a_drafter_has_no_plan_of_its_own(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, pair[1], "--headers-only")
    assert code == 0 and "drafter, GGUF" in out and "Markov rank" in out and "memory" not in out
    assert run(capfd, pair[1], "--drafter", pair[1])[0] == 1


def test_a_checkpoint(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, TINY_MODEL)
    assert code == 0 and "checkpoint of 2 safetensors files, draft stages: dspark" in out
    assert "routed experts" in out and " other " not in out


def test_what_is_no_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 40)
    code, out, err = run(capfd, bad)
    assert code in (1, 4) and out == "" and err.startswith(f"error: {bad}: ") and "Traceback" not in err
    assert run(capfd, tmp_path)[0] == 1
    assert run(capfd, tmp_path / "absent")[0] == 2


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("blk.3.ffn_up_exps.weight", "routed experts"),
        ("blk.3.indexer_compressor_kv.weight", "indexer"),
        ("blk.3.attn_compressor_kv.weight", "compressors"),
        ("blk.3.attn_output_a.weight", "attention"),
        ("blk.3.hc_attn_fn.weight", "hyper-connections"),
        ("blk.3.attn_norm.weight", "norms"),
        ("output_hc_fn.weight", "hyper-connections"),
        ("output.weight", "output"),
        ("layers.3.ffn.experts.7.w1.weight", "routed experts"),
        ("whatever", "other"),
    ],
)
def test_roles(name: str, role: str) -> None:
    assert role_of(name) == role


def test_options_that_say_nothing_are_refused(
    pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    for file, option, value in (
        (TINY_MODEL, "--ctx-size", "64"),
        (TINY_MODEL, "--drafter", str(pair[1])),
        (pair[1], "--target", "cpu"),
        (pair[1], "--cache-type", "q8_0"),
    ):
        code, out, err = run(capfd, file, option, value)
        assert (code, out) == (1, "") and f"{file}: {option} is of a memory plan" in err


@pytest.mark.parametrize(
    ("option", "value"), [("--cache-type", "q9"), ("--ctx-size", str(1 << 31)), ("--parallel", "257")]
)
def test_values_that_no_server_takes(
    pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    code, out, err = run(capfd, pair[0], "--headers-only", option, value)
    assert (code, out) == (2, "") and option in err and value in err


def test_a_build_that_cannot_be_asked_is_told(
    pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCEBOX_TARGET", "nope")
    code, out, err = run(capfd, pair[0])
    assert code == 0 and "estimated from headers" in out
    assert "warning: no build is asked for the memory plan: LUCEBOX_TARGET: no finished build" in err
    assert run(capfd, pair[0], "--headers-only")[2] == ""


def test_a_models_name_does_not_steer_the_terminal(
    pair: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, evil = pair[0].read_bytes(), b"a\x1b[31m\nb"
    at = data.index(b"tiny-ds4", data.index(b"general.name"))
    (tmp_path / "m.gguf").write_bytes(data[:at] + evil + data[at + len(evil) :])
    code, out, _ = run(capfd, tmp_path / "m.gguf", "--headers-only")
    assert code == 0 and out.splitlines()[1].split(None, 1) == ["name", "a\\x1b[31m\\nb"]
