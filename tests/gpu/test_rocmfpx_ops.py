"""Ops of the GPU back-end on ROCmFPX tensors against the CPU back-end, by the programs of a GPU build."""

import subprocess

import pytest
from conftest import lacking

from pylucebox.core.builds import list_builds
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt


@pytest.fixture(scope="module")
def gpu_build(layout: Layout) -> BuildReceipt:
    """The first finished GPU build."""
    found = [receipt for receipt in list_builds(layout) if receipt.is_gpu]
    if not found:
        lacking("gpu", "a GPU build (run `lucebox build --target sm_90`)")
    return found[0]


@pytest.mark.parametrize("program", ["test-lucebox-cuda-rows", "test-lucebox-cuda-ops"])
def test_program(gpu_build: BuildReceipt, program: str) -> None:
    done = subprocess.run([gpu_build.bin_dir / program], capture_output=True, text=True)
    if "for want of a GPU" in done.stdout:
        lacking("gpu", "a GPU on this machine")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "refused" in done.stdout and "FAIL" not in done.stdout
