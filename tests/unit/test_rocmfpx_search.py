"""The opt-in encoders stay in the format and beat the reference at what they minimise."""

import numpy as np
import pytest
from rocmfpx_cases import CODECS, SEARCHED, differing_blocks

from pylucebox.formats.rocmfpx import Codec, RocmFp2, RocmFp4Fast, RocmFp8
from pylucebox.formats.rocmfpx_search import encode_with_feedback, error_carriers, search_scales

every_type = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
# Small and large levels, both sizes of a group: the loop over columns is slow.
few_types = pytest.mark.parametrize("codec", [RocmFp2, RocmFp4Fast, RocmFp8], ids=lambda codec: codec.name)
ROWS, K = 32, 128

# Relative squared error of the reference encoder on Gaussian weights with sigma 0.02.
REFERENCE_NMSE = {100: 7.2e-3, 101: 8.7e-3, 107: 0.125, 104: 3.0e-2, 102: 7.3e-4, 103: 2.0e-4}
# Type 103 by sigma: the reference, which clips where the nearest scale is below max / 127, and the search.
FP8_NMSE = {0.02: (2.0e-4, 2.0e-4), 0.05: (2.2e-3, 6.2e-5), 0.1: (2.8e-3, 4.6e-5), 1.0: (1.0e-4, 3.1e-5)}


def gauss(sigma: float, rows: int = ROWS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, sigma, (rows, K)).astype(np.float32)


def importance() -> np.ndarray:
    return np.random.default_rng(1).gamma(0.5, size=K).astype(np.float32)


def nmse(codec: type[Codec], data: np.ndarray, x: np.ndarray) -> float:
    return float(((codec.decode(data) - x).astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum())


@every_type
def test_reference_quality(codec: type[Codec]) -> None:
    x = gauss(0.02, 1600)
    assert nmse(codec, codec.encode(x), x) == pytest.approx(REFERENCE_NMSE[codec.type_id], rel=0.03)


@pytest.mark.parametrize("sigma", FP8_NMSE)
def test_searched_fp8_does_not_clip(sigma: float) -> None:
    x = gauss(sigma, 800)
    reference, searched = FP8_NMSE[sigma]
    assert nmse(RocmFp8, RocmFp8.encode(x), x) == pytest.approx(reference, rel=0.1)
    assert nmse(RocmFp8, search_scales(RocmFp8, x), x) == pytest.approx(searched, rel=0.05)


@pytest.mark.parametrize("codec", SEARCHED, ids=lambda codec: codec.name)
def test_without_importance_only_fp8_changes(codec: type[Codec]) -> None:
    x = gauss(0.02)
    assert not differing_blocks(codec, search_scales(codec, x), codec.encode(x))


@every_type
def test_search_lowers_the_weighted_error(codec: type[Codec]) -> None:
    x, w = gauss(0.05), importance()
    errors = []
    for data in (codec.encode(x, w), search_scales(codec, x, w)):
        assert codec.valid(data).all()
        d = (codec.decode(data) - x).astype(np.float64)
        errors.append((w * d * d).reshape(-1, codec.group).sum(axis=1))
    assert (errors[1] <= errors[0] * (1 + 1e-5)).all()
    assert errors[1].sum() < errors[0].sum()


@every_type
def test_unusable_importance_and_weights(codec: type[Codec]) -> None:
    x, w = gauss(1), importance()
    x[0, :5] = [np.nan, np.inf, -np.inf, 3e38, 1e-40]
    w[:4] = [np.nan, np.inf, -1, 0]
    data = search_scales(codec, x, w)
    assert codec.valid(data).all()
    assert np.isfinite(codec.decode(data)).all()
    with pytest.raises(ValueError, match="one value a column"):
        search_scales(codec, x, w[:32])


def inputs(count: int, seed: int) -> np.ndarray:
    """Inputs of uneven size that move together: a few hidden causes and noise."""
    causes = np.random.default_rng(2).normal(size=(12, K)) * np.linspace(0.2, 2, K)
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 12)) @ causes + rng.normal(size=(count, K)) * 0.5


@few_types
def test_feedback_lowers_the_error_of_outputs_it_has_not_seen(codec: type[Codec]) -> None:
    x, seen, new = gauss(0.05), inputs(400, 3), inputs(400, 4)
    wanted = x.astype(np.float64) @ new.T
    data = {
        "importance": codec.encode(x, (seen**2).mean(axis=0).astype(np.float32)),
        "feedback": encode_with_feedback(codec, x, error_carriers(seen.T @ seen)),
    }
    assert codec.valid(data["feedback"]).all()
    error = {how: float(((codec.decode(d) @ new.T - wanted) ** 2).sum()) for how, d in data.items()}
    assert error["feedback"] < 0.5 * error["importance"]


@few_types
def test_feedback_without_common_movement_is_the_search(codec: type[Codec]) -> None:
    x = gauss(0.05)
    got = encode_with_feedback(codec, x, error_carriers(np.diag(np.full(K, 4.0))))
    assert not differing_blocks(codec, got, search_scales(codec, x))


@every_type
def test_feedback_without_statistics_or_weights(codec: type[Codec]) -> None:
    x = np.zeros((2, 64), np.float32)
    assert not codec.decode(encode_with_feedback(codec, x, error_carriers(np.zeros((64, 64))))).any()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="square"):
        error_carriers(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="finite"):
        error_carriers(np.full((4, 4), np.nan))
    with pytest.raises(ValueError, match="32 long like their carriers"):
        encode_with_feedback(RocmFp8, np.zeros((1, 64), np.float32), np.eye(32))
    with pytest.raises(ValueError, match="finite"):
        encode_with_feedback(RocmFp8, np.full((1, 32), np.inf, np.float32), np.eye(32))
