"""Which GPUs are found, and which target follows from them."""

from pathlib import Path

import pytest

from pylucebox.native import detect as module
from pylucebox.native.detect import Detection, Gpu, detect, gfx_name, parse_compute_caps


def node(nodes: Path, number: int, version: int) -> None:
    (nodes / str(number)).mkdir(parents=True)
    (nodes / str(number) / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nx 1\n")


def nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in on PATH and return a file that stands for the loaded driver."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    (folder / "driver").touch()
    return folder / "driver"


@pytest.mark.parametrize(
    ("version", "name"),
    [(110501, "gfx1151"), (120001, "gfx1201"), (110000, "gfx1100"), (90010, "gfx90a"), (100302, "gfx1032")],
)
def test_the_kernels_numbers_are_gfx_names(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_an_amd_gpu_is_found_and_its_processor_is_none(tmp_path: Path) -> None:
    node(tmp_path, 0, 0)
    node(tmp_path, 1, 110501)
    found = detect(tmp_path, ())
    assert found.gpus == (Gpu("gfx1151", "AMD GPU"),) and found.targets == ("gfx1151",)
    assert str(found) == "gfx1151: AMD GPU (gfx1151)"


def test_nothing_found_is_the_processor(tmp_path: Path) -> None:
    found = detect(tmp_path / "absent", (tmp_path / "no-driver",))
    assert (found.targets, found.problems, str(found)) == (("cpu",), (), "cpu: no GPU found")


def test_nvidia_gpus_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvidia_smi(tmp_path, "echo '9.0, NVIDIA H200'; echo '12.0, NVIDIA RTX 5090'", monkeypatch)
    found = detect(tmp_path / "absent", (driver,))
    assert found.targets == ("sm_90", "sm_120") and found.problems == ()
    assert parse_compute_caps(("", "[N/A], x", "8.9, L40S")) == (Gpu("sm_89", "L40S"),)


def test_nvidia_smi_is_not_started_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, f"touch {tmp_path}/started", monkeypatch)
    assert detect(tmp_path / "absent", (tmp_path / "no-driver",)).gpus == ()
    assert not (tmp_path / "started").exists()


def test_a_driver_in_trouble_is_a_problem_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = nvidia_smi(tmp_path, "echo 'Failed to initialize NVML'; exit 9", monkeypatch)
    found = detect(tmp_path / "absent", (driver,))
    assert found.targets == ("cpu",) and found.problems == ("nvidia-smi: Failed to initialize NVML",)


def test_a_driver_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NVIDIA_SMI_S", 0.2)
    driver = nvidia_smi(tmp_path, "exec sleep 60", monkeypatch)
    (problem,) = detect(tmp_path / "absent", (driver,)).problems
    assert problem.startswith("nvidia-smi: ")


def test_a_gpu_without_a_target_is_named(tmp_path: Path) -> None:
    found = Detection((Gpu("sm_75", "NVIDIA T4"),))
    assert found.targets == ("cpu",) and found.unserved == (Gpu("sm_75", "NVIDIA T4"),)
