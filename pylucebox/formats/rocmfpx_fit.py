"""Scale bytes of the ROCmFPX types: which of the 126 scales suits a group of weights best.

Everything is float32 in the order the formats prescribe. Groups are columns, so that a sum over a group is a
sequence of whole-row additions; numpy's own sums add in another order and would change some bytes.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .rocmfpx import Codec

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

SCALE_MAX = 0x7E  # largest valid scale byte
FLT_MAX = np.finfo(np.float32).max
# Part of a sum that surely bounds the same terms added in another order: 32 roundings are below 1e-5 of it.
SURE = np.float32(0.9999)


def _scale_table() -> Floats:
    byte = np.arange(256)
    exponent, mantissa = byte >> 3, byte & 7
    scale = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 11.0), mantissa * 2.0**-10)
    return np.where(byte <= SCALE_MAX, scale, 0).astype(np.float32)


def _reciprocal_table() -> Floats:
    table = np.zeros(256, np.float32)
    table[1 : SCALE_MAX + 1] = np.float32(1) / SCALES[1 : SCALE_MAX + 1]
    return table


# Value of every scale byte, 0 for an invalid one, and its rounded reciprocal, 0 where there is none.
SCALES = _scale_table()
RECIPROCALS = _reciprocal_table()


def row_energies(x: Floats) -> Floats:
    """Mean square of each row, summed in index order; non-finite weights count in the length only.

    x: (rows, k). A row whose sum leaves float32 is summed in double and clipped to FLT_MAX. Returns (rows,).
    """
    finite = np.where(np.isfinite(x), x, np.float32(0))
    squares = finite * finite
    running = np.add.accumulate(squares, axis=1)
    before = np.pad(running[:, :-1], ((0, 0), (1, 0)))
    overflow = (np.isinf(squares) | (before > FLT_MAX - squares)).any(axis=1)
    energies = np.divide(running[:, -1], np.float32(x.shape[1]), dtype=np.float32)
    if overflow.any():
        wide = finite[overflow].astype(np.float64)
        means = np.add.accumulate(wide * wide, axis=1)[:, -1] / x.shape[1]
        energies[overflow] = np.minimum(means, np.float64(FLT_MAX)).astype(np.float32)
    return energies


def importance_weights(x: Floats, importance: Floats) -> Floats:
    """Weight of each squared error: importance * sqrt(row energy + x^2), 0 where unusable.

    x: (rows, k). importance: (k,). Returns (rows, k), float32, never above FLT_MAX.
    """
    if x.size == 0:
        return x.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(x) & np.isfinite(importance) & (importance > 0)
        local = row_energies(x)[:, None] + np.where(usable, x * x, np.float32(0))
        weights = np.where(usable, importance, np.float32(0)) * np.sqrt(local)
    weights = np.where(np.isfinite(local) & np.isfinite(weights), weights, FLT_MAX)
    return np.where(usable, weights, np.float32(0))


def nearest_scales(targets: Floats) -> Indices:
    """Byte whose scale is nearest to each target, in float32; smallest byte on ties, 0 for target 0."""
    distances = np.abs(SCALES[1 : SCALE_MAX + 1, None] - targets)
    return np.where(targets > 0, distances.argmin(axis=0) + 1, 0)


class _Fit:
    """The best scale byte so far of every column, and the columns still looked at."""

    def __init__(self, codec: "type[Codec]", x: Floats, w: Floats | None) -> None:
        self.codec, self.x, self.w = codec, x, w
        self.largest = np.abs(x).max(axis=0)
        self.least = np.full(x.shape[1], np.inf, np.float32)
        self.best = np.full(x.shape[1], 0 if codec.refuses_overflow else 1, np.intp)
        guess = np.searchsorted(SCALES[1 : SCALE_MAX + 1], self.largest / np.float32(codec.top), side="right")
        self.guess = np.maximum(guess, 1)

    def errors(self, columns: Indices, scale_bytes: Indices) -> tuple[Floats, Floats]:
        """Error of each column under its scale byte, and the part of it that no larger scale can undo."""
        x, scale = self.x[:, columns], SCALES[scale_bytes]
        levels = self.codec.quantise(x * RECIPROCALS[scale_bytes])
        d = x - levels * scale
        terms = d * d if self.w is None else self.w[:, columns] * d * d
        zeroed = np.where(levels == 0, terms, np.float32(0)).sum(axis=0)
        total = terms[0].copy()
        for row in terms[1:]:
            total += row
        return total, zeroed

    def offer(self, columns: Indices, scale_bytes: Indices, errors: Floats) -> None:
        """Take the bytes that beat the best so far: a smaller error, or the same and a smaller byte."""
        least, best = self.least[columns], self.best[columns]
        better = (errors < least) | ((errors == least) & (scale_bytes < best))
        if self.codec.refuses_overflow:
            better &= errors < FLT_MAX
        self.least[columns[better]] = errors[better]
        self.best[columns[better]] = scale_bytes[better]

    def walk_down(self, columns: Indices) -> None:
        """Try ever smaller scales. The clipping error of the largest weight only grows: it ends a walk."""
        top = np.float32(self.codec.top)
        rows = np.abs(self.x).argmax(axis=0)
        at = self.guess[columns] - 1
        while (keep := at >= 1).any():
            columns, at = columns[keep], at[keep]
            self.offer(columns, at, self.errors(columns, at)[0])
            clipped = self.largest[columns] - top * SCALES[at]
            w = np.float32(1) if self.w is None else self.w[rows[columns], columns]
            lost = (clipped >= 0) & (w * clipped * clipped > self.least[columns])
            columns, at = columns[~lost], at[~lost] - 1

    def walk_up(self, columns: Indices) -> None:
        """Try ever larger scales. Weights that became zero stay zero: their error ends a walk."""
        at = self.guess[columns]
        while (keep := at <= SCALE_MAX).any():
            columns, at = columns[keep], at[keep]
            errors, zeroed = self.errors(columns, at)
            self.offer(columns, at, errors)
            lost = (zeroed < 1e38) & (zeroed * SURE > self.least[columns])
            lost |= self.largest[columns] * RECIPROCALS[at] < np.float32(0.5)
            columns, at = columns[~lost], at[~lost] + 1


def fit_scales(codec: "type[Codec]", x: Floats, w: Floats | None) -> Indices:
    """Scale byte of each group: the smallest sum of (weighted) squared errors, the smallest byte on ties.

    x: finite, shape (group, n_groups). w: weights of the errors, same shape, or None. Returns (n_groups,).
    Source: `rocmfpx_fit_ref` in rocmfpx-encode-ref.c; equal byte for byte.
    """
    with np.errstate(over="ignore", under="ignore"):
        if codec.nearest_scale and w is None:
            return nearest_scales(np.abs(x).max(axis=0, initial=0) / np.float32(codec.top))
        fit = _Fit(codec, x, w)
        columns = np.flatnonzero(fit.largest)
        fit.walk_up(columns)
        fit.walk_down(columns)
        fit.best[fit.largest == 0] = 0
        return fit.best
