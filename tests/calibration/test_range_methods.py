"""Each range method against its definition, computed the slow way on the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from test_histograms import tallied

from calibration.histograms import Histogram
from calibration.range_methods import FRACTIONS, KL_STRIDE, PERCENT, choose

RANDOM = np.random.default_rng(6)
NORMAL = RANDOM.normal(size=(64, 2000)).astype(np.float32)
LONG_TAILED = RANDOM.laplace(size=(64, 2000)).astype(np.float32)
SKEWED = (RANDOM.gamma(2.0, size=(64, 2000)) - 1.0).astype(np.float32)
ALL = {"normal": NORMAL, "long tailed": LONG_TAILED, "skewed": SKEWED, "relu": np.maximum(LONG_TAILED, 0), "relu6": np.clip(NORMAL * 4, 0, 6)}


def histogram_of(rows: np.ndarray) -> Histogram:
    histogram = tallied(rows, len(rows) // 2).histogram()
    assert histogram is not None
    return histogram


def unsigned_error(values: np.ndarray, low: float, high: float) -> float:
    """Mean squared error of a grid of 255 steps with a zero point."""
    low, high = min(low, 0.0), max(high, 0.0)
    step = (high - low) / 255
    zero = round(-low / step)
    codes = np.clip(np.round(values.astype(np.float64) / step) + zero, 0, 255)
    return float(np.mean(np.square((codes - zero) * step - values)))


def symmetric_error(values: np.ndarray, magnitude: float) -> float:
    step = magnitude / 127
    return float(np.mean(np.square(np.clip(np.round(values.astype(np.float64) / step), -127, 127) * step - values)))


@pytest.mark.parametrize("name", ALL)
def test_mse_is_as_good_as_the_best_of_a_full_search(name: str) -> None:
    values, chosen = ALL[name], choose("mse", histogram_of(ALL[name]))
    largest = np.abs(values).max()
    best = min(symmetric_error(values, largest * fraction) for fraction in FRACTIONS)
    assert symmetric_error(values, chosen.magnitude) <= 1.02 * best
    highs, lows = values.max() * FRACTIONS[:32:4], min(values.min(), 0.0) * FRACTIONS[:32:4]
    best = min(unsigned_error(values, low, high) for low in np.unique(lows) for high in highs)
    assert unsigned_error(values, chosen.low, chosen.high) <= 1.02 * best


def test_mse_clips_a_long_tail_and_keeps_a_saturated_end() -> None:
    assert choose("mse", histogram_of(LONG_TAILED)).magnitude < 0.95 * np.abs(LONG_TAILED).max()
    assert choose("mse", histogram_of(ALL["relu6"])).high == 6.0


@pytest.mark.parametrize("name", ALL)
def test_percentile_leaves_its_share_outside(name: str) -> None:
    values, histogram = ALL[name], histogram_of(ALL[name])
    chosen = choose("percentile", histogram)
    counted = values[np.abs(values) >= histogram.width]
    for end, side in ((chosen.high, counted), (-chosen.low, -counted), (chosen.magnitude, np.abs(counted))):
        if end > 0:
            assert np.mean(side > end) <= 1 - PERCENT / 100
            assert end == side.max() or np.mean(side > end - histogram.width) > 1 - PERCENT / 100


def slow_entropy(values: np.ndarray, histogram: Histogram, levels: int) -> float:
    """Migacz's loop, one threshold after the other."""
    counts = (histogram.positive + histogram.negative).astype(np.float64)
    counts = counts[: int(np.abs(values).max() / histogram.width) + 1]
    counts[0] = counts[1]
    best, chosen = np.inf, 0
    for end in range(len(counts), levels - 1, -KL_STRIDE):
        reference = counts[:end].copy()
        reference[-1] += counts[end:].sum()
        model = np.zeros(end)
        for level in range(levels):
            start, stop = level * end // levels, (level + 1) * end // levels
            part = counts[start:stop]
            if part.any():
                model[start:stop][part > 0] = part.sum() / np.count_nonzero(part)
        divergence = scipy.stats.entropy(reference, model)
        if divergence < best - 1e-12:
            best, chosen = divergence, end
    return chosen * histogram.width


@pytest.mark.parametrize("name", ["normal", "skewed", "relu"])
def test_entropy_is_the_published_search(name: str) -> None:
    histogram = histogram_of(ALL[name])
    chosen = choose("entropy", histogram)
    expected = min(slow_entropy(ALL[name], histogram, 128), histogram.largest)
    assert chosen.magnitude == pytest.approx(expected, rel=1e-9)
    if name == "relu":
        assert chosen.low == 0
        assert chosen.high == pytest.approx(min(slow_entropy(ALL[name], histogram, 256), histogram.high), rel=1e-9)
    else:
        assert (chosen.low, chosen.high) == (max(-expected, histogram.low), min(expected, histogram.high))


def test_entropy_keeps_the_end_where_an_activation_saturates() -> None:
    chosen = choose("entropy", histogram_of(ALL["relu6"]))
    assert (chosen.high, chosen.magnitude) == (6.0, 6.0)


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_pixels_keep_their_lossless_range(method: str) -> None:
    pixels = ((RANDOM.normal(127, 20, size=(64, 3000)).clip(0, 255).round() - 127) / 128).astype(np.float32)
    chosen = choose(method, histogram_of(pixels))
    assert (chosen.low, chosen.high) == (pixels.min(), pixels.max())
    assert unsigned_error(pixels[:, ::7], -127 / 128, 1.0) == 0


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_few_values_keep_their_whole_range(method: str) -> None:
    few = NORMAL[:4, :100]
    chosen = choose(method, histogram_of(few))
    assert (chosen.low, chosen.high, chosen.magnitude) == (few.min(), few.max(), np.abs(few).max())


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_side_without_values_keeps_its_extreme(method: str, sign: int) -> None:
    values = sign * (np.abs(LONG_TAILED) + 2)
    chosen = choose(method, histogram_of(values))
    assert (chosen.low if sign > 0 else -chosen.high) == np.abs(values).min()
    assert chosen.low < chosen.high
    assert 0 < chosen.magnitude <= np.abs(values).max()


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_a_tensor_that_is_nearly_always_zero_keeps_a_range(method: str) -> None:
    sparse = np.zeros((64, 4000), dtype=np.float32)
    sparse[::3, 17] = RANDOM.uniform(1, 2, size=22)
    chosen = choose(method, histogram_of(sparse))
    assert chosen.high >= 1
    assert chosen.magnitude >= 1
