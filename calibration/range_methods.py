"""Which part of a tensor's values eight bits shall cover: percentile, entropy and least squared error, on a histogram.

Each method chooses twice, because two grids come from one set of ranges: `low` and `high` for an unsigned grid with a zero point (255 steps that hold
0; the scheme `cpu`), `magnitude` for a symmetric one (127 steps on either side; the scheme `tensorrt`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from calibration.histograms import Histogram

STEPS, SIDE_STEPS = 255, 127
PERCENT = 99.999
"""As ONNX Runtime has it. 99.99 costs EfficientNet-Lite0 a decibel, 99.9 seven."""
FEWEST_VALUES = 2048
"""Fewer values than this do not fill a histogram: their whole range is taken."""
LEVELS = 256
"""A tensor of no more distinct, separate values is on a grid already (pixels): its whole range may be lossless, and less cannot be."""
SATURATED = 1e-3
"""A bin at the end of the range with more than this part of the values is where an activation saturates (the 6 of a ReLU6)."""
KL_STRIDE = 8
"""Bins between two thresholds that `entropy` tries: at most 0.4 % of the range."""
FRACTIONS = np.geomspace(1, 1 / 32, 96)
"""Parts of the largest magnitude that `mse` tries: steps of 3.7 %, which cost less than 0.1 dB."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Range of an unsigned grid with a zero point, and magnitude of a symmetric one."""

    low: float
    high: float
    magnitude: float


def choose(method: str, histogram: Histogram) -> Chosen:
    """The range that `method`, a key of METHODS, gives these values; never beyond their extremes, and never empty.

    A side that no value is on keeps its extreme: values from 2 to 3 have a `low` of 2.
    """
    whole = Chosen(histogram.low, histogram.high, histogram.largest)
    if histogram.positive.sum() + histogram.negative.sum() < FEWEST_VALUES or _on_a_grid(histogram):
        return whole
    chosen = METHODS[method](histogram)
    return Chosen(
        low=histogram.low if histogram.low >= 0 else max(chosen.low, histogram.low),
        high=histogram.high if histogram.high <= 0 else min(chosen.high, histogram.high),
        magnitude=min(chosen.magnitude, histogram.largest),
    )


def _on_a_grid(histogram: Histogram) -> bool:
    used = np.concatenate([histogram.negative[:0:-1], histogram.positive]) > 0
    return bool(used.sum() <= LEVELS and not (used[1:] & used[:-1]).any())


def percentile(histogram: Histogram) -> Chosen:
    """PERCENT of the values lie within `magnitude`, and as many below `high` and above `low`. Values in the bin of zero do not count.

    Wu et al., "Integer quantization for deep learning inference: principles and empirical evaluation", 2020.
    """
    positive, negative = histogram.positive.copy(), histogram.negative
    positive[0] = 0
    cut = (positive.sum() + negative.sum()) * (1 - PERCENT / 100)

    def edge(counts: np.ndarray) -> float:
        above = counts.sum() - np.cumsum(counts)
        return float((np.argmax(above <= cut) + 1) * histogram.width)

    return Chosen(-edge(negative), edge(positive), edge(positive + negative))


def entropy(histogram: Histogram) -> Chosen:
    """The threshold whose 8-bit version of the distribution of |x| loses the least information.

    S. Migacz, "8-bit inference with TensorRT", GTC 2017: 128 levels of |x|, or 256 for values of one sign on the unsigned grid. For values of
    both signs that grid takes the symmetric threshold on either side. The bin of zero, which every grid holds exactly, counts as its neighbour does;
    a SATURATED end is kept, which the method alone would move at no loss of information and at every loss of value.
    """
    counts, width, largest = histogram.positive + histogram.negative, histogram.width, histogram.largest
    magnitude = _least_divergence(counts, width, largest, SIDE_STEPS + 1)
    one_sided = histogram.low >= 0 or histogram.high <= 0
    unsigned = _least_divergence(counts, width, largest, STEPS + 1) if one_sided else magnitude
    return Chosen(-unsigned, unsigned, magnitude)


def _least_divergence(counts: np.ndarray, width: float, largest: float, levels: int) -> float:
    """The threshold with the least Kullback-Leibler divergence of `counts` (BINS,), clipped there, from their version in `levels` levels.

    For all thresholds at once: within a level each non-empty bin takes the level's mean, so that sums of count * log(count) are all it needs.
    """
    used = min(int(largest / width) + 1, len(counts))
    if used <= levels or counts[used - 1] > SATURATED * counts.sum():
        return largest
    values = counts[:used].astype(np.float64)
    values[0] = values[1]
    if not values.any():
        return largest
    ends = np.arange(used, levels - 1, -KL_STRIDE)
    mass, filled = (np.concatenate([[0.0], np.cumsum(array)]) for array in (values, values > 0))
    own = np.concatenate([[0.0], np.cumsum(_x_log(values, values))])
    edges = np.arange(levels + 1) * ends[:, None] // levels
    level_mass, level_filled = np.diff(mass[edges], axis=1), np.diff(filled[edges], axis=1)
    total, inside, last = mass[-1], mass[ends], values[ends - 1]
    clipped = total - inside
    reference = (own[ends] - _x_log(last, last) + _x_log(last + clipped, last + clipped)) / total - np.log(total)
    mean = level_mass / np.maximum(level_filled, 1)
    model = (_x_log(level_mass, mean).sum(axis=1) + _x_log(clipped, mean[:, -1])) / total - np.log(np.maximum(inside, 1))
    divergence = np.where((last == 0) & (clipped > 0), np.inf, reference - model)
    return float(ends[np.argmin(divergence)] * width)


def _x_log(weight: np.ndarray, of: np.ndarray) -> np.ndarray:
    """`weight` * log(`of`), 0 where either is 0."""
    return weight * np.log(np.where(of > 0, of, 1.0))


def mse(histogram: Histogram) -> Chosen:
    """The range with the least squared error of rounding and clipping together, for each grid; both ends of the unsigned one vary freely.

    A value that rounds to zero costs its square, one that is clipped the square of what is cut, any other a twelfth of the squared step.
    Sung, Shin and Hwang, "Resiliency of deep neural networks under quantization", 2015, minimize the same error.
    """
    above, below = _Side(histogram.positive, histogram.width, histogram.high), _Side(histogram.negative, histogram.width, -histogram.low)
    magnitudes = FRACTIONS * histogram.largest
    magnitude = magnitudes[np.argmin(_error(magnitudes / SIDE_STEPS, above, magnitudes, below, magnitudes))]
    highs, lows = (FRACTIONS * side.largest if side.largest > 0 else np.zeros(1) for side in (above, below))
    grid_high, grid_low = np.meshgrid(highs, lows, indexing="ij")
    errors = _error((grid_high + grid_low) / STEPS, above, grid_high, below, grid_low)
    best = np.unravel_index(np.argmin(errors), errors.shape)
    return Chosen(-float(grid_low[best]), float(grid_high[best]), float(magnitude))


class _Side:
    """Values of one sign as running sums of their count, sum and sum of squares, each bin at its middle."""

    def __init__(self, counts: np.ndarray, width: float, largest: float) -> None:
        self.largest = largest
        self.values = np.minimum((np.arange(len(counts)) + 0.5) * width, max(largest, 0.0))
        self.values[0] = 0.0
        self.sums = [np.concatenate([[0.0], np.cumsum(counts * self.values**power)]) for power in range(3)]

    def clipping(self, end: np.ndarray) -> np.ndarray:
        """Sum of (x - end)^2 over the values beyond `end`."""
        place = np.searchsorted(self.values, end, side="right")
        count, first, second = (total[-1] - total[place] for total in self.sums)
        return np.maximum(second - 2 * end * first + end**2 * count, 0.0)

    def rounding(self, step: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Sum of the squared rounding errors of the values up to `end` on a grid of multiples of `step`."""
        near, inside = np.searchsorted(self.values, step / 2), np.searchsorted(self.values, end, side="right")
        count, _, second = self.sums
        return second[near] + step**2 / 12 * np.maximum(count[inside] - count[near], 0.0)


def _error(step: np.ndarray, above: _Side, high: np.ndarray, below: _Side, low: np.ndarray) -> np.ndarray:
    return above.clipping(high) + above.rounding(step, high) + below.clipping(low) + below.rounding(step, low)


METHODS: dict[str, Callable[[Histogram], Chosen]] = {"percentile": percentile, "entropy": entropy, "mse": mse}
PARAMETERS: dict[str, dict[str, float]] = {
    "max": {},
    "percentile": {"percent": PERCENT},
    "entropy": {"bins_at_least": 2048, "stride": KL_STRIDE},
    "mse": {"candidates": len(FRACTIONS), "smallest_fraction": float(FRACTIONS[-1])},
}
"""What a method's result depends on besides the rows: part of what ranges are bound to."""
