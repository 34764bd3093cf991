"""From samples to a statement: ratio with its interval, A/A floor, significance, gate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from pylucebox.core.errors import GateError, RequestError
from pylucebox.measure.student import t_quantile

CONFIDENCE = 0.95
TIME_UNITS = ("s", "ms", "us", "ns")

# Samples of one arm in one round; a comparison has two of each arm, measured A B B A or B A A B.
Round = tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A value and the interval that holds the true one in `CONFIDENCE` of all cases; n independent values."""

    value: float
    low: float
    high: float
    n: int

    def scaled(self, factor: float) -> "Interval":
        """Return the interval in other units."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.n)


@dataclass(frozen=True)
class Comparison:
    """Arm B held against arm A on one case.

    samples_a, samples_b: two values a round, in `unit`. noise_a, noise_b: the same of arm A against itself,
    empty when it was not measured. paired: the arms took turns; otherwise they ran at different times.
    layout_a, layout_b: how each kept its data in memory, where that was said.
    """

    case: str
    unit: str
    arm_a: str
    arm_b: str
    samples_a: tuple[Round, ...]
    samples_b: tuple[Round, ...]
    noise_a: tuple[Round, ...] = ()
    noise_b: tuple[Round, ...] = ()
    paired: bool = True
    layout_a: str = ""
    layout_b: str = ""

    @property
    def ratio(self) -> Interval:
        """How many times better B is than A: above 1 for more a second, and for less time."""
        compare = paired_ratio if self.paired else welch_ratio
        return compare(self.samples_a, self.samples_b, higher_is_better(self.unit))

    @property
    def levels(self) -> tuple[Interval, Interval]:
        """What A and what B measured, in `unit`."""
        return level(self.samples_a), level(self.samples_b)

    @property
    def noise(self) -> Interval | None:
        """The ratio of arm A to itself."""
        if not self.noise_a:
            return None
        return paired_ratio(self.noise_a, self.noise_b, higher_is_better(self.unit))

    @property
    def floor(self) -> float:
        """The A/A floor as a ratio of at least 1: the far end of the A/A interval; 1 when not measured."""
        noise = self.noise
        return 1.0 if noise is None else max(noise.high, 1 / noise.low)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1 and the ratio lies outside the A/A floor."""
        ratio = self.ratio
        excludes_one = ratio.low > 1 or ratio.high < 1
        return excludes_one and max(ratio.value, 1 / ratio.value) > self.floor

    @property
    def verdict(self) -> str:
        """One word for a table."""
        if not self.significant:
            return "no difference shown"
        return "better" if self.ratio.value > 1 else "worse"


def higher_is_better(unit: str) -> bool:
    """Return whether more of `unit` is better. Raises RequestError for a unit that does not say."""
    if unit.endswith("/s"):
        return True
    if unit in TIME_UNITS:
        return False
    raise RequestError(f"unit '{unit}': neither a rate (…/s) nor a time ({', '.join(TIME_UNITS)})")


def paired_ratio(a: Sequence[Round], b: Sequence[Round], higher: bool = True) -> Interval:
    """Return the ratio of B to A (of A to B when less is better) over rounds in which both took turns.

    One round gives one log ratio; drift that is linear over a round cancels in it. n: the rounds.
    """
    if len(a) != len(b):
        raise RequestError(f"rounds do not pair: {len(a)} of one arm, {len(b)} of the other")
    sign = 1 if higher else -1
    return _exp(_mean([sign * (_log(y) - _log(x)) for x, y in zip(a, b, strict=True)]))


def welch_ratio(a: Sequence[Round], b: Sequence[Round], higher: bool = True) -> Interval:
    """Return the ratio as `paired_ratio` does, for arms that ran at different times (Welch's interval)."""
    logs_a, logs_b = [_log(x) for x in a], [_log(y) for y in b]
    _demand(min(len(a), len(b)))
    share_a, share_b = variance(logs_a) / len(a), variance(logs_b) / len(b)
    spread = share_a + share_b
    freedom = float(len(a) + len(b) - 2)
    if spread > 0:
        freedom = spread**2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
    half = t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(spread)
    value = (fmean(logs_b) - fmean(logs_a)) * (1 if higher else -1)
    return _exp(Interval(value, value - half, value + half, min(len(a), len(b))))


def level(rounds: Sequence[Round]) -> Interval:
    """Return the geometric mean of one arm's samples with its interval; n: the rounds."""
    return _exp(_mean([_log(x) for x in rounds]))


def check_gate(comparisons: Sequence[Comparison], gate: float) -> None:
    """Raise GateError unless every interval lies above `gate`, a change such as -0.02 for -2 %."""
    short = [c for c in comparisons if c.ratio.low - 1 < gate]
    if not short:
        return
    worst = min(short, key=lambda c: c.ratio.low)
    raise GateError(
        f"gate {gate:+.1%}: {len(short)} of {len(comparisons)} cases fall short, worst '{worst.case}' "
        f"({worst.arm_b} against {worst.arm_a}) with a lower end of {worst.ratio.low - 1:+.1%}",
        hint="more rounds narrow the interval" if worst.ratio.value - 1 >= gate else None,
    )


def _log(values: Round) -> float:
    return fmean(math.log(v) for v in values)


def _mean(values: Sequence[float]) -> Interval:
    """Return the mean with Student's interval."""
    _demand(len(values))
    mean = fmean(values)
    half = t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def _demand(rounds: int) -> None:
    if rounds < 2:
        raise RequestError(f"{rounds} rounds: an interval needs at least two", hint="raise --rounds")


def _exp(logs: Interval) -> Interval:
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n)
