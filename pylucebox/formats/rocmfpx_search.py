"""Opt-in encoders: the same ROCmFPX formats, other choices than the reference's. Any reader reads them.

`search_scales` minimises the weighted squared error itself, where the reference multiplies importance by a
guess from the weight's own size. It searches type 103 too; the reference takes its nearest scale and clips.
`encode_with_feedback` knows how inputs move together and lets later weights of a row make up for the error of
earlier ones, as GPTQ does (Frantar et al. 2023, arXiv 2210.17323, algorithm 1).
"""

import numpy as np
import numpy.typing as npt

from pylucebox.formats.rocmfpx import BLOCK_WEIGHTS, Bytes, Codec, Floats, check_rows
from pylucebox.formats.rocmfpx_fit import RECIPROCALS, SCALES, fit_scales

Doubles = npt.NDArray[np.float64]

# Added to the diagonal of the second moments, as a share of its mean. Less trusts a small sample too far.
DAMPING = 1.0


def search_scales(codec: type[Codec], x: Floats, importance: Floats | None = None) -> Bytes:
    """Encode rows with the scales that minimise sum(importance * error^2) of each group.

    x: float32, shape (..., k). importance: float32, shape (k,), mean squares of the inputs, or None for equal
    weights. Returns uint8, shape (..., k / 32 * block_bytes). Raises ValueError as Codec.encode does.
    Source: rocmfpx_search in rocmfpx-search.c; equal byte for byte.
    """
    check_rows(x, importance)
    unit = np.ones(x.shape[-1:], np.float32) if importance is None else importance
    usable = np.where(np.isfinite(unit) & (unit > 0), unit, np.float32(0))
    return codec.encode_weighted(x, lambda part: np.where(np.isfinite(part), usable, np.float32(0)))


def error_carriers(second_moments: npt.NDArray[np.floating], damping: float = DAMPING) -> Doubles:
    """Upper triangular factor U of the inverse of the damped second moments, U^T U = inverse.

    second_moments: (k, k), sum or mean of outer products of the inputs. Row j of U / U[j, j] tells how much
    of the error of weight j each later weight takes over. Raises ValueError if not square or not finite.
    """
    k = second_moments.shape[0]
    if second_moments.shape != (k, k) or not np.isfinite(second_moments).all():
        raise ValueError(f"second moments are a finite square matrix, got {second_moments.shape}")
    moments = second_moments.astype(np.float64)
    mean = float(np.diag(moments).mean()) if k else 0.0
    moments[np.diag_indices(k)] += damping * mean if mean > 0 else 1.0
    return np.ascontiguousarray(np.linalg.cholesky(np.linalg.inv(moments)).T)


def encode_with_feedback(codec: type[Codec], x: Floats, carriers: Doubles) -> Bytes:
    """Encode rows one column after the other, each column's error spread over the columns to come.

    x: float32, shape (rows, k), finite. carriers: (k, k), from `error_carriers`; one matrix serves all
    tensors that see the same inputs. Returns uint8, (rows, k / 32 * block_bytes). Raises ValueError else.
    """
    check_rows(x, None)
    rows, k = x.shape
    if carriers.shape != (k, k) or not np.isfinite(x).all():
        raise ValueError(f"rows are finite and {carriers.shape[0]} long like their carriers, got {x.shape}")
    rest = x.astype(np.float64)
    out = np.empty((rows, k // BLOCK_WEIGHTS, codec.block_bytes()), np.uint8)
    for block in range(k // BLOCK_WEIGHTS):
        here = slice(block * BLOCK_WEIGHTS, (block + 1) * BLOCK_WEIGHTS)
        levels, scale_bytes, errors = _encode_columns(codec, rest[:, here], carriers[here, here])
        out[:, block] = codec.pack_blocks(levels, scale_bytes)
        rest[:, here.stop :] -= errors @ carriers[here, here.stop :]
    return out.reshape(rows, -1)


def _encode_columns(
    codec: type[Codec], x: Doubles, carriers: Doubles
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.intp], Doubles]:
    """Levels (rows, 32), scale bytes (rows, groups) and carried errors (rows, 32) of one block; x is changed.

    A group's scales are chosen from its weights as they stand when the group is reached.
    """
    weights = 1 / np.diag(carriers) ** 2
    levels = np.empty(x.shape, np.int8)
    scale_bytes = np.empty((len(x), codec.scale_count()), np.intp)
    errors = np.empty(x.shape)
    for column in range(x.shape[1]):
        group, place = divmod(column, codec.group)
        if place == 0:
            inside = slice(column, column + codec.group)
            group_weights = np.broadcast_to(weights[inside, None] / weights.mean(), (codec.group, len(x)))
            columns = np.ascontiguousarray(x[:, inside].T, np.float32)
            scale_bytes[:, group] = fit_scales(codec, columns, group_weights.astype(np.float32))
        byte = scale_bytes[:, group]
        with np.errstate(over="ignore"):
            level = codec.quantise(x[:, column].astype(np.float32) * RECIPROCALS[byte])
        level[byte == 0] = 0
        levels[:, column] = level
        errors[:, column] = (x[:, column] - level * SCALES[byte]) / carriers[column, column]
        x[:, column + 1 :] -= np.outer(errors[:, column], carriers[column, column + 1 :])
    return levels, scale_bytes, errors
