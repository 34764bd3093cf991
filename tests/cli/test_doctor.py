"""lucebox doctor: what it prints, its exit code, JSON, and a report without names."""

import json
import os
import socket
from pathlib import Path

import pytest
from fake_toolkits import make_rocm, places
from small_upstream import make_layout

from pylucebox.cli import doctor as verb
from pylucebox.cli.main import main
from pylucebox.core.paths import Layout
from pylucebox.native.detect import Detection, Gpu
from pylucebox.native.doctor import device_checks
from pylucebox.native.preflight import preflight
from pylucebox.native.targets import find_target


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    layout = make_layout(tmp_path / "home")
    monkeypatch.setattr(verb, "find_layout", lambda: layout)
    monkeypatch.setattr(verb, "detect", lambda: Detection(()))
    monkeypatch.setattr(verb, "preflight", lambda target, layout: preflight(target, layout, places(tmp_path)))
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    monkeypatch.chdir(tmp_path / "home")
    return layout


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_processor_is_ready(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path.cwd().rglob("*"))
    code, out, err = run(capsys)
    assert (code, err) == (0, "target     cpu: no GPU found\n")
    assert out.splitlines()[-1] == "  cpu can be built here"
    assert "ok" in out and "missing" not in out and "-> lucebox build --target cpu" in out
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_missing_rocm_is_exit_code_3_with_remedies(
    small: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--target", "gfx1151", "--target", "cpu")
    assert code == 3 and "gfx1151 cannot be built here yet" in out and "cpu can be built here" in out
    for name in ("ROCm", "HIP compiler", "HIP headers", "hipBLAS", "rocBLAS"):
        line = next(line for line in out.splitlines() if f" {name} " in line)
        assert line.split()[0] == "missing"
    assert next(line for line in out.splitlines() if " rocWMMA " in line).split()[0] == "absent"


def test_a_whole_rocm_is_ready(small: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_rocm(tmp_path / "opt/rocm-7.2.4")
    code, out, _ = run(capsys, "--target", "gfx1151")
    assert code == 0 and "7.2.4 at" in out and "gfx1151 can be built here" in out


def test_json_is_one_object_with_states(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--target", "sm_90", "--json")
    answer = json.loads(out)
    assert code == 3 and answer["result"]["ready"] == {"sm_90": False}
    states = {row["name"]: row["state"] for row in answer["result"]["checks"]["sm_90"]}
    assert states["nvcc"] == "missing" and states["GPU"] == "absent" and states["ninja"] == "ok"


def test_an_unknown_target_is_named(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--target", "sm_9O")
    assert (code, out) == (1, "") and "did you mean sm_90" in err


def test_the_report_names_neither_user_nor_machine(
    small: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(verb.getpass, "getuser", lambda: "someone")
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-7")
    monkeypatch.setenv("CUDA_PATH", "/data/someone/cuda on machine-7")
    code, _, err = run(capsys, "--target", "cpu", "--report", "report.json")
    text = Path("report.json").read_text()
    assert code == 0 and "report written to report.json" in err
    assert json.loads(text)["environment"]["CUDA_PATH"] == "/data/USER/cuda on HOST"
    assert str(tmp_path) not in text and json.loads(text)["checks"]["cpu"]
    assert list(Path.cwd().glob("*.partial")) == []


@pytest.mark.parametrize(
    ("name", "said"), [("pipe", "no ordinary file"), ("", "folder"), ("no/r", "no such")]
)
def test_a_report_replaces_no_device(
    small: Layout, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    os.mkfifo("pipe")  # stands for /dev/null, which only root could have lost
    code, out, err = run(capsys, "--report", name)
    assert (code, out) == (1, "") and said in err and Path("pipe").is_fifo()


def test_what_was_detected_and_what_not_is_told(
    small: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Detection((Gpu("sm_70", "V100"),), ("nvidia-smi: no answer",))
    monkeypatch.setattr(verb, "detect", lambda: found)
    _, _, err = run(capsys)
    assert "warning: nvidia-smi: no answer: a GPU may have been missed; name one with --target\n" in err
    assert "warning: there is no target for V100 (sm_70)\n" in err
    assert run(capsys, "--target", "cpu")[2] == ""


def test_gpu_and_its_access_do_not_stand_in_the_way(tmp_path: Path) -> None:
    target, kfd = find_target("gfx1151"), tmp_path / "kfd"
    none, access = device_checks(target, Detection((Gpu("sm_90", "H200"),)), kfd, tmp_path)
    assert none.ok and none.found == "only H200 (sm_90)" and access.ok and "no " in access.found
    kfd.touch()
    found = Detection((Gpu("gfx1151", "AMD GPU"),))
    seen, access = device_checks(target, found, kfd, tmp_path)
    assert (seen.found, seen.remedy, access.remedy) == ("AMD GPU (gfx1151)", "", "")
    assert device_checks(find_target("cpu"), found) == []
