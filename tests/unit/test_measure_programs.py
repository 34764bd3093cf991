"""Native benchmark programs as arms, played by small scripts that keep the contract, or break it."""

from pathlib import Path

import pytest
from speaking_programs import write_contract_program, write_program

from pylucebox.core.errors import GateError, IntegrityError, MissingError, RequestError
from pylucebox.measure import kernels
from pylucebox.measure.benchmark import Plan, interleave
from pylucebox.measure.compare import Comparison
from pylucebox.measure.programs import (
    Record,
    Resident,
    list_records,
    measure_pairs,
    pairs_of,
    parse_record,
    rerun,
)


def script(folder: Path, text: str) -> list[str | Path]:
    return [write_program(folder / "program", text)]


def keeper(
    folder: Path, speeds: dict[str, float], cases: tuple[str, ...] = ("dot k=4096",)
) -> list[str | Path]:
    return [write_contract_program(folder / "program", speeds, cases)]


def test_resident_program_is_compared_without_being_started_again(tmp_path: Path) -> None:
    argv = keeper(tmp_path, {"q4_0": 1e9, "mxfp4": 1.5e9})
    a, b = list_records(argv, tmp_path / "list.log")
    with Resident(argv, tmp_path / "serve.log") as program:
        (found,) = interleave(program.arm(a), program.arm(b), a.unit, Plan(4, 4, 1))
    assert found.case == "dot k=4096"
    # Drift of a part in a thousand a request cancels: a program started anew each time would have shown none.
    assert found.ratio.value == pytest.approx(1.5, rel=1e-9)
    assert found.samples_a[0][1] > found.samples_a[0][0]
    assert "noise for people" in (tmp_path / "serve.log").read_text(encoding="utf-8")


def test_program_that_is_started_again_each_time(tmp_path: Path) -> None:
    argv = keeper(tmp_path, {"a": 1e9, "b": 1.5e9})
    arms = [rerun(name, argv, tmp_path / "run.log") for name in ("a", "b")]
    assert dict(arms[0].run()) == {"dot k=4096": pytest.approx(2e9)}
    assert dict(arms[1].run()) == {"dot k=4096": pytest.approx(3e9)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("speed: 3", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"arm": "a", "value": 1, "unit": "x/s"}', "field 'case'"),
        ('{"case": "c", "arm": 3, "value": 1, "unit": "x/s"}', "field 'arm'"),
        ('{"case": "c", "arm": "a", "value": 1}', "field 'unit'"),
        ('{"case": "c", "arm": "a", "unit": "x/s"}', "field 'value'"),
        ('{"case": "c", "arm": "a", "value": 0, "unit": "x/s"}', "field 'value'"),
        ('{"case": "c", "arm": "a", "value": NaN, "unit": "x/s"}', "field 'value'"),
        ('{"case": "c", "arm": "a", "value": "1", "unit": "x/s"}', "field 'value'"),
    ],
)
def test_malformed_lines_are_refused_by_field(line: str, words: str) -> None:
    with pytest.raises(IntegrityError, match=words):
        parse_record(line, "bench")


def test_a_program_can_say_what_it_cannot_do() -> None:
    with pytest.raises(RequestError, match="bench: no AVX-512 here"):
        parse_record('{"error": "no AVX-512 here"}', "bench")
    with pytest.raises(RequestError, match="unit 'furlongs'"):
        parse_record('{"case": "c", "arm": "a", "value": 1, "unit": "furlongs"}', "bench")


def test_an_answer_about_something_else_is_refused(tmp_path: Path) -> None:
    argv = script(
        tmp_path,
        "import sys\nfor _ in sys.stdin:\n"
        '    print(\'{"case": "c", "arm": "other", "value": 1, "unit": "x/s"}\', flush=True)\n',
    )
    with (
        Resident(argv, tmp_path / "log") as program,
        pytest.raises(IntegrityError, match="asked for mine, 'c'"),
    ):
        program.measure(Record("c", "mine", "x/s", None))


def test_a_program_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    argv = script(tmp_path, "import sys\ninput()\nsys.exit('out of memory')\n")
    with Resident(argv, tmp_path / "log") as program, pytest.raises(RequestError, match="exit 1") as failed:
        program.measure(Record("c", "a", "x/s", None))
    assert failed.value.log_tail == ("out of memory",)
    with pytest.raises(MissingError, match="program not found"):
        Resident([tmp_path / "absent"], tmp_path / "log")


def all_types() -> dict[str, float]:
    """A speed for every arm of the table: ours three times their own scalar code, twice the other's."""
    ours = {pair[0] for pair in kernels.PAIRS}
    return {
        **dict.fromkeys(sorted(ours), 6.0),
        **{pair[1]: 3.0 for pair in kernels.PAIRS},
        **{name + kernels.SCALAR: 2.0 for name in sorted(ours)},
    }


def test_every_pair_is_measured_in_every_case(tmp_path: Path) -> None:
    argv = keeper(tmp_path, all_types(), ("dot k=2048", "dot k=4096"))
    seen: list[tuple[int, int]] = []
    pairs = kernels.find_pairs(list_records(argv, tmp_path / "log"))
    found = measure_pairs(argv, pairs, tmp_path / "log", Plan(2, 2, 1), lambda *step: seen.append(step))
    assert len(found) == 2 * (len(kernels.PAIRS) + 6)
    assert {(c.arm_b, c.arm_a) for c in found if not c.arm_a.endswith(kernels.SCALAR)} == {
        pair[:2] for pair in kernels.PAIRS
    }
    ratios = {c.arm_a.endswith(kernels.SCALAR): round(c.ratio.value, 6) for c in found}
    assert ratios == {False: 2.0, True: 3.0}
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert {(c.layout_a, c.layout_b) for c in found} == {("rows", "rows")}


def test_a_type_that_is_missing_makes_no_shorter_table(tmp_path: Path) -> None:
    speeds = all_types()
    del speeds["nvfp4"]
    records = list_records(keeper(tmp_path, speeds), tmp_path / "log")
    with pytest.raises(RequestError, match="does not measure nvfp4"):
        kernels.find_pairs(records)


def test_pairs_can_be_chosen(tmp_path: Path) -> None:
    records = list_records(keeper(tmp_path, all_types()), tmp_path / "log")
    chosen = kernels.find_pairs(records, "mxfp4")
    assert [(p.b.arm, p.a.arm) for p in chosen] == [("q4_0_rocmfp4_fast", "mxfp4")]
    with pytest.raises(RequestError, match="no pair matches 'q9'"):
        kernels.find_pairs(records, "q9")


def test_arms_of_any_program_are_paired_where_both_measure(tmp_path: Path) -> None:
    records = [Record(case, arm, "tok/s", None) for case in ("prompt", "decode") for arm in ("a", "b")]
    assert [p.a.case for p in pairs_of(records, "a", "b")] == ["prompt", "decode"]
    assert [p.b.arm for p in pairs_of(records[:3], "a", "b")] == ["b"]
    assert pairs_of(records, "a", "c") == ()


def test_goals_are_judged_by_the_lower_end() -> None:
    def held(b: str, a: str, *ratios: float) -> Comparison:
        ones = tuple((1.0, 1.0) for _ in ratios)
        return Comparison("dot", "weights/s", a, b, ones, tuple((r, r) for r in ratios))

    good = [held("q2_0_rocmfp2", "q2_K", 0.93, 0.93), held("q8_0_rocmfpx", "q8_0_rocmfpx/scalar", 6, 6)]
    kernels.check_goals(good)
    with pytest.raises(GateError, match=r"1 of 3 pairs .*: dot: q8_0_rocmfpx against q8_0 0\.990, goal 1"):
        kernels.check_goals([*good, held("q8_0_rocmfpx", "q8_0", 0.99, 0.99)])
    with pytest.raises(GateError, match="against q6_K"):
        kernels.check_goals([held("q6_0_rocmfpx", "q6_K", 1.1, 0.95, 1.2)])
    with pytest.raises(GateError, match="goal 5"):
        kernels.check_goals([held("q8_0_rocmfpx", "q8_0_rocmfpx/scalar", 4.9, 4.9)])
