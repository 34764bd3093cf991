"""Tables and pictures: what they say, that they are well formed, and that stale results show it."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pylucebox.core.errors import RequestError
from pylucebox.measure.compare import Comparison, Interval
from pylucebox.measure.folder import write_report
from pylucebox.measure.machine import Machine
from pylucebox.measure.render import format_change, format_value, markdown, pictures
from pylucebox.measure.report import Level, Quality, Result
from pylucebox.measure.sources import Source, hash_files
from pylucebox.measure.svg import (
    NOTE_CHARACTERS,
    Bar,
    Frame,
    Point,
    bar_chart,
    linear_ticks,
    log_ticks,
    scatter,
)

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = Machine("Some CPU", 4, (), "Some OS 1", "6.1", None)
COMPARISON = Comparison(
    "dot k=4096",
    "weights/s",
    "mxfp4",
    "q4_0_rocmfp4_fast",
    samples_a=((1e9, 1e9), (1e9, 1e9)),
    samples_b=((1.25e9, 1.25e9), (1.25e9, 1.25e9)),
    noise_a=((1e9, 1e9), (1e9, 1e9)),
    noise_b=((1.01e9, 1.01e9), (1.01e9, 1.01e9)),
)
LEVELS = (
    Level("decode 16, 1 thread", "tiny", "tok/s", ((60.0, 61.0, 60.5, 60.0), (59.0, 60.0, 61.0, 60.0))),
    Level(
        "prompt 64, 1 thread", "tiny", "tok/s", ((340.0, 350.0, 345.0, 346.0), (342.0, 344.0, 345.0, 350.0))
    ),
)


def quality(name: str, kind: str, size_mib: float, kld: float) -> Quality:
    return Quality(
        name, kind, int(size_mib * 2**20), 4.5, 12.3, 0.2, kld, kld / 10, 9 * kld, 0.989, 0.002, 3302
    )


QUALITIES = (
    quality("q4_0", "Q4_0", 16.1, 0.02),
    quality("fp4", "Q4_0_ROCMFP4", 16.0, 0.021),
    quality("f32", "all F32", 95, -1e-9),
)


def result(**figures: object) -> Result:
    base = Result(
        "A <b> & c", "2026-12-01", "lucebox bench ab", MACHINE, {"cpu": "0123456789abcdef" * 4}, Source()
    )
    return replace(base, settings={"backends": "CPU"}, **figures)  # type: ignore[arg-type]


def texts(svg: str) -> list[str]:
    """All words of a picture; fails when it is not well-formed XML."""
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]


def test_comparison_row() -> None:
    row = markdown(result(comparisons=(COMPARISON,)), stale=False).splitlines()[4]
    assert row == (
        "| dot k=4096 | mxfp4: 1 Gweights/s | q4_0_rocmfp4_fast: 1.25 Gweights/s | 1.250 | 1.250 to 1.250 "
        "| ±1.0 % | 2 | better |"
    )
    apart = markdown(result(comparisons=(replace(COMPARISON, paired=False, noise_a=()),)), stale=False)
    assert "| not measured | 2 | better (not interleaved) |" in apart


def test_every_table_names_its_conditions() -> None:
    text = markdown(result(levels=LEVELS), stale=False)
    assert "Measured 2026-12-01 on Some CPU, 4 cores, Some OS 1. n = 2 rounds." in text
    assert "Build: cpu 0123456789ab; sources unknown." in text
    assert "Settings: backends CPU." in text
    assert "Command: lucebox bench ab" in text
    assert "STALE" not in text
    assert "**STALE**" in markdown(result(levels=LEVELS), stale=True)


def test_quality_row() -> None:
    row = markdown(result(qualities=QUALITIES), stale=False).splitlines()[4]
    assert row == (
        "| q4_0 | Q4_0 | 16.10 | 4.50 | 12.3000 ± 0.2000 | 0.020000 ± 0.002000 | 0.180000 "
        "| 98.90 ± 0.20 % | 3302 |"
    )
    unknown = markdown(result(qualities=(replace(QUALITIES[0], bits_per_weight=None),)), stale=False)
    assert "| 16.10 |  | 12.3000" in unknown


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (5.3104e9, "weights/s", "5.31 Gweights/s"),
        (2.5e6, "B/s", "2.5 MB/s"),
        (338.04, "tok/s", "338 tok/s"),
        (0.012345, "ms", "0.01235 ms"),
        (12.0, "", "12"),
    ],
)
def test_figures_are_short(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_a_change_has_its_interval() -> None:
    assert format_change(Interval(1.05744, 1.0562, 1.0587, 5)) == "+5.7 % [+5.6, +5.9]"


def test_ratio_picture_is_drawn_to_scale() -> None:
    found = pictures(result(comparisons=(COMPARISON,)), stale=False)
    assert list(found) == [""]
    root = ET.fromstring(found[""])
    bar = root.findall(f"{SVG}rect")[1]
    dashed = next(p for p in root.iter(f"{SVG}path") if p.get("stroke-dasharray"))
    left, end = float(bar.get("x", 0)), float(bar.get("x", 0)) + float(bar.get("width", 0))
    reference = float(dashed.get("d", "").split()[0].removeprefix("M"))
    assert (end - left) / (reference - left) == pytest.approx(1.25, abs=2e-3)
    assert "A <b> & c" in texts(found[""])
    assert any(words.startswith("Measured 2026-12-01 on Some CPU") for words in texts(found[""]))


def test_stale_picture_says_so() -> None:
    for figures in ({"comparisons": (COMPARISON,)}, {"levels": LEVELS}, {"qualities": QUALITIES}):
        fresh, stale = (pictures(result(**figures), mark)[""] for mark in (False, True))
        assert not any("STALE" in words for words in texts(fresh))
        assert "STALE: A <b> & c" in texts(stale)


def test_picture_a_kind_of_figure() -> None:
    found = pictures(result(comparisons=(COMPARISON,), levels=LEVELS, qualities=QUALITIES), stale=False)
    assert list(found) == ["ratio", "tok-per-s", "quality"]
    assert "60.18 tok/s" in " ".join(texts(found["tok-per-s"]))


def test_scalar_code_has_a_picture_of_its_own() -> None:
    scalar = replace(COMPARISON, arm_a="q4_0_rocmfp4_fast/scalar")
    found = pictures(result(comparisons=(COMPARISON, scalar)), stale=False)
    assert list(found) == ["ratio", "ratio-scalar"]
    assert any("/scalar" in words for words in texts(found["ratio-scalar"]))
    assert not any("/scalar" in words for words in texts(found["ratio"]))


def test_groups_differ_by_shape_as_well_as_colour() -> None:
    root = ET.fromstring(pictures(result(qualities=QUALITIES), stale=False)[""])
    # A mark in the legend and one a point: circles for upstream's two, squares for ours.
    assert len(root.findall(f"{SVG}circle")) == 3
    assert len(root.findall(f"{SVG}polygon")) == 2
    assert {"q4_0", "fp4", "f32", "upstream types", "ROCmFPX types"} <= set(texts(ET.tostring(root).decode()))


def test_a_divergence_that_is_not_above_0_is_drawn_at_the_bottom() -> None:
    root = ET.fromstring(pictures(result(qualities=QUALITIES), stale=False)[""])
    heights = sorted(float(c.get("cy", 0)) for c in root.findall(f"{SVG}circle"))
    assert heights[-1] - heights[-2] > 50


def test_labels_of_near_points_do_not_cover_each_other() -> None:
    points = [Point(f"point {i}", 10 + 0.01 * i, 0.02) for i in range(4)] + [Point("far", 20, 1)]
    svg = scatter(points, Frame("t", ()), "x", "y", ("g",))
    places = [
        (float(n.get("x", 0)), float(n.get("y", 0)))
        for n in ET.fromstring(svg).iter(f"{SVG}text")
        if (n.text or "").startswith("point")
    ]
    near = [(a, b) for i, a in enumerate(places) for b in places[:i] if abs(a[0] - b[0]) < 40]
    assert all(abs(a[1] - b[1]) >= 10 for a, b in near)


def test_long_labels_are_cut_and_long_notes_wrapped() -> None:
    svg = bar_chart([Bar("x" * 200, 1, 0.9, 1.1, "1")], Frame("t" * 300, ("word " * 70,)))
    words = texts(svg)
    assert max(len(w) for w in words) <= NOTE_CHARACTERS
    assert sum(w.startswith("word") for w in words) == 3


@pytest.mark.parametrize(("low", "high"), [(0, 1.2), (10, 31), (0, 5e9), (5, 5), (0, 0), (0.93, 0.95)])
def test_linear_ticks_enclose_and_stay_few(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8
    assert len({round(b - a, 9 if high < 1e6 else 0) for a, b in pairwise(ticks)}) == 1


def test_log_ticks_are_powers_of_ten() -> None:
    assert log_ticks([0.0003, 0.5]) == (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    assert log_ticks([0.1]) == (0.1, 1.0)


def test_folder_report_marks_what_has_changed_since(tmp_path: Path) -> None:
    root, folder = tmp_path / "repo", tmp_path / "results"
    root.mkdir()
    (root / "kernel.c").write_text("1", encoding="utf-8")
    source = Source(("kernel.c",), hash_files(root, ("kernel.c",)))
    result(comparisons=(COMPARISON,), source=source).save(folder / "one.json")
    result(comparisons=(COMPARISON,), levels=LEVELS).save(folder / "two.json")
    written = write_report(folder, tmp_path / "out", root)
    assert [p.name for p in written] == ["table.md", "one.svg", "two-ratio.svg", "two-tok-per-s.svg"]
    assert "STALE" not in written[0].read_text(encoding="utf-8")
    (root / "kernel.c").write_text("2", encoding="utf-8")
    write_report(folder, tmp_path / "out", root)
    page = written[0].read_text(encoding="utf-8")
    assert page.count("STALE") == 1
    assert "![A <b> & c](one.svg)" in page
    assert "STALE" in written[1].read_text(encoding="utf-8")
    with pytest.raises(RequestError, match="no result files"):
        write_report(root, tmp_path / "out", root)
