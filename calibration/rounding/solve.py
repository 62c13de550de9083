"""Codes for a matrix of weights, chosen together instead of each to the nearest."""

from __future__ import annotations

import dataclasses

import numpy as np

LEVELS = 127
BLOCK = 64


def nearest(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Codes of `weight` (..., K) at `scale` (...)."""
    return np.clip(np.rint(weight / scale[..., None]), -LEVELS, LEVELS)


def largest_scale(weight: np.ndarray, safe: float) -> np.ndarray:
    """absmax / 127 of each row (..., K) to (...); `safe` for a row of zeros, or of numbers for which float32 has no normal scale."""
    scale = np.abs(weight).max(axis=-1) / LEVELS
    return np.where(scale >= np.finfo(np.float32).tiny, scale, safe)


@dataclasses.dataclass(frozen=True)
class Factor:
    """Cholesky factor `upper` (G, K, K) of the inverse of second moments whose columns are taken in `order` (G, K)."""

    order: np.ndarray
    upper: np.ndarray


def factor(hessian: np.ndarray) -> Factor:
    """Of `hessian` (G, K, K), columns with the largest second moment first. Raises LinAlgError where it is not positive definite."""
    order = np.argsort(-np.einsum("gkk->gk", hessian), axis=1, kind="stable")
    ordered = np.take_along_axis(np.take_along_axis(hessian, order[:, :, None], 1), order[:, None, :], 2)
    return Factor(order, np.linalg.cholesky(np.linalg.inv(ordered)).transpose(0, 2, 1))


def error_compensated(target: np.ndarray, scale: np.ndarray, inverse: Factor) -> np.ndarray:
    """Codes (G, rows, K) column by column, what is left of each row taking over the error that a column makes.

    Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", ICLR 2023, with the columns of the
    largest second moment first. `target` (G, rows, K), `scale` (G, rows), `inverse` of the inputs' second moments.
    """
    size, upper = target.shape[2], inverse.upper
    columns = np.broadcast_to(inverse.order[:, None, :], target.shape)
    left = np.take_along_axis(target, columns, 2).astype(np.float64)
    codes = np.empty_like(left)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        errors = np.empty((*target.shape[:2], stop - start))
        for column in range(start, stop):
            codes[:, :, column] = np.clip(np.rint(left[:, :, column] / scale), -LEVELS, LEVELS)
            error = (left[:, :, column] - codes[:, :, column] * scale) / upper[:, column, column][:, None]
            left[:, :, column + 1 : stop] -= error[:, :, None] * upper[:, None, column, column + 1 : stop]
            errors[:, :, column - start] = error
        left[:, :, stop:] -= errors @ upper[:, start:stop, stop:]
    result = np.empty_like(codes)
    np.put_along_axis(result, columns, codes, 2)
    return result


def descended(codes: np.ndarray, target: np.ndarray, scale: np.ndarray, hessian: np.ndarray, sweeps: int) -> np.ndarray:
    """Coordinate descent on the same error: one column at a time, each code goes where the error is least, until none moves.

    The greedy refinement of Nair and Suggala, "CDQuant: Accurate post-training weight quantization of LLMs using greedy coordinate descent", 2024,
    with cyclic columns. Never worse than what it starts from.
    """
    codes = codes.copy()
    slope = (codes * scale[..., None] - target) @ hessian
    diagonal = np.einsum("gkk->gk", hessian)
    for _ in range(sweeps):
        moved = False
        for column in range(codes.shape[2]):
            wanted = codes[:, :, column] - slope[:, :, column] / (diagonal[:, column, None] * scale)
            step = np.clip(np.rint(wanted), -LEVELS, LEVELS) - codes[:, :, column]
            group, row = np.nonzero(step)
            if len(group):
                moved = True
                codes[group, row, column] += step[group, row]
                slope[group, row] += (step * scale)[group, row, None] * hessian[group, column]
        if not moved:
            break
    return codes
