"""A KV cache of a ROCmFPX type is refused by name: as the server's argument, and by the library itself."""

import subprocess

import pytest

from pylucebox.core.receipts import BuildReceipt

TYPES = ["q4_0_rocmfp4", "q4_0_rocmfp4_fast", "q6_0_rocmfpx", "q8_0_rocmfpx", "q3_0_rocmfpx", "q2_0_rocmfp2"]


def test_library_refuses_by_name(build: BuildReceipt) -> None:
    done = subprocess.run([build.bin_dir / "test-lucebox-kv-cache"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("option", ["-ctk", "-ctv"])
def test_server_refuses_by_name(build: BuildReceipt, option: str, name: str) -> None:
    argv = [build.server_path, "-m", "none.gguf", option, name]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode != 0
    assert f'"{option}": Unsupported cache type: {name}' in done.stdout + done.stderr
