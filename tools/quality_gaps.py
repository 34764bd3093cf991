"""How far our types are from upstream's at the same size, and how much of that --search makes up.

The best upstream type of a size is read off the lower hull of log KLD against bits a weight, since a weight
format between two others can be had by giving some tensors the one, some the other.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pylucebox.core.errors import IntegrityError
from pylucebox.measure.report import Quality, load, write_text

SECTION = re.compile(r"^(<!-- quality gaps -->\n).*?^(<!-- /quality gaps -->)$", re.DOTALL | re.MULTILINE)
MIXES = ("quality-mixes.json", "quality-mixes-imatrix.json")
# Heading -> result files, upstream types left out.
TABLES = {
    "One type at a time:": (("quality-types.json", "quality-types-imatrix.json"), ()),
    "One type at a time, the routed experts F32:": (("quality-dense-imatrix.json",), ()),
    "Whole files:": (MIXES, ()),
    "Whole files, without MXFP4_MOE, which holds this checkpoint's experts without error:": (
        MIXES,
        ("MXFP4_MOE",),
    ),
}
SAME, SEARCH = " = ", " search"  # in names: the same weights under two names; made with --search
GOAL = 1 / 3
SIGMAS = 2.0
HEAD = (
    "type", "imatrix", "bits", "KLD", "KLD `--search`", "upstream at that size", "upstream KLD",
    "KLD : upstream", "`--search` : upstream", "gap cut by", "a third?",
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A figure with one standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Gap:
    """One type of ours, plain and searched, beside the best upstream can do at that size (`rival`)."""

    name: str
    plain: Quality
    search: Quality
    rival: Value
    rival_names: str

    @property
    def is_behind(self) -> bool:
        """Whether there is a gap: upstream is better by more than the standard errors explain."""
        return self._difference > self._margin

    @property
    def is_ahead(self) -> bool:
        """Whether ours is better by more than the standard errors explain."""
        return self._difference < -self._margin

    @property
    def _difference(self) -> float:
        return self.plain.kld_mean - self.rival.value

    @property
    def _margin(self) -> float:
        return SIGMAS * math.hypot(self.plain.kld_mean_error, self.rival.error)

    @property
    def cut(self) -> Value:
        """The part of the gap that search closes; errors are taken as independent, which overstates them."""
        if self.search == self.plain:  # the same weights
            return Value(0.0, 0.0)
        plain, search, rival = self.plain.kld_mean, self.search.kld_mean, self.rival.value
        gap = plain - rival
        by_search = self.search.kld_mean_error / gap
        by_plain = self.plain.kld_mean_error * (search - rival) / gap**2
        by_rival = self.rival.error * (plain - search) / gap**2
        return Value((plain - search) / gap, math.hypot(by_search, by_plain, by_rival))

    @property
    def verdict(self) -> str:
        """Whether the gap is cut by a third, as far as the standard errors tell."""
        if not self.is_behind:
            return "no gap"
        low, high = (self.cut.value + sign * SIGMAS * self.cut.error for sign in (-1, 1))
        if low >= GOAL:
            return "yes"
        word = "yes" if self.cut.value >= GOAL else "no"
        return "no" if high < GOAL else f"{word}, within the errors"


def lower_hull(points: Sequence[Quality]) -> list[Quality]:
    """Return the points on the lower convex hull of log KLD against bits, from small to large."""
    hull: list[Quality] = []
    for point in sorted(points, key=lambda q: (q.bits_per_weight or 0, q.kld_mean)):
        while len(hull) >= 2 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        if not hull or (
            point.bits_per_weight != hull[-1].bits_per_weight and point.kld_mean < hull[-1].kld_mean
        ):
            hull.append(point)
    return hull


def best_at(hull: Sequence[Quality], bits: float) -> tuple[Value, str]:
    """Return KLD and names of what the hull has at `bits`; beyond its ends the last type there."""
    for low, high in pairwise(hull):
        start, end = _bits(low), _bits(high)
        if start <= bits <= end:
            part = (bits - start) / (end - start)
            value = math.exp((1 - part) * math.log(low.kld_mean) + part * math.log(high.kld_mean))
            relative = math.hypot(
                (1 - part) * low.kld_mean_error / low.kld_mean, part * high.kld_mean_error / high.kld_mean
            )
            names = low.name if part == 0 else high.name if part == 1 else f"{low.name} to {high.name}"
            return Value(value, value * relative), names
    end_point = hull[0] if bits < _bits(hull[0]) else hull[-1]
    return Value(
        end_point.kld_mean, end_point.kld_mean_error
    ), f"{end_point.name} ({_bits(end_point):.2f} bits)"


def find_gaps(qualities: Sequence[Quality], without: Sequence[str] = ()) -> list[Gap]:
    """Return the gap of each of our types. without: upstream types left out of the hull."""
    by_name = {name: q for q in qualities for name in q.name.split(SAME)}
    hull = lower_hull([q for q in qualities if not is_ours(q) and q.name not in without])
    found = []
    for quality in filter(is_ours, qualities):
        names = [name for name in quality.name.split(SAME) if not name.endswith(SEARCH)]
        if names and (search := by_name.get(names[0] + SEARCH)):
            found.append(Gap(SAME.join(names), quality, search, *best_at(hull, _bits(quality))))
    return found


def is_ours(quality: Quality) -> bool:
    """Return whether a model has weights in a type of ours."""
    return "ROCMFP" in quality.type_name


def section(results: Path) -> str:
    """Return the tables of gaps, made of the result files in `results`."""
    parts = []
    for heading, (stems, without) in TABLES.items():
        rows = [
            ("yes" if "imatrix" in stem else "no", gap)
            for stem in stems
            for gap in find_gaps(load(results / stem).qualities, without)
        ]
        parts.append(f"{heading}\n\n{_table(rows)}\n\n{summary(rows)}")
    return "\n\n".join(parts) + "\n"


def summary(rows: Sequence[tuple[str, Gap]]) -> str:
    """Return lines that say what is behind upstream, level or ahead, and what search makes of the gaps."""

    def names(chosen: Iterable[tuple[str, Gap]], cut: bool = False) -> str:
        said = [
            gap.name
            + (" with imatrix" if imatrix == "yes" else "")
            + (f" ({100 * gap.cut.value:.0f} %)" if cut else "")
            for imatrix, gap in chosen
        ]
        return ", ".join(said) or "none"

    behind = [row for row in rows if row[1].is_behind]
    level = [row for row in rows if not row[1].is_behind and not row[1].is_ahead]
    lines = {
        "Behind upstream by more than the errors": names(behind),
        "level": names(level),
        "ahead": names(row for row in rows if row[1].is_ahead),
        "`--search` surely closes a third of the gap of": names(r for r in behind if r[1].verdict == "yes"),
        "of the others it closes": names((r for r in behind if r[1].verdict != "yes"), cut=True),
    }
    return "\n".join(f"* {what}: {who}." for what, who in lines.items())


def write_section(document: Path, results: Path) -> None:
    """Write the tables between the document's marks. Raises IntegrityError when they are not there once."""
    text = document.read_text(encoding="utf-8")
    write_text(document, render(text, results, document))


def render(text: str, results: Path, document: Path) -> str:
    """Return a document's text with the tables made anew."""
    if len(SECTION.findall(text)) != 1:
        raise IntegrityError(
            f"{document}: not one pair of '<!-- quality gaps -->' and '<!-- /quality gaps -->'"
        )
    return SECTION.sub(lambda match: f"{match.group(1)}\n{section(results)}\n{match.group(2)}", text)


def _table(rows: Sequence[tuple[str, Gap]]) -> str:
    lines = [HEAD, ("---",) * len(HEAD), *(_row(imatrix, gap) for imatrix, gap in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(imatrix: str, gap: Gap) -> tuple[str, ...]:
    plain, search, rival = gap.plain, gap.search, gap.rival
    cut = f"{100 * gap.cut.value:.0f} ± {100 * gap.cut.error:.0f} %" if gap.is_behind else ""
    return (
        gap.name, imatrix, f"{_bits(plain):.2f}", _figure(plain.kld_mean, plain.kld_mean_error),
        _figure(search.kld_mean, search.kld_mean_error), gap.rival_names, _figure(rival.value, rival.error),
        f"{plain.kld_mean / rival.value:.2f}", f"{search.kld_mean / rival.value:.2f}", cut, gap.verdict,
    )  # fmt: skip


def _figure(value: float, error: float) -> str:
    digits = max(2, 1 - math.floor(math.log10(error))) if error > 0 else 6
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _bits(quality: Quality) -> float:
    if quality.bits_per_weight is None:
        raise IntegrityError(f"{quality.name}: the result does not say its bits a weight")
    return quality.bits_per_weight


def _turn(a: Quality, b: Quality, c: Quality) -> float:
    """Return above 0 when a, b, c turn left, as they do on a lower hull."""
    across = (_bits(b) - _bits(a)) * (math.log(c.kld_mean) - math.log(a.kld_mean))
    return across - (math.log(b.kld_mean) - math.log(a.kld_mean)) * (_bits(c) - _bits(a))
