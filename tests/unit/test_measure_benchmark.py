"""Who runs when, what drift does to a comparison, and what is not accepted as a measurement."""

import math
from collections.abc import Mapping

import pytest

from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.measure.benchmark import Arm, Plan, interleave, order


class Clock:
    """A machine whose speed changes by a factor with every run, and that notes who ran."""

    def __init__(self, factor: float = 1.0) -> None:
        self.runs: list[str] = []
        self._factor = factor

    def arm(self, name: str, speed: float) -> Arm:
        def run() -> float:
            self.runs.append(name)
            return speed * self._factor ** len(self.runs)

        return Arm.of(name, run, "case")


def test_warm_up_noise_floor_then_mirrored_rounds() -> None:
    clock = Clock()
    interleave(clock.arm("a", 1), clock.arm("b", 1), "x/s", Plan(rounds=3, noise_rounds=2, warmups=2))
    assert "".join(clock.runs) == "abab" + "aaaa" * 2 + "abba" + "baab" + "abba"
    assert [order(i) for i in range(3)] == ["ABBA", "BAAB", "ABBA"]


def test_warm_up_runs_are_not_counted() -> None:
    values = iter([1e9, 1e9, 2.0, 4.0, 4.0, 2.0, 4.0, 2.0, 2.0, 4.0])
    arm_a, arm_b = Arm.of("a", lambda: next(values)), Arm.of("b", lambda: next(values))
    (found,) = interleave(arm_a, arm_b, "x/s", Plan(rounds=2, noise_rounds=0))
    assert found.samples_a == ((2.0, 2.0), (2.0, 2.0))
    assert found.samples_b == ((4.0, 4.0), (4.0, 4.0))
    assert found.ratio.value == 2


def test_steady_drift_favours_neither_arm() -> None:
    clock = Clock(factor=0.97)
    (found,) = interleave(clock.arm("a", 5), clock.arm("b", 5), "x/s", Plan(rounds=5, noise_rounds=3))
    assert found.ratio.value == pytest.approx(1)
    assert found.ratio.high - found.ratio.low < 1e-9
    assert found.noise is not None
    assert found.noise.value == pytest.approx(1)
    # Measured one after the other, the same machine invents a large difference.
    one_after_the_other = math.exp(math.log(0.97) * 10)
    assert one_after_the_other < 0.75


def test_known_difference_is_found_under_drift() -> None:
    clock = Clock(factor=1.01)
    (found,) = interleave(clock.arm("a", 100), clock.arm("b", 103), "tok/s", Plan(rounds=4, noise_rounds=4))
    assert found.ratio.value == pytest.approx(1.03)
    assert found.significant
    assert (found.arm_a, found.arm_b, found.unit) == ("a", "b", "tok/s")


def test_cases_are_compared_one_by_one() -> None:
    a = Arm("a", lambda: {"prompt": 10.0, "step": 4.0})
    b = Arm("b", lambda: {"step": 2.0, "prompt": 30.0})
    prompt, step = interleave(a, b, {"prompt": "tok/s", "step": "ms"}, Plan(2, 0, 0))
    assert (prompt.case, prompt.ratio.value) == ("prompt", pytest.approx(3))
    assert (step.case, step.ratio.value) == ("step", pytest.approx(2))


def test_progress_counts_every_run() -> None:
    seen: list[tuple[int, int]] = []
    plan = Plan(rounds=2, noise_rounds=2, warmups=1)
    interleave(Clock().arm("a", 1), Clock().arm("b", 1), "x/s", plan, lambda *step: seen.append(step))
    assert seen == [(i, 18) for i in range(1, 19)]
    assert plan.runs == 18


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_measures_nothing_is_refused(value: float) -> None:
    with pytest.raises(IntegrityError, match=r"arm b, case 'case': .* is not a measurement"):
        interleave(Clock().arm("a", 1), Arm.of("b", lambda: value, "case"), "x/s")


def test_a_case_that_disappears_is_refused() -> None:
    answers: list[Mapping[str, float]] = [{"x": 1.0}, {"x": 1.0}, {"y": 1.0}]
    arm = Arm("a", lambda: answers.pop(0))
    with pytest.raises(IntegrityError, match=r"arm a: measured \['y'\], expected \['x'\]"):
        interleave(arm, arm, "x/s")


@pytest.mark.parametrize("counts", [(1, 2, 0), (2, 1, 0), (2, -1, 0), (2, 2, -1)])
def test_plans_without_an_interval_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(RequestError, match="needs two rounds"):
        Plan(*counts)
