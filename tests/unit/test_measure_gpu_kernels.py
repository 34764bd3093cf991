"""Products on a GPU: what is held against what, by which build, and which goals it has to reach."""

from pathlib import Path

import pytest
from speaking_programs import write_program

from pylucebox.core.errors import GateError, RequestError
from pylucebox.measure import gpu_kernels
from pylucebox.measure.benchmark import Plan
from pylucebox.measure.compare import Comparison
from pylucebox.measure.gpu_kernels import FIXED, PAIRS, Contest, Program, Selection, find_contests
from pylucebox.measure.programs import Record

CASES = ("q_b q=1", "q_b q=512")
OURS = tuple(b for b, _ in PAIRS)
THEIRS = tuple(a for _, a in PAIRS)

SPEAKER = """
import json, os, sys
times = @times
def line(case, arm, **more):
    print(json.dumps({"case": case, "arm": arm, "unit": "us", **more}), flush=True)
if "--list" in sys.argv:
    for (case, arm) in times: line(case, arm)
else:
    for request in sys.stdin:
        case, arm = request.rstrip("\\n").split("\\t")
        folder = os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]
        line(case, arm, value=times[case, arm], layout=os.path.basename(folder))
"""


def speaker(folder: Path, times: dict[tuple[str, str], float]) -> Program:
    folder.mkdir()
    return Program(write_program(folder / gpu_kernels.PROGRAM, SPEAKER.replace("@times", repr(times))))


def listed(*arms: str, cases: tuple[str, ...] = CASES) -> list[Record]:
    return [Record(case, arm, "us", None) for case in cases for arm in arms]


def both() -> tuple[list[Record], list[Record]]:
    reads = [f"{name}/{bound}" for name in (*OURS, *THEIRS) for bound in gpu_kernels.BOUNDS]
    return listed(*OURS, *THEIRS, *reads), listed(*THEIRS)


def described(contest: Contest) -> tuple[str, str, str]:
    return contest.kind, contest.label_a, contest.b.arm


def compared(case: str, a: str, b: str, us_a: float, us_b: float) -> Comparison:
    return Comparison(case, "us", a, b, ((us_a, us_a), (us_a, us_a)), ((us_b, us_b), (us_b, us_b)))


def test_pairs_come_from_the_unpatched_build_and_bounds_from_ours() -> None:
    found = find_contests(*both(), Selection(columns=(1,)))
    assert [c.kind for c in found] == ["pair"] * 6 + ["bound"] * 8 + ["fix"] * 2
    assert described(found[0]) == ("pair", "q2_K (unpatched)", "q2_0_rocmfp2")
    assert described(found[6]) == ("bound", "q2_0_rocmfp2/read-q8", "q2_0_rocmfp2")
    assert described(found[-1]) == ("fix", "mxfp4 (unpatched)", "mxfp4")
    assert [c.unpatched for c in found] == [c.kind != "bound" for c in found]


def test_many_columns_are_not_bound_by_reading() -> None:
    assert {c.kind for c in find_contests(*both(), Selection(columns=(512,)))} == {"pair"}


def test_selections_narrow_by_kind_bound_text_and_columns() -> None:
    chosen = Selection(kinds=("bound",), bounds=("read", "read-plain"), only=("fp2",), columns=(1,))
    found = find_contests(*both(), chosen)
    assert [c.a.arm for c in found] == ["q2_0_rocmfp2/read", "q2_0_rocmfp2/read-plain"]
    with pytest.raises(RequestError, match=r"nothing is left to measure of \d+ comparisons"):
        find_contests(*both(), Selection(only=("lm_head",)))


def test_a_type_that_a_build_lacks_is_an_error() -> None:
    ours, theirs = both()
    with pytest.raises(RequestError, match=r"\(patched\) does not measure q6_0_rocmfpx"):
        find_contests([r for r in ours if r.arm != "q6_0_rocmfpx"], theirs, Selection())
    with pytest.raises(RequestError, match=r"\(unpatched\) does not measure mxfp4"):
        find_contests(ours, [r for r in theirs if r.arm != "mxfp4"], Selection())


def test_each_build_measures_its_own_arm_beside_its_own_libraries(tmp_path: Path) -> None:
    case = CASES[0]
    ours = speaker(tmp_path / "ours", {(case, "q8_0"): 10.0, (case, "q8_0/read"): 8.0})
    theirs = speaker(tmp_path / "theirs", {(case, "q8_0"): 20.0})
    records = {r.arm: r for r in ours.records(tmp_path / "log")}
    fix = Contest("fix", theirs.records(tmp_path / "log")[0], records["q8_0"], True)
    bound = Contest("bound", records["q8_0/read"], records["q8_0"], False)
    calls: list[tuple[int, int]] = []
    found = gpu_kernels.measure(
        ours, theirs, [fix, bound], tmp_path, Plan(2, 0, 0), lambda done, total: calls.append((done, total))
    )
    assert [c.ratio.value for c in found] == pytest.approx([2.0, 0.8])
    assert [(c.arm_a, c.layout_a, c.layout_b) for c in found] == [
        ("q8_0 (unpatched)", "theirs", "ours"),
        ("q8_0/read", "ours", "ours"),
    ]
    assert calls[-1] == (16, 16)


@pytest.mark.parametrize(
    ("case", "a", "b", "us_a", "us_b", "missed"),
    [
        ("q_b q=1", "q8_0 (unpatched)", "q8_0_rocmfpx", 10.0, 9.9, ""),
        ("q_b q=6", "q8_0 (unpatched)", "q8_0_rocmfpx", 10.0, 10.1, r"0\.990, goal 1"),
        ("q_b q=512", "q8_0 (unpatched)", "q8_0_rocmfpx", 10.0, 11.0, ""),
        ("q_b q=512", "q8_0 (unpatched)", "q8_0_rocmfpx", 10.0, 11.2, r"0\.893, goal 0\.9"),
        ("q_b q=2", "q8_0_rocmfpx/read-q8", "q8_0_rocmfpx", 10.0, 14.9, ""),
        ("q_b q=2", "q8_0_rocmfpx/read-q8", "q8_0_rocmfpx", 10.0, 15.1, r"0\.662, goal 0\.667"),
        ("q_b q=1", "q8_0 (unpatched)", "q8_0", 10.0, 20.0, ""),
        ("routed-gate+up q=1", "q2_K (unpatched)", "q2_0_rocmfp2", 39.0, 19.9, ""),
        ("routed-gate+up q=1", "q2_K (unpatched)", "q2_0_rocmfp2", 39.0, 20.1, r"takes 20\.1 us, goal 20"),
        ("routed-down q=1", "q3_K (unpatched)", "q3_0_rocmfpx", 35.0, 15.1, r"takes 15\.1 us, goal 15"),
    ],
)
def test_goals(case: str, a: str, b: str, us_a: float, us_b: float, missed: str) -> None:
    comparisons = [compared(case, a, b, us_a, us_b)]
    if not missed:
        gpu_kernels.check_goals(comparisons)
        return
    with pytest.raises(GateError, match=missed):
        gpu_kernels.check_goals(comparisons)


def test_a_gpu_is_described_where_the_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_kernels.describe_gpu(tmp_path / "log") == {}
    write_program(tmp_path / "nvidia-smi", "print('NVIDIA H200, 580.1, 1980 MHz, 3201 MHz, 41')")
    assert gpu_kernels.describe_gpu(tmp_path / "log") == {
        "device": "NVIDIA H200",
        "driver": "580.1",
        "clocks": "SM 1980 MHz and memory 3201 MHz at 41 °C",
    }


def test_a_build_is_known_by_its_gpu_library(tmp_path: Path) -> None:
    assert gpu_kernels.device_code(tmp_path) == "no CUDA library"
    (tmp_path / "libggml-cuda.so.0.1").write_bytes(b"code")
    (tmp_path / "libggml-cuda.so.0").symlink_to("libggml-cuda.so.0.1")
    assert gpu_kernels.device_code(tmp_path) == "libggml-cuda.so.0.1 sha256 5694d08a2e53"


def test_fixed_types_are_upstream_types() -> None:
    assert set(FIXED) <= set(THEIRS)
