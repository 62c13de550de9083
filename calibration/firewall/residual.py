"""What is left of one aligned picture when the other is taken from it, a stamp or an object apart."""

from __future__ import annotations

import numpy as np

KEPT = 0.8
"""Share of the pixels that count, those that agree best: the rest may lie under a stamp, or in a corner that was cut."""
STEPS = 5
INSIDE = 0.5
LEAST_SCALE = 1.0
"""Levels, so that the weights of a perfect copy stay finite."""


def trimmed_residual(left: np.ndarray, right: np.ndarray, weight: np.ndarray) -> float:
    """Power of the difference over the power of the picture, both in the pixels that agree best, after the best gain and offset.

    Two aligned (h, w) float32 greys, and the (h, w) weight of each pixel, 0 to 1. Gain and offset are fitted by iteratively reweighted least
    squares with Cauchy weights (P. W. Holland and R. E. Welsch, 1977). A copy leaves a hundredth, however it was compressed; drawings of one
    shape on two grounds leave several. A picture that needs a gain of nothing leaves infinity.
    """
    inside = weight > INSIDE
    x, y = left[inside].astype(np.float64), right[inside].astype(np.float64)
    trust = np.ones_like(x)
    for _ in range(STEPS):
        total = trust.sum()
        x_mean, y_mean = (trust * x).sum() / total, (trust * y).sum() / total
        gain = (trust * (x - x_mean) * (y - y_mean)).sum() / max((trust * (x - x_mean) ** 2).sum(), 1e-9)
        error = np.abs(y - y_mean - gain * (x - x_mean))
        trust = 1 / (1 + (error / (1.5 * np.median(error) + LEAST_SCALE)) ** 2)
    kept = error <= np.quantile(error, KEPT)
    power = float(((gain * (x[kept] - x[kept].mean())) ** 2).sum())
    return float((error[kept] ** 2).sum()) / power if power > 0 else float("inf")
