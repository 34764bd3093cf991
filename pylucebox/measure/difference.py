"""Two result files held against each other: what they share, and how it changed."""

from collections.abc import Iterator

from pylucebox.core.errors import RequestError
from pylucebox.measure.compare import Comparison, Round
from pylucebox.measure.report import Result

MACHINE = ("cpu", "cores", "governor")


def compare_results(a: Result, b: Result, allow_unlike: bool = False) -> tuple[Comparison, ...]:
    """Return one comparison for each case and arm that both files measured; they did not take turns.

    Files with one arm a case are matched by case, whatever the arms are called. Raises RequestError when they
    share nothing, or come from other machines or settings and `allow_unlike` is not set.
    """
    unlike = _unlike(a, b)
    if unlike and not allow_unlike:
        raise RequestError(
            f"measured under different conditions: {', '.join(unlike)}",
            hint="--allow-unlike compares them all the same",
        )
    left, right = _samples(a), _samples(b)
    arms = ({arm for _, arm, _ in left}, {arm for _, arm, _ in right})
    names = (min(arms[0], default=""), min(arms[1], default=""))
    if len(arms[0]) == len(arms[1]) == 1:
        right = {(case, names[0], unit): rounds for (case, _, unit), rounds in right.items()}
    shared = [key for key in left if key in right]
    if not shared:
        raise RequestError("the two files have no measured case in common")
    renamed = arms[0] != arms[1] and len(arms[0]) == len(arms[1]) == 1
    return tuple(
        Comparison(
            case=case,
            unit=unit,
            arm_a=arm if renamed else f"{arm} (first file)",
            arm_b=names[1] if renamed else f"{arm} (second file)",
            samples_a=left[case, arm, unit],
            samples_b=right[case, arm, unit],
            paired=False,
        )
        for case, arm, unit in shared
    )


_Key = tuple[str, str, str]


def _samples(result: Result) -> dict[_Key, tuple[Round, ...]]:
    """Return every arm's rounds by case, arm and unit; an arm of several comparisons has them all."""
    found: dict[_Key, tuple[Round, ...]] = {}
    for key, rounds in _arms(result):
        found[key] = (*found.get(key, ()), *rounds)
    return found


def _arms(result: Result) -> Iterator[tuple[_Key, tuple[Round, ...]]]:
    for c in result.comparisons:
        yield (c.case, c.arm_a, c.unit), c.samples_a
        yield (c.case, c.arm_b, c.unit), c.samples_b
    for one in result.levels:
        yield (one.case, one.arm, one.unit), one.samples


def _unlike(a: Result, b: Result) -> list[str]:
    pairs = [(name, getattr(a.machine, name), getattr(b.machine, name)) for name in MACHINE]
    common = sorted(a.settings.keys() & b.settings.keys())
    pairs += [(name, a.settings[name], b.settings[name]) for name in common]
    return [f"{name} {x} against {y}" for name, x, y in pairs if x != y]
