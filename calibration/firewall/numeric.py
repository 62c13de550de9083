"""Near rows of numeric arrays: a random projection finds candidates, a comparison within a tolerance decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.firewall import sketches
from pipeline.errors import ConfigError, DataError

FEW_ELEMENTS = 64
CARRIERS = 8.0
SIGNED_CARRIERS = 7.0
"""Just below CARRIERS, so that noise on a row at the limit does not change how it is signed."""
WINDOWS = 8
SLICE_ELEMENTS = 8
SLICE_FACTOR = 5.0
LARGEST_SCALE = 1.1
LARGEST_COUNT = 2048
"""Whole numbers up to here are exact in float16; larger ones may have been rounded."""
ELEMENT_SHARE = 0.05
"""Of the tolerance, for elements compared one by one: 0.001 by default, twice the rounding of float16."""
FRACTIONS = 3
EVIDENCE_BITS = 27.0
"""One coincidence in 100 million pairs."""
ROUNDING = 1e-6


@dataclass(frozen=True)
class Numbers:
    """Content: a float or integer array of any shape. Rows of different shape, or with NaN or infinity at different places, are never near.

    An array of 64 elements or more is one signal: a and b, after the ratio of their norms is taken out (1.1 at most), are near when

    - the RMS of a - b is at most `tolerance` (0.02) of the RMS of their variation (the elements less their mean), and
    - for half the slices along every axis (an array of one axis: of its eight windows) it is at most five times that (0.1) of the slice's own
      variation: a channel of large numbers, or a ramp that all rows share, does not speak for the others, and
    - chance is no explanation: as many numbers as the rows really hold (the participation ratio of the power spectrum: 3 for a sine, the length for
      noise) agree to so many bits that there are 27 in all, once in 100 million pairs. Among thousands of sines two come within 2 % by chance.

    So float16, a scale off by some per cent and noise of 1 % are near; of plain curves only what agrees to 0.2 %.

    An array of fewer elements may be a table's row, whose columns have a scale each, and near rows are usual in tables. So each element is compared
    alone: whole numbers up to 2,048 must be equal, all others agree to 0.05 x `tolerance` (0.001) of the larger; and at least three different
    fractions must agree so, else all must be equal but for the rounding of float32. The same holds where fewer than eight elements carry the
    variation (participation ratio) and for constant rows. A table's rows that were rescaled by 1 % or noised are therefore not found.

    Distance: the relative RMS difference, or the largest relative difference of an element; 0 when all are equal.
    """

    tolerance: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.tolerance <= 0.2:
            raise ConfigError("A tolerance makes no sense", expected="more than 0, at most 0.2", got=str(self.tolerance), next="begin with 0.02")

    @property
    def name(self) -> str:
        """`numbers`."""
        return "numbers"

    @property
    def version(self) -> str:
        """Rule, tolerance and signature method."""
        return f"numbers-1 tolerance={self.tolerance} {sketches.VERSION}"

    @property
    def signature_bytes(self) -> int:
        """208."""
        return sketches.SIGNATURE_BYTES

    def sign(self, content: np.ndarray) -> np.ndarray:
        """(208,) uint8: shape, places that are not finite, scale, and 48 projections of the row."""
        array = _numbers(content).astype(np.float64)
        kinds = _non_finite(array)
        key = repr(array.shape).encode() + (kinds.tobytes() if kinds.any() else b"")
        filled = _filled(array)
        return sketches.sketch(filled, array.size < FEW_ELEMENTS or _carriers(filled) < SIGNED_CARRIERS, key)

    def candidates(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See Kind; a right row has at most 32, the closest."""
        return sketches.close_pairs(left, right, cell=12 * self.tolerance, radius=4 * self.tolerance, scale=float(np.log(LARGEST_SCALE)) + 0.02)

    def evidence(self, content: np.ndarray) -> np.ndarray:
        """The array in its own type."""
        return _numbers(content)

    def distance(self, left: Any, right: Any) -> float | None:
        """Relative difference, 0 when equal, None when the rule of this class says two originals."""
        if left.shape != right.shape:
            return None
        if np.array_equal(left, right):
            return 0.0
        if left.size < FEW_ELEMENTS and left.dtype.kind in "iub" and right.dtype.kind in "iub":
            return None
        a, b = left.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            if not np.array_equal(_non_finite(a), _non_finite(b)):
                return None
            a, b = _filled(a), _filled(b)
        if a.size < FEW_ELEMENTS or min(_carriers(a), _carriers(b)) < CARRIERS:
            return _by_element(a[finite], b[finite], self.tolerance * ELEMENT_SHARE)
        return _as_signal(a, b, self.tolerance)


def _numbers(content: np.ndarray) -> np.ndarray:
    array = np.asarray(content)
    if array.dtype.kind not in "fiub":
        got = f"shape {array.shape}, type {array.dtype}"
        raise DataError("A row is no array of numbers", expected="floats or integers", got=got, next="name a numeric column in data.columns")
    return array


def _non_finite(array: np.ndarray) -> np.ndarray:
    """0 where finite, else 1 for NaN, 2 and 3 for the infinities; int8 of the array's shape."""
    return np.asarray(np.isnan(array) + np.isposinf(array) * np.int8(2) + np.isneginf(array) * np.int8(3), np.int8)


def _filled(array: np.ndarray) -> np.ndarray:
    """The mean of the finite elements in place of the others, which then vary nothing."""
    finite = np.isfinite(array)
    if finite.all() or not finite.any():
        return np.where(finite, array, 0.0)
    largest = float(np.abs(array[finite]).max()) or 1.0
    return np.where(finite, array, (array[finite] / largest).mean() * largest)


def _carriers(array: np.ndarray) -> float:
    """Participation ratio: how many elements carry the variation; 0 for a constant row."""
    largest = np.abs(array).max(initial=0.0)
    unit = array / (largest or 1.0)
    if not unit.size or np.ptp(unit) <= ROUNDING:
        return 0.0
    energy = (unit - unit.mean()) ** 2
    return float(energy.sum() ** 2 / (energy**2).sum())


def _by_element(a: np.ndarray, b: np.ndarray, share: float) -> float | None:
    larger = np.maximum(np.abs(a), np.abs(b))
    apart = np.abs(np.divide(a, larger, out=np.zeros_like(a), where=larger > 0) - np.divide(b, larger, out=np.zeros_like(a), where=larger > 0))
    whole = (a == np.rint(a)) & (b == np.rint(b)) & (larger <= LARGEST_COUNT)
    fractions = len(np.unique(a[(a != np.rint(a)) | (b != np.rint(b))]))
    allowed = np.where(whole, 0.0, share if fractions >= FRACTIONS else ROUNDING)
    return float(apart.max(initial=0.0)) if (apart <= allowed).all() else None


def _as_signal(a: np.ndarray, b: np.ndarray, tolerance: float) -> float | None:
    largest = max(float(np.abs(a).max()), float(np.abs(b).max()))
    a, b = a / largest, b / largest
    ratio = float(np.linalg.norm(a) / np.linalg.norm(b))
    root = np.sqrt(np.clip(ratio, 1 / LARGEST_SCALE, LARGEST_SCALE))
    a, b = a / root, b * root
    distance = float(_relative(a.reshape(1, -1), b.reshape(1, -1))[0])
    if distance > tolerance:
        return None
    worst = distance
    for left, right in zip(_slices(a), _slices(b), strict=True):
        median = float(np.median(_relative(left, right)))
        if median > SLICE_FACTOR * tolerance:
            return None
        worst = max(worst, median) if a.ndim > 1 else worst
    if distance and min(_freedom(a), _freedom(b)) * -np.log2(worst) < EVIDENCE_BITS:
        return None
    return distance


def _freedom(array: np.ndarray) -> float:
    """How many numbers an array really holds: the participation ratio of its power spectrum; a sine of any frequency has three, noise its length."""
    rest = sketches.levelled(array)
    power = np.abs(np.fft.rfftn(rest, s=[2 * length if length > 1 else 1 for length in rest.shape], axes=range(rest.ndim))) ** 2
    padded = sum(length > 1 for length in rest.shape)  # each axis doubled, one halved: what is counted twice
    return float(power.sum() ** 2 / (power**2).sum()) / 2 ** (padded - 1)


def _slices(array: np.ndarray) -> list[np.ndarray]:
    """For each axis (slices, elements); an array of one axis in eight windows, the last elements left over."""
    if sum(length > 1 for length in array.shape) == 1:
        return [array.ravel()[: array.size // WINDOWS * WINDOWS].reshape(WINDOWS, -1)]
    views = [np.moveaxis(array, axis, 0).reshape(length, -1) for axis, length in enumerate(array.shape) if length > 1]
    return [view for view in views if view.shape[1] >= SLICE_ELEMENTS]


def _relative(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(k, n) and (k, n) to (k,): RMS of the difference over RMS of the variation; 0 where there is no difference."""
    difference = np.sqrt(np.mean((left - right) ** 2, axis=1))
    variation = np.sqrt((left.var(axis=1) + right.var(axis=1)) / 2)
    return np.divide(difference, variation, out=np.where(difference > 0, np.inf, 0.0), where=variation > 0)
