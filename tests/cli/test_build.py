"""lucebox build: exit code, exact stdout, JSON, and what is started."""

import json
from pathlib import Path

import pytest
from small_upstream import make_layout

from pylucebox.cli import build as verb
from pylucebox.cli.main import main
from pylucebox.core import processes
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native import cmake
from pylucebox.native.detect import Detection, Gpu
from pylucebox.native.places import Places
from pylucebox.native.preflight import preflight


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    layout = make_layout(tmp_path / "home")
    monkeypatch.setattr(verb, "find_layout", lambda: layout)
    monkeypatch.setattr(verb, "detect", lambda: Detection(()))
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    monkeypatch.chdir(tmp_path / "home")
    return layout


@pytest.fixture
def quick_build(small: Layout, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace configure and compile; return the targets that were built."""
    built: list[str] = []

    def build(layout: Layout, target: object, source: cmake.Source, **options: object) -> cmake.Built:
        name = str(getattr(target, "name", ""))
        built.append(name)
        folder = layout.build_dir(name)
        folder.mkdir(parents=True, exist_ok=True)
        receipt = BuildReceipt("a" * 64, name, 7, "s", ("cpu", "rpc"), "c++ 1.0", folder / "bin")
        receipt.save(folder)
        step = options["on_step"]
        assert callable(step)
        step("configure", "cpu, rpc on, c++ 1.0", 1.0)
        step("compile", "3 steps", 61.0)
        return cmake.Built(receipt, changed=True, steps=3)

    monkeypatch.setattr(cmake, "build", build)
    monkeypatch.setattr(
        cmake, "find_current", lambda layout, target, _: BuildReceipt.load(layout.build_dir(target.name))
    )
    return built


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["build", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


ARCHIVE = "small-1.0.tar.gz"


def test_success_prints_stages_on_stderr_and_the_path_on_stdout(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--archive", ARCHIVE)
    server = small.build_root / "cpu" / "bin" / "llama-server"
    assert (code, out) == (0, f"{server}\n")
    stages = [line.split()[0] for line in err.splitlines()]
    assert stages == ["target", "source", "patches", "configure", "compile", "built"]
    assert "cpu: no GPU found" in err
    assert "llama.cpp b7, archive verified" in err and "2 applied, 1 overlay files linked" in err
    assert "1m 01s" in err and "build/cpu/bin/llama-server   receipt aaaaaaa" in err


def test_a_second_run_prints_one_line(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "--archive", ARCHIVE)
    code, out, err = run(capsys)
    assert code == 0 and out.endswith("llama-server\n") and quick_build == ["cpu"]
    (line,) = err.splitlines()
    assert line.startswith("built ") and line.endswith("receipt aaaaaaa, nothing to do")


def test_json_is_one_object(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--archive", ARCHIVE, "--json", "-v")
    answer = json.loads(out)
    assert code == 0 and (answer["command"], answer["ok"], answer["schema"]) == ("build", True, 1)
    (one,) = answer["result"]["builds"]
    assert (
        one["target"] == "cpu" and one["server"].endswith("/cpu/bin/llama-server") and one["changed"] is True
    )


def test_a_failure_as_json_has_the_same_exit_code(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    Path(ARCHIVE).write_bytes(Path(ARCHIVE).read_bytes()[:-9])
    code, out, _ = run(capsys, "--archive", ARCHIVE, "--json")
    answer = json.loads(out)
    assert code == 4 and answer["ok"] is False and answer["error"]["code"] == "integrity"
    assert "truncated" in answer["error"]["message"]
    code, out, err = run(capsys, "--archive", ARCHIVE)
    target, *error = err.split("\n\n")[0].splitlines()
    assert (code, out) == (4, "") and target.startswith("target ")
    assert len(error) == 1 and error[0].startswith("error: ")


def test_dry_run_starts_and_writes_nothing(
    small: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*words: object, **_: object) -> None:
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(processes, "run", no_process)
    before = sorted(p for p in Path.cwd().rglob("*"))
    code, out, _ = run(capsys, "--dry-run", "--jobs", "3")
    assert code == 0 and sorted(p for p in Path.cwd().rglob("*")) == before
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["source", "patches", "configure", "compile"]
    assert (
        "fetch small-1.0.tar.gz" in lines[0] and "-DLLAMA_BUILD_COMMIT=b7" in lines[2] and "-j 3" in lines[3]
    )
    code, out, _ = run(capsys, "--dry-run", "--json")
    assert [row["step"] for row in json.loads(out)["result"]["plan"]] == [
        "source",
        "patches",
        "configure",
        "compile",
    ]


def test_print_server_builds_nothing(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--print-server")
    assert (code, out) == (3, "") and "no finished build of target 'cpu'" in err
    assert "hint: lucebox build --target cpu" in err
    run(capsys, "--archive", ARCHIVE)
    code, out, err = run(capsys, "--print-server")
    assert (code, err) == (0, "") and out == f"{small.build_root / 'cpu' / 'bin' / 'llama-server'}\n"
    assert quick_build == ["cpu"]


def test_an_unknown_target_is_named_before_anything_starts(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--target", "cpo", "--archive", ARCHIVE)
    assert (code, out) == (1, "") and "unknown target 'cpo' (did you mean cpu?)" in err
    assert not small.pristine_dir.exists() and quick_build == []


def test_a_target_given_twice_is_built_once(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--target", "cpu", "--target", "cpu", "--archive", ARCHIVE)
    assert code == 0 and quick_build == ["cpu"] and len(out.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--archive", ARCHIVE, "--source", "."],
        ["--archive", "absent.tar.gz"],
        ["--jobs", "0"],
        ["--no-such-option"],
        ["surplus"],
    ],
)
def test_wrong_usage_is_exit_code_2(
    small: Layout, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and err.startswith("error: ")


def test_quiet_twice_prints_nothing_but_the_answer(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "-qq", "--archive", ARCHIVE)
    assert (code, err) == (0, "") and out.endswith("llama-server\n")


def test_the_gpus_found_are_the_default(
    small: Layout, quick_build: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (Gpu("sm_90", "NVIDIA H200"), Gpu("sm_90", "NVIDIA H200"), Gpu("sm_75", "NVIDIA T4"))
    monkeypatch.setattr(verb, "detect", lambda: Detection(gpus, ("nvidia-smi: odd",)))
    monkeypatch.setattr(verb, "preflight", lambda target, layout: [])
    code, _, err = run(capsys, "--archive", ARCHIVE)
    assert code == 0 and quick_build == ["sm_90"]
    assert "sm_90: NVIDIA H200 (sm_90), NVIDIA T4 (sm_75)" in err
    assert "warning: there is no target for NVIDIA T4 (sm_75)" in err and "nvidia-smi: odd" in err
    monkeypatch.setenv("LUCEBOX_TARGET", "cpu")
    code, _, err = run(capsys, "--archive", ARCHIVE)
    assert code == 0 and quick_build == ["sm_90", "cpu"] and "NVIDIA" not in err


@pytest.mark.parametrize(
    ("name", "line"), [("vulkan", "no vulkan target yet"), ("Metal", "no metal target yet")]
)
def test_a_target_that_does_not_exist_yet_is_said_so(
    small: Layout, capsys: pytest.CaptureFixture[str], name: str, line: str
) -> None:
    code, out, err = run(capsys, "--target", name)
    assert (code, out) == (1, "") and line in err and "known targets: cpu" in err


def test_a_gpu_target_without_its_toolkit_makes_nothing(
    small: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Places(opt=small.work_dir, local=small.work_dir, system=small.work_dir)
    monkeypatch.setattr(verb, "preflight", lambda target, layout: preflight(target, layout, nowhere))
    before = sorted(Path.cwd().rglob("*"))
    code, out, err = run(capsys, "--target", "gfx1151", "--archive", ARCHIVE)
    assert (code, out) == (3, "") and "target gfx1151 cannot be built on this machine: ROCm" in err
    details = json.loads(run(capsys, "--target", "gfx1151", "--json")[1])["error"]["details"]
    assert any(line.startswith("rocBLAS: not found; install ") for line in details)
    for family in ("HIP compiler", "HIP headers", "hipBLAS", "rocBLAS", "hipCUB", "rocPRIM", "rocWMMA"):
        assert f"  {family}: not found" in err
    assert "hint: lucebox doctor --target gfx1151" in err
    assert sorted(Path.cwd().rglob("*")) == before
    code, out, err = run(capsys, "--target", "sm_90", "--archive", ARCHIVE)
    assert code == 3 and "nvcc, cuBLAS" in err and sorted(Path.cwd().rglob("*")) == before
