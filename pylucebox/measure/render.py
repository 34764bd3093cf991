"""Results as Markdown tables and SVG pictures. Both say STALE when the sources have changed since."""

from collections.abc import Sequence

from pylucebox.measure.compare import Comparison, Interval
from pylucebox.measure.kernels import SCALAR
from pylucebox.measure.report import Level, Quality, Result
from pylucebox.measure.svg import Bar, Frame, Point, bar_chart, scatter

MIB = 1 << 20
MAX_ROWS = 24  # of one picture
GROUPS = ("upstream types", "ROCmFPX types")


def markdown(result: Result, stale: bool) -> str:
    """Return the tables of a result, with the conditions it was measured under below them."""
    parts = [f"**{result.what}**"]
    if stale:
        parts.append("> **STALE**: the measured sources have changed since; measure again.")
    if result.comparisons:
        parts.append(_table(COMPARISON_HEAD, [_comparison_row(c) for c in result.comparisons]))
    if result.levels:
        parts.append(_table(LEVEL_HEAD, [_level_row(one) for one in result.levels]))
    if result.qualities:
        parts.append(_table(QUALITY_HEAD, [_quality_row(q) for q in result.qualities]))
    parts.append("\\\n".join(conditions(result)))  # a backslash breaks the line in Markdown
    return "\n\n".join(parts) + "\n"


def pictures(result: Result, stale: bool) -> dict[str, str]:
    """Return SVG documents by the suffix of their file name; "" for a result with one picture only."""
    notes = tuple(conditions(result))
    frame = Frame(result.what, notes, stale)
    found: dict[str, str] = {}
    for kind, comparisons in _by_picture(result.comparisons).items():
        found[kind] = bar_chart([_ratio_bar(c) for c in comparisons], frame, 1.0, RATIO_AXIS)
    for unit in dict.fromkeys(one.unit for one in result.levels):
        bars = [_level_bar(one) for one in result.levels if one.unit == unit]
        found[unit.replace("/", "-per-")] = bar_chart(bars, frame, axis=f"{unit}, 95 % interval")
    if result.qualities:
        found["quality"] = _quality_scatter(result.qualities, frame)
    return {"": next(iter(found.values()))} if len(found) == 1 else found


def conditions(result: Result) -> list[str]:
    """Return lines that say where the figures come from."""
    receipts = ", ".join(f"{side} {_short(identity)}" for side, identity in result.receipts.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    rounds = sorted({c.ratio.n for c in result.comparisons} | {one.value.n for one in result.levels})
    counted = f" n = {' or '.join(map(str, rounds))} rounds." if rounds else ""
    return [
        f"Measured {result.date} on {result.machine}.{counted}",
        f"Build: {receipts}; sources {result.source.sha256[:12] or 'unknown'}.",
        *([f"Settings: {settings}."] if settings else []),
        f"Command: {result.command}",
    ]


def format_value(value: float, unit: str = "") -> str:
    """Return a figure with four digits and an SI prefix where it is large, for example "5.310 Gweights/s"."""
    for limit, prefix in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= limit * (1 - 5e-5):  # as it rounds
            return f"{value / limit:.4g} {prefix}{unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()


def format_change(interval: Interval) -> str:
    """Return a ratio as a change with its interval, for example "+5.7 % [+5.6, +5.9]"."""
    value, low, high = (100 * (x - 1) for x in (interval.value, interval.low, interval.high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


RATIO_AXIS = "ratio of B to A, above 1: B is better; whiskers: 95 % interval"
COMPARISON_HEAD = ("case", "A", "B", "B : A", "95 % interval", "A/A floor", "n", "B is")
LEVEL_HEAD = ("case", "measured", "value", "95 % interval", "A/A floor", "n")
QUALITY_HEAD = (
    "model", "type", "MiB", "bits a weight", "perplexity", "KLD mean", "KLD p99", "same top-1", "tokens",
)  # fmt: skip


def _comparison_row(c: Comparison) -> tuple[str, ...]:
    ratio = c.ratio
    a, b = (format_value(one.value, c.unit) for one in c.levels)
    verdict = c.verdict + ("" if c.paired else " (not interleaved)")
    span = f"{ratio.low:.3f} to {ratio.high:.3f}"
    floor = _floor(c.floor, c.noise)
    arm_a, arm_b = (
        f"{arm} ({layout})" if layout else arm
        for arm, layout in ((c.arm_a, c.layout_a), (c.arm_b, c.layout_b))
    )
    return (
        c.case, f"{arm_a}: {a}", f"{arm_b}: {b}", f"{ratio.value:.3f}", span, floor, str(ratio.n), verdict
    )  # fmt: skip


def _level_row(one: Level) -> tuple[str, ...]:
    value = one.value
    span = f"{format_value(value.low)} to {format_value(value.high)}"
    floor = max(one.noise.high, 1 / one.noise.low)
    return (
        one.case,
        one.arm,
        format_value(value.value, one.unit),
        span,
        _floor(floor, one.noise),
        str(value.n),
    )


def _quality_row(q: Quality) -> tuple[str, ...]:
    return (
        q.name, q.type_name, f"{q.size_bytes / MIB:.2f}",
        "" if q.bits_per_weight is None else f"{q.bits_per_weight:.2f}",
        f"{q.perplexity:.4f} ± {q.perplexity_error:.4f}", f"{q.kld_mean:z.6f} ± {q.kld_mean_error:.6f}",
        f"{q.kld_p99:.6f}", f"{100 * q.same_top:.2f} ± {100 * q.same_top_error:.2f} %", str(q.tokens),
    )  # fmt: skip


def _short(identity: str) -> str:
    """Cut the hash at the end of a receipt's id, or of the words that stand for one."""
    return f"{identity[:-52]}" if len(identity) >= 64 else identity


def _floor(floor: float, noise: Interval | None) -> str:
    return f"±{100 * (floor - 1):.1f} %" if noise else "not measured"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _by_picture(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Keep ratios to scalar code, many times 1, apart; split many rows by the first word of their case."""
    kinds: dict[str, list[Comparison]] = {}
    for c in comparisons:
        kind = "ratio-scalar" if c.arm_a.endswith(SCALAR) else "ratio"
        if len(comparisons) > MAX_ROWS:
            kind += "-" + "".join(filter(str.isalnum, c.case.split()[0]))
        kinds.setdefault(kind, []).append(c)
    return kinds


def _ratio_bar(c: Comparison) -> Bar:
    ratio = c.ratio
    text = f"{ratio.value:.3f}" + ("" if c.significant else " no difference")
    label = f"{c.arm_b} : {c.arm_a}, {c.case}"
    return Bar(label, ratio.value, ratio.low, ratio.high, text, group=0 if c.significant else 3)


def _level_bar(one: Level) -> Bar:
    value = one.value
    label = f"{one.arm}, {one.case}"
    return Bar(label, value.value, value.low, value.high, format_value(value.value, one.unit))


def _quality_scatter(qualities: Sequence[Quality], frame: Frame) -> str:
    """Return size against divergence; one of 0 or below is drawn at a tenth of the smallest above 0."""
    above = [q.kld_mean for q in qualities if q.kld_mean > 0]
    least = min(above, default=1e-6) / 10
    points = [
        Point(
            q.name,
            q.size_bytes / MIB,
            max(q.kld_mean, least),
            q.kld_mean_error,
            group=int("ROCM" in q.type_name.upper()),
        )
        for q in qualities
    ]
    return scatter(points, frame, "size of the file, MiB", "mean KL divergence, nats", GROUPS)
