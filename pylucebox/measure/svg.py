"""A small SVG writer: bars with interval whiskers, and points with labels. Text stays text, no scripts."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 880
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
INK, FAINT, RULE = "#1f2328", "#59636e", "#d1d9e0"
FILLS = ("#4493c8", "#e08a3c", "#5a9e6f", "#9a6fb0")
STALE_INK = "#b3261e"

TITLE_HEIGHT = 44
ROW_HEIGHT = 26
LINE_HEIGHT = 16
AXIS_HEIGHT = 48
LABEL_WIDTH = 400
VALUE_WIDTH = 150
PLOT_HEIGHT = 340
NOTE_CHARACTERS = 138
CHARACTER_WIDTH = 6.6  # of 12 px text; labels are cut and placed by it

Box = tuple[float, float, float, float]  # left, top, width, height


@dataclass(frozen=True)
class Bar:
    """One row: length `value`, whiskers from `low` to `high`, `text` at its right."""

    label: str
    value: float
    low: float
    high: float
    text: str
    group: int = 0


@dataclass(frozen=True)
class Point:
    """One mark of a scatter: error is half the length of its whisker along y."""

    label: str
    x: float
    y: float
    error: float = 0.0
    group: int = 0


@dataclass(frozen=True)
class Frame:
    """Words around a picture. notes: small lines below; stale: marks the title."""

    title: str
    notes: tuple[str, ...]
    stale: bool = False


def bar_chart(bars: Sequence[Bar], frame: Frame, reference: float | None = None, axis: str = "") -> str:
    """Return a chart of horizontal bars from 0, with a dashed line at `reference` when given."""
    top, left, right = TITLE_HEIGHT + 8, LABEL_WIDTH, WIDTH - VALUE_WIDTH
    bottom = top + ROW_HEIGHT * len(bars)
    ticks = linear_ticks(0, max([b.high for b in bars] + ([reference] if reference else [])))
    scale = (right - left) / ticks[-1]
    body = [_column(left + t * scale, top, bottom, f"{t:g}") for t in ticks]
    for row, bar in enumerate(bars):
        y = top + ROW_HEIGHT * (row + 0.5)
        fill = FILLS[bar.group % len(FILLS)]
        body += [
            _text(left - 8, y + 4, _cut(bar.label, LABEL_WIDTH - 16), anchor="end"),
            f'<rect x="{left}" y="{y - 8:.1f}" width="{bar.value * scale:.1f}" height="16" fill="{fill}"/>',
            _line(left + bar.low * scale, y, left + bar.high * scale, y),
            *(_line(left + end * scale, y - 4, left + end * scale, y + 4) for end in (bar.low, bar.high)),
            _text(right + 10, y + 4, bar.text),
        ]
    if reference:
        x = left + reference * scale
        body.append(_line(x, top - 4, x, bottom, dash=True))
    body.append(_text((left + right) / 2, bottom + 36, axis, anchor="middle", fill=FAINT))
    return _document(body, bottom + AXIS_HEIGHT, frame)


@dataclass(frozen=True)
class _Axes:
    """Places points on a linear x and a logarithmic y."""

    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    left: float = 70
    right: float = WIDTH - 30
    top: float = TITLE_HEIGHT + 28
    bottom: float = TITLE_HEIGHT + 28 + PLOT_HEIGHT

    def x(self, value: float) -> float:
        first, last = self.x_ticks[0], self.x_ticks[-1]
        return self.left + (self.right - self.left) * (value - first) / (last - first)

    def y(self, value: float) -> float:
        first, last = self.y_ticks[0], self.y_ticks[-1]
        share = math.log(max(value, first) / first) / math.log(last / first)
        return self.bottom - (self.bottom - self.top) * share


def scatter(points: Sequence[Point], frame: Frame, x_axis: str, y_axis: str, groups: Sequence[str]) -> str:
    """Return points over a linear x and a logarithmic y (y above 0), one shape and colour a group."""
    xs = [p.x for p in points]
    axes = _Axes(linear_ticks(min(xs), max(xs)), log_ticks([p.y for p in points]))
    body = [_column(axes.x(t), axes.top, axes.bottom, f"{t:g}") for t in axes.x_ticks]
    for tick in axes.y_ticks:
        y = axes.y(tick)
        body.append(_line(axes.left, y, axes.right, y, RULE))
        body.append(_text(axes.left - 8, y + 4, f"{tick:g}", anchor="end", fill=FAINT))
    body.append(_text(12, axes.top - 14, y_axis, fill=FAINT))
    body += _legend(groups, axes.right, axes.top - 14)
    taken = [(axes.x(p.x) - 6, axes.y(p.y) - 6, 12.0, 12.0) for p in points]
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        x, y = axes.x(point.x), axes.y(point.y)
        if point.error > 0:
            body.append(_line(x, axes.y(point.y - point.error), x, axes.y(point.y + point.error)))
        body += [_mark(x, y, point.group), _label(point.label, x, y, axes.right, taken)]
    middle = (axes.left + axes.right) / 2
    body.append(_text(middle, axes.bottom + 36, x_axis, anchor="middle", fill=FAINT))
    return _document(body, axes.bottom + AXIS_HEIGHT, frame)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return round numbers, evenly spaced, that enclose `low` and `high`."""
    span = high - low or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= span / 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(round(i * step, 12) for i in range(first, max(last, first + 1) + 1))


def log_ticks(values: Sequence[float]) -> tuple[float, ...]:
    """Return powers of ten around `values`, which are above 0."""
    first = math.floor(math.log10(min(values)))
    last = max(math.ceil(math.log10(max(values))), first + 1)
    return tuple(float(f"1e{power}") for power in range(first, last + 1))


def _document(body: Sequence[str], bottom: float, frame: Frame) -> str:
    notes = [line for note in frame.notes for line in textwrap.wrap(note, NOTE_CHARACTERS)]
    height = bottom + LINE_HEIGHT * len(notes) + 12
    title = ("STALE: " if frame.stale else "") + frame.title
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="{FONT}" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        _text(12, 26, _cut(title, WIDTH - 24, 15), fill=STALE_INK if frame.stale else INK, size=15),
    ]
    foot = [
        _text(12, bottom + LINE_HEIGHT * (i + 0.75), line, fill=FAINT, size=11)
        for i, line in enumerate(notes)
    ]
    return "\n".join([*head, *body, *foot, "</svg>"]) + "\n"


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, size: int | None = None
) -> str:
    big = f' font-size="{size}"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{big}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = INK, dash: bool = False) -> str:
    pattern = ' stroke-dasharray="4 3"' if dash else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{stroke}"{pattern}/>'


def _column(x: float, top: float, bottom: float, label: str) -> str:
    """Return a vertical grid line with its number below."""
    return _line(x, top, x, bottom, RULE) + _text(x, bottom + 18, label, anchor="middle", fill=FAINT)


def _mark(x: float, y: float, group: int) -> str:
    """Return a circle, square, diamond or triangle: shape says the group as well as colour does."""
    fill = FILLS[group % len(FILLS)]
    if group % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="#ffffff"/>'
    corners = (
        ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        ((0, -6), (6, 0), (0, 6), (-6, 0)),
        ((0, -6), (6, 5), (-6, 5)),
    )[group % 4 - 1]
    places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{places}" fill="{fill}" stroke="#ffffff"/>'


def _legend(groups: Sequence[str], right: float, y: float) -> list[str]:
    marks, x = [], right
    for index, name in reversed(list(enumerate(groups))):
        x -= len(name) * CHARACTER_WIDTH + 26
        marks += [_mark(x, y - 4, index), _text(x + 10, y, name)]
    return marks


def _label(words: str, x: float, y: float, right: float, taken: list[Box]) -> str:
    """Place a label beside its mark, where it covers no mark and no other label if there is such a place."""
    wide, high = len(words) * CHARACTER_WIDTH, 12.0
    sides = ((x + 9, y - 6), (x - 9 - wide, y - 6), (x - wide / 2, y - 20), (x - wide / 2, y + 8))
    spots = [(px, py + shift, wide, high) for shift in (0, -8, 8) for px, py in sides]
    inside = [s for s in spots if s[0] >= 4 and s[0] + wide <= right + 26]
    free = [s for s in inside if not any(_overlap(s, box) for box in taken)]
    chosen = (free or inside or spots)[0]
    taken.append(chosen)
    return _text(chosen[0], chosen[1] + 10, words)


def _overlap(one: Box, other: Box) -> bool:
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


def _cut(words: str, width: float, size: float = 12) -> str:
    """Shorten `words` to what fits `width` pixels."""
    room = int(width / (CHARACTER_WIDTH * size / 12))
    return words if len(words) <= room else words[: room - 1] + "…"
