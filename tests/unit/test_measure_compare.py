"""Ratios, intervals, significance and gate on samples whose statistics are known."""

import math
import random
from collections.abc import Sequence

import pytest

from pylucebox.core.errors import GateError, RequestError
from pylucebox.measure.compare import (
    Comparison,
    Round,
    check_gate,
    higher_is_better,
    level,
    paired_ratio,
    welch_ratio,
)


def rounds(logs: Sequence[float]) -> tuple[Round, ...]:
    """Rounds whose two samples differ, and whose mean log is as given."""
    return tuple((math.exp(x - 0.1), math.exp(x + 0.1)) for x in logs)


def comparison(
    a: Sequence[float], b: Sequence[float], noise: Sequence[float] = (), unit: str = "x/s"
) -> Comparison:
    """A comparison of mean logs; `noise` are the log ratios of A to itself."""
    return Comparison("case", unit, "a", "b", rounds(a), rounds(b), rounds([0.0] * len(noise)), rounds(noise))


def test_ratio_and_interval_of_four_rounds_by_hand() -> None:
    # Log ratios 1, 2, 3, 4: mean 2.5, s^2 = 5/3, t(0.975, 3) = 3.182446, half width t*s/2 = 2.054260.
    found = paired_ratio(rounds([0, 0, 0, 0]), rounds([1, 2, 3, 4]))
    assert math.log(found.value) == pytest.approx(2.5)
    assert math.log(found.high) - 2.5 == pytest.approx(2.054260, abs=1e-6)
    assert 2.5 - math.log(found.low) == pytest.approx(2.054260, abs=1e-6)
    assert found.n == 4


def test_pairing_removes_what_both_arms_share() -> None:
    weather = [0.0, 3.0, -2.0, 1.0]
    a, b = rounds(weather), rounds([w + 0.05 for w in weather])
    paired, unpaired = paired_ratio(a, b), welch_ratio(a, b)
    assert paired.low == pytest.approx(math.exp(0.05)) == paired.high
    assert unpaired.value == pytest.approx(math.exp(0.05))
    assert unpaired.low < 0.1


def test_less_time_is_better() -> None:
    quicker = comparison([2.0, 2.1], [1.0, 1.1], unit="ms")
    assert quicker.ratio.value == pytest.approx(math.e)
    assert quicker.verdict == "better"
    assert comparison([2.0, 2.1], [1.0, 1.1], unit="tok/s").verdict == "worse"
    assert higher_is_better("weights/s")
    assert not higher_is_better("us")
    with pytest.raises(RequestError, match="unit 'tokens'"):
        higher_is_better("tokens")


def test_significance_needs_the_interval_and_the_floor() -> None:
    a, b = [0.0] * 4, [0.019, 0.021, 0.020, 0.020]
    assert comparison(a, b).significant
    quiet, loud = [0.001, -0.001, 0.0, 0.0], [0.03, -0.03, 0.02, -0.02]
    assert comparison(a, b, quiet).significant
    noisy = comparison(a, b, loud)
    assert noisy.ratio.low > 1
    assert noisy.floor > noisy.ratio.value
    assert noisy.verdict == "no difference shown"
    assert not comparison(a, [0.02, -0.01, 0.03, 0.0]).significant


def test_floor_counts_a_bias_of_the_set_up() -> None:
    biased = comparison([0.0] * 3, [0.05] * 3, noise=[-0.06, -0.06, -0.06])
    assert biased.floor == pytest.approx(math.exp(0.06))
    assert not biased.significant
    assert comparison([0.0] * 3, [0.05] * 3).floor == 1.0


def test_one_round_gives_no_interval() -> None:
    with pytest.raises(RequestError, match="at least two"):
        paired_ratio(rounds([0]), rounds([1]))
    with pytest.raises(RequestError, match="at least two"):
        welch_ratio(rounds([0]), rounds([1, 2]))
    with pytest.raises(RequestError, match="do not pair"):
        paired_ratio(rounds([0, 1]), rounds([1, 2, 3]))


def test_gate_looks_at_the_lower_end() -> None:
    good = comparison([0.0] * 4, [0.02, 0.021, 0.019, 0.02])
    wide = comparison([0.0] * 4, [0.10, -0.08, 0.09, -0.05])
    assert wide.ratio.value > 1
    check_gate([good], 0.01)
    check_gate([good], -0.02)
    with pytest.raises(GateError, match="1 of 2 cases fall short") as failed:
        check_gate([good, wide], -0.02)
    assert failed.value.exit_code == 7
    assert failed.value.hint == "more rounds narrow the interval"
    with pytest.raises(GateError) as slower:
        check_gate([comparison([0.0] * 3, [-0.1, -0.11, -0.09])], -0.02)
    assert slower.value.hint is None


def test_level_is_the_geometric_mean_of_all_samples() -> None:
    found = level([(1.0, 100.0), (10.0, 10.0)])
    assert found.value == pytest.approx(10)
    assert (found.low, found.high) == (pytest.approx(10), pytest.approx(10))


@pytest.mark.parametrize("estimate", [paired_ratio, welch_ratio])
def test_interval_holds_the_truth_as_often_as_it_says(estimate: object) -> None:
    rng, hits, trials = random.Random(20261201), 0, 1500
    for _ in range(trials):
        a = [(rng.lognormvariate(3, 0.05), rng.lognormvariate(3, 0.05)) for _ in range(6)]
        b = [(rng.lognormvariate(3.02, 0.05), rng.lognormvariate(3.02, 0.05)) for _ in range(6)]
        found = estimate(a, b)  # type: ignore[operator]
        hits += found.low <= math.exp(0.02) <= found.high
    # Three standard deviations of a share of 0.95 over 1500 trials are 0.017.
    assert 0.93 < hits / trials < 0.97


def test_welch_interval_agrees_with_a_worked_example() -> None:
    # Computed by scipy 1.17.1: ttest_ind(y, x, equal_var=False).confidence_interval(0.95), 5.7151 degrees.
    found = welch_ratio(rounds([1.0, 1.4, 0.7, 1.1]), rounds([1.5, 2.9, 1.2, 2.2, 1.9]))
    assert math.log(found.low) == pytest.approx(0.078181307459, abs=1e-10)
    assert math.log(found.high) == pytest.approx(1.701818692541, abs=1e-10)
    assert found.n == 4
