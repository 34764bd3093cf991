"""Runs arms in turns: warm-up, arm A against itself, then A B B A, B A A B, ….

An arm is anything that gives a value per case when it is run: a Python function, a native program that stays
resident (`programs.Resident`) or one that is started again each time (`llama_bench.visit`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.measure.compare import Comparison, Round

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. run: measures once and returns a value, above 0, for each case."""

    name: str
    run: Callable[[], Mapping[str, float]]

    @classmethod
    def of(cls, name: str, run: Callable[[], float], case: str = "") -> "Arm":
        """Make an arm of a function with a single value."""
        return cls(name, lambda: {case: run()})


@dataclass(frozen=True)
class Plan:
    """How often to measure. noise_rounds: of A against itself, 0 for none; warmups: runs not counted."""

    rounds: int = 8
    noise_rounds: int = 8
    warmups: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 2 or self.noise_rounds == 1 or min(self.noise_rounds, self.warmups) < 0:
            raise RequestError(
                f"rounds {self.rounds}, noise rounds {self.noise_rounds}, warm-ups {self.warmups}: an "
                "interval needs two rounds or more, noise rounds may be 0, and no count negative"
            )

    @property
    def runs(self) -> int:
        """Runs of both arms together, warm-ups included."""
        return 2 * self.warmups + 4 * (self.noise_rounds + self.rounds)


def order(round_index: int) -> str:
    """Return who runs when in a round; every other round is mirrored."""
    return "BAAB" if round_index % 2 else "ABBA"


def interleave(
    a: Arm, b: Arm, unit: str | Mapping[str, str], plan: Plan | None = None, progress: Progress | None = None
) -> tuple[Comparison, ...]:
    """Measure B against A and return one comparison a case, in the order in which A names the cases.

    unit: one for all cases, or one a case. progress: called with (runs done, runs in all) after each run.
    Raises IntegrityError when a run names other cases than the first did, or a value is not above 0.
    """
    plan = plan or Plan()
    turns = _Turns(plan.runs, progress)
    for arm in (a, b) * plan.warmups:
        turns.run(arm)
    noise = [turns.round(a, a, i) for i in range(plan.noise_rounds)]
    rounds = [turns.round(a, b, i) for i in range(plan.rounds)]
    return tuple(
        Comparison(
            case=case,
            unit=unit if isinstance(unit, str) else unit[case],
            arm_a=a.name,
            arm_b=b.name,
            samples_a=_pick(rounds, 0, case),
            samples_b=_pick(rounds, 1, case),
            noise_a=_pick(noise, 0, case),
            noise_b=_pick(noise, 1, case),
        )
        for case in turns.cases
    )


_Values = Mapping[str, float]
_Measured = tuple[list[_Values], list[_Values]]


class _Turns:
    """Runs arms one at a time, checks what they return and counts."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.cases: tuple[str, ...] = ()
        self._done, self._total, self._progress = 0, total, progress

    def run(self, arm: Arm) -> _Values:
        values = dict(arm.run())
        self.cases = self.cases or tuple(values)
        if set(values) != set(self.cases):
            raise IntegrityError(f"arm {arm.name}: measured {sorted(values)}, expected {sorted(self.cases)}")
        for case, value in values.items():
            if not (math.isfinite(value) and value > 0):
                raise IntegrityError(f"arm {arm.name}, case '{case}': {value} is not a measurement")
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)
        return values

    def round(self, a: Arm, b: Arm, index: int) -> _Measured:
        measured: _Measured = ([], [])
        for turn in order(index):
            measured["AB".index(turn)].append(self.run(a if turn == "A" else b))
        return measured


def _pick(rounds: Sequence[_Measured], side: int, case: str) -> tuple[Round, ...]:
    return tuple((r[side][0][case], r[side][1][case]) for r in rounds)
