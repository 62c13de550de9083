"""The float weights that a layer should have on quantized inputs, before they are rounded."""

from __future__ import annotations

import numpy as np

from calibration.rounding.moments import Moments

STRENGTHS = (0.1, 1.0, 10.0)
"""How strongly the weights are held to the trained ones, in mean variances of an input."""
NO_VARIANCE = 1e-3


def adapted(weight: np.ndarray, halves: tuple[Moments, Moments], centred: bool) -> np.ndarray:
    """Weights (G, rows, K) that make up for what quantized inputs lack: ridge regression towards the trained `weight`.

    The idea is GPTAQ's asymmetric calibration (Li et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", ICML 2025).
    A least-squares fit to few positions learns their noise, so the strength is the one that does best on the half of the rows that it was
    not fitted on; the trained weights stay where none does better than they.
    """
    if not all(half.count for half in halves):
        return weight
    moments = [half.covariances(centred) for half in halves]
    trained = sum(_error(weight, *moment) for moment in moments)
    errors = [sum(_error(_ridge(weight, *moments[i], halves[i].power, strength), *moments[1 - i]) for i in (0, 1)) for strength in STRENGTHS]
    best = int(np.argmin(errors))
    if errors[best] >= trained:
        return weight
    both = halves[0] + halves[1]
    return _ridge(weight, *both.covariances(centred), both.power, STRENGTHS[best])


def _ridge(weight: np.ndarray, hessian: np.ndarray, cross: np.ndarray, power: np.ndarray, strength: float) -> np.ndarray:
    """argmin over V of E|wanted - V patch|² + strength · mean variance · |V - weight|²."""
    held = damping(hessian, power, strength)
    wanted = cross + weight * np.einsum("gkk->gk", held)[:, None, :]
    return np.linalg.solve(hessian + held, wanted.transpose(0, 2, 1)).transpose(0, 2, 1)


def _error(weight: np.ndarray, hessian: np.ndarray, cross: np.ndarray) -> float:
    """E|wanted - weight patch|² without the part that no weight changes."""
    return float(((weight @ hessian) * weight).sum() - 2 * (weight * cross).sum())


def damping(hessian: np.ndarray, power: np.ndarray, strength: float) -> np.ndarray:
    """`strength` times the mean of each diagonal, as a diagonal matrix (G, K, K), so that what it is added to can be inverted.

    Variances of less than `NO_VARIANCE` of the patches' `power` (G,), such as those of one position, count as so much: sums of float32 hold no less.
    """
    size = hessian.shape[-1]
    mean = np.einsum("gkk->g", hessian) / size
    return (strength * np.maximum(mean, np.maximum(NO_VARIANCE * power, np.finfo(np.float32).tiny)))[:, None, None] * np.eye(size)
