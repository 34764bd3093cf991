"""tools/measure_quality.py and quality_gaps.py: texts, models, hull, gaps, tables of the page."""

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pylucebox.core.errors import IntegrityError
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.presets import OURS, ROCMFPX, find_file_type
from pylucebox.measure.report import Quality

ROOT = Path(__file__).parents[2]
ONE = Quality("Q4_K", "Q4_K", 1 << 20, 4.0, 5.0, 0.1, 0.04, 0.0, 0.3, 0.9, 0.01, 1000)


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("quality_gaps")


@pytest.fixture
def tool(gaps: ModuleType) -> ModuleType:
    assert sys.modules["quality_gaps"] is gaps  # its sibling, which it imports by name
    return importlib.import_module("measure_quality")


def upstream(name: str, bits: float, kld: float, error: float = 0.0) -> Quality:
    return replace(ONE, name=name, bits_per_weight=bits, kld_mean=kld, kld_mean_error=error)


def ours(name: str, bits: float, kld: float, error: float = 0.0) -> Quality:
    return replace(upstream(name, bits, kld, error), type_name="Q4_0_ROCMFP4")


def test_texts_are_disjoint_complete_and_without_chat_markers(tool: ModuleType) -> None:
    texts = tool.read_texts(tool.PROMPTS)
    assert "｜" not in texts.evaluation + texts.calibration
    for kind, key in (("gsm", "question"), ("math", "question"), ("prose", "ref_output")):
        lines = (tool.PROMPTS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        for index, line in enumerate(lines):
            words = json.loads(line)[key].partition("<｜User｜>")[0].strip(" ")
            assert (words in texts.calibration) == (index % 4 == 3), (kind, index)
            assert (words in texts.evaluation) == (index % 4 != 3), (kind, index)
    assert 0.2 < texts.prose < 0.5


def test_every_type_and_mix_of_ours_is_measured_plain_and_searched_with_and_without_importance(
    tool: ModuleType,
) -> None:
    arms = [arm for table in tool.tables() for arm in table.arms]
    assert len({arm.slug for arm in arms}) == len(arms)
    for imatrix in (False, True):
        for search in (False, True):
            alike = [a for a in arms if (a.imatrix, a.search) == (imatrix, search)]
            assert {a.tensor_type for a in alike} >= ROCMFPX
            assert {a.file_type for a in alike if not a.tensor_type} >= {t.name for t in OURS}
    for arm in arms:
        assert (arm.tensor_type or "F32") in TYPES
        assert find_file_type(arm.file_type)


def test_hull_keeps_only_what_no_mixture_of_others_beats(gaps: ModuleType) -> None:
    small, good, beaten, large = (
        upstream("A", 2, 1.0),
        upstream("B", 4, 0.01),
        upstream("C", 3, 0.5),
        upstream("D", 8, 0.001),
    )
    worse_and_larger = upstream("E", 9, 0.002)
    assert gaps.lower_hull([large, worse_and_larger, beaten, small, good]) == [small, good, large]


def test_best_at_interpolates_logarithms_and_stops_at_the_ends(gaps: ModuleType) -> None:
    hull = [upstream("A", 2, 1.0, 0.1), upstream("B", 4, 0.01, 0.001)]
    value, names = gaps.best_at(hull, 3.0)
    assert value.value == pytest.approx(0.1)
    assert value.error == pytest.approx(0.1 * math.hypot(0.05, 0.05))
    assert names == "A to B"
    assert gaps.best_at(hull, 1.5)[0].value == 1.0
    assert gaps.best_at(hull, 9.0)[1] == "B (4.00 bits)"


@pytest.mark.parametrize(
    ("search", "error", "verdict"),
    [
        (0.06, 0.0001, "yes"),
        (0.09, 0.0001, "no"),
        (0.06, 0.02, "yes, within the errors"),
        (0.07, 0.01, "no, within the errors"),
    ],
)
def test_verdict_needs_the_errors_to_separate_the_cut_from_a_third(
    gaps: ModuleType, search: float, error: float, verdict: str
) -> None:
    [gap] = gaps.find_gaps(
        [upstream("A", 4, 0.04), ours("FP4", 4, 0.08), ours("FP4 search", 4, search, error)]
    )
    assert gap.cut.value == pytest.approx((0.08 - search) / 0.04)
    assert gap.verdict == verdict


def test_no_gap_when_ours_is_better_or_the_difference_is_noise(gaps: ModuleType) -> None:
    better, searched = ours("FP4", 4, 0.03), ours("FP4 search", 4, 0.02)
    assert gaps.find_gaps([upstream("A", 4, 0.04), better, searched])[0].verdict == "no gap"
    noisy = ours("FP4", 4, 0.05, 0.02)
    assert gaps.find_gaps([upstream("A", 4, 0.04), noisy, searched])[0].verdict == "no gap"


def test_names_of_one_and_the_same_weights_share_a_line_and_a_gap(tool: ModuleType, gaps: ModuleType) -> None:
    same = [ours(name, 4, 0.08) for name in ("FP4", "FP4_B", "FP4 search", "FP4_B search")]
    merged = tool.merge_equal(tool.Measured(q, {"Q4_0_ROCMFP4": 7}) for q in same)
    assert [q.name for q in merged] == ["FP4 = FP4_B = FP4 search = FP4_B search"]
    [gap] = gaps.find_gaps([upstream("A", 4, 0.04), *merged])
    assert gap.name == "FP4 = FP4_B"
    assert (gap.cut.value, gap.cut.error) == (0, 0)  # known exactly
    other = tool.Measured(ours("FP4_C", 4, 0.08), {"Q4_0_ROCMFP4": 8})
    assert len(tool.merge_equal([tool.Measured(same[0], {"Q4_0_ROCMFP4": 7}), other])) == 2


def test_types_left_out_of_the_hull_change_the_rival(gaps: ModuleType) -> None:
    measured = [
        upstream("A", 4, 0.04),
        upstream("MXFP4", 4, 0.001),
        ours("FP4", 4, 0.08),
        ours("FP4 search", 4, 0.06),
    ]
    assert gaps.find_gaps(measured)[0].rival_names == "MXFP4 (4.00 bits)"
    assert gaps.find_gaps(measured, ("MXFP4",))[0].rival_names == "A (4.00 bits)"


def test_summary_says_behind_level_ahead_and_what_search_closes(gaps: ModuleType) -> None:
    measured = [
        upstream("A", 2, 0.4),
        upstream("B", 4, 0.04),
        *(
            ours("FP2", 2, 0.8),
            ours("FP2 search", 2, 0.76),
            ours("FP4", 4, 0.08),
            ours("FP4 search", 4, 0.05),
        ),
        *(
            ours("FP6", 6, 0.04),
            ours("FP6 search", 6, 0.03),
            ours("FP8", 8, 0.001),
            ours("FP8 search", 8, 0.001),
        ),
    ]
    lines = gaps.summary([("yes", gap) for gap in gaps.find_gaps(measured)]).splitlines()
    assert lines == [
        "* Behind upstream by more than the errors: FP2 with imatrix, FP4 with imatrix.",
        "* level: FP6 with imatrix.",
        "* ahead: FP8 with imatrix.",
        "* `--search` surely closes a third of the gap of: FP4 with imatrix.",
        "* of the others it closes: FP2 with imatrix (10 %).",
    ]


def test_page_shows_the_gaps_of_the_committed_results(gaps: ModuleType) -> None:
    page = ROOT / "docs/formats.md"
    text = page.read_text(encoding="utf-8")
    assert gaps.render(text, ROOT / "docs/results", page) == text, "python tools/measure_quality.py --render"


def test_page_without_marks_is_refused(gaps: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="quality gaps"):
        gaps.render("no marks", tmp_path, tmp_path / "page.md")
