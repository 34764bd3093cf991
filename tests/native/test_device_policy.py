"""What a device lacks is refused by name; a stand-in for a GPU lacks what the test says."""

import subprocess
from pathlib import Path

from pylucebox.core.receipts import BuildReceipt


def test_program(build: BuildReceipt, tmp_path: Path) -> None:
    program = build.bin_dir / "test-lucebox-device-policy"
    done = subprocess.run([program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_server_permits_the_cpu_by_option_alone(build: BuildReceipt) -> None:
    text = subprocess.run([build.server_path, "--help"], capture_output=True, text=True).stdout
    option = text[text.index("--allow-cpu") :].split("\n-", 1)[0]
    assert "refused otherwise" in option and "env:" not in option
