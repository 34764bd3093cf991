"""The measurement of encoding speed runs and writes a result file that reads back."""

import importlib.util
from pathlib import Path

import pytest

from pylucebox.core.receipts import BuildReceipt
from pylucebox.measure.report import load

TOOL = Path(__file__).parents[2] / "tools/measure_quantize.py"


def test_it_writes_a_result(
    build: BuildReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCEBOX_TARGET", build.target)
    spec = importlib.util.spec_from_file_location("measure_quantize", TOOL)
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    out = tmp_path / "r.json"
    assert tool.main(["--rounds", "2", "--rows", "1", "--threads", "2", "--out", str(out)]) == 0
    result = load(out)
    arms = {(c.arm_a, c.arm_b) for c in result.comparisons}
    assert arms == {("scalar", "1 thread"), ("1 thread", "2 threads")}
    assert len(result.comparisons) == 2 * 6 * 2 and {c.unit for c in result.comparisons} == {"Mweights/s"}
    assert " h\n" in capsys.readouterr().out
