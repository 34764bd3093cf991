"""Student's t quantile against closed forms, and against scipy where it is installed."""

import math

import pytest

from pylucebox.measure.student import incomplete_beta, t_cdf, t_quantile

# Two-sided 95 % values as printed in tables.
TABLE = {1: 12.706, 2: 4.303, 4: 2.776, 7: 2.365, 9: 2.262, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_quantile_agrees_with_printed_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9999])
def test_quantile_agrees_with_closed_forms(probability: float) -> None:
    one = math.tan(math.pi * (probability - 0.5))
    alpha = 4 * probability * (1 - probability)
    two = 2 * (probability - 0.5) * math.sqrt(2 / alpha)
    assert t_quantile(probability, 1) == pytest.approx(one, rel=1e-9)
    assert t_quantile(probability, 2) == pytest.approx(two, rel=1e-9)


def test_quantile_is_odd_and_the_inverse_of_the_distribution() -> None:
    assert t_quantile(0.025, 5) == -t_quantile(0.975, 5)
    assert t_quantile(0.5, 3) == 0
    for freedom in (1.5, 4, 33.3, 1e6):
        assert t_cdf(t_quantile(0.95, freedom), freedom) == pytest.approx(0.95, rel=1e-10)


def test_many_degrees_of_freedom_approach_the_normal() -> None:
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959963985, rel=1e-6)


@pytest.mark.parametrize(("probability", "freedom"), [(0, 3), (1, 3), (0.9, 0), (0.9, -1), (math.nan, 3)])
def test_values_outside_the_distribution_are_refused(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(probability, freedom)


def test_agreement_with_scipy() -> None:
    special = pytest.importorskip("scipy.special", reason="not run: scipy (extra 'measure')")
    for freedom in (1, 1.7, 2, 3, 4.2, 7, 9, 19, 63.5, 499, 12345):
        for probability in (0.5001, 0.8, 0.95, 0.975, 0.995, 0.99999):
            expected = special.stdtrit(freedom, probability)
            assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-8)
    for a, b, x in ((0.5, 0.5, 0.3), (2, 0.5, 0.99), (40, 0.5, 0.2), (3, 7, 0.5), (500, 0.5, 0.999)):
        assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-11)
