"""A short descriptor of a numeric array, close for rows that agree within a tolerance, and its banded index.

Source: Achlioptas, Database-friendly random projections (2003) for the descriptor; Datar et al., p-stable hashing (2004) for its cells.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import numpy as np

from calibration.firewall.bands import candidate_pairs

COORDINATES = 48
FOLDED = 4096
STEPS = 1024
"""Elements are rounded to 1/1024 before they are summed, so that every sum is exact and the same on every machine."""
HEADER_BYTES = 16
SIGNATURE_BYTES = HEADER_BYTES + 4 * COORDINATES
PER_BAND = 6
SLICE_ELEMENTS = 8
LOG_CELL = 0.05
LOG_RADIUS = 0.005
LOG_UNIT = 1000.0
LARGEST = 1e300
VERSION = f"sketch-1-{COORDINATES}x{FOLDED}-{STEPS}"


@functools.lru_cache(maxsize=8)
def _signs(count: int) -> np.ndarray:
    """(count,) of +1 and -1; RandomState's stream is frozen (NEP 19)."""
    return np.random.RandomState(count % 2**31).randint(0, 2, count, dtype=np.int8) * np.int8(2) - np.int8(1)


@functools.cache
def _projection() -> np.ndarray:
    return (np.random.RandomState(4).randint(0, 2, (COORDINATES, FOLDED)) * 2 - 1).astype(np.float64)


@functools.cache
def _shifts() -> np.ndarray:
    """Where the cells of each pass begin, (2, COORDINATES) in [0, 1)."""
    return np.random.RandomState(5).random_sample((2, COORDINATES))


@functools.cache
def _orders() -> np.ndarray:
    """Which coordinates make the bands of each pass, (2, COORDINATES)."""
    return np.stack([np.arange(COORDINATES), np.random.RandomState(6).permutation(COORDINATES)])


def levelled(array: np.ndarray) -> np.ndarray:
    """Every slice of eight elements or more, along each axis in turn, less its mean and over its own variation, so that no channel hides another.

    A slice that varies less than half as much as the median one is not blown up: its variation may be noise.
    """
    rest = array - array.mean() if array.size else array
    axes = [axis for axis, length in enumerate(array.shape) if length > 1 and array.size // length >= SLICE_ELEMENTS]
    for axis in axes if array.ndim > 1 else []:
        others = tuple(other for other in range(array.ndim) if other != axis)
        rest = rest - rest.mean(axis=others, keepdims=True)
        variance = np.mean(rest**2, axis=others, keepdims=True)
        floor = np.median(variance) / 4
        rest = np.divide(rest, np.sqrt(variance + floor), out=np.zeros_like(rest), where=variance + floor > 0)
    return rest


def sketch(array: np.ndarray, by_element: bool, shape_key: bytes) -> np.ndarray:
    """(208,) uint8 of a finite float64 array of any shape.

    `by_element` False: the levelled array, of unit norm, so that a scale does not matter; its logarithmic scale is kept beside it. True: every
    element's logarithm (asinh of 1000 x), so that no large element hides a small one.
    """
    if by_element:
        values, scale = np.arcsinh(np.clip(array, -LARGEST, LARGEST) * LOG_UNIT), 0.0
    else:
        largest = float(np.abs(array).max(initial=0.0)) or 1.0
        values = array / largest
        values = values - values.mean() if values.size else values
        rms = float(np.sqrt(np.mean(values**2))) if values.size else 0.0
        scale = float(np.log(rms) + np.log(largest)) if rms > 0 else 0.0
        values = levelled(values)
        values = values / (np.sqrt(np.mean(values**2)) or 1.0) if values.size else values
    whole = np.rint(values.ravel() * STEPS)
    if whole.size > FOLDED:
        whole = whole * _signs(whole.size)
        whole = np.pad(whole, (0, -whole.size % FOLDED)).reshape(-1, FOLDED).sum(axis=0)
    coordinates = _projection()[:, : whole.size] @ whole / (STEPS * np.sqrt(max(array.size, 1)))
    key = hashlib.blake2b(shape_key + bytes([by_element]), digest_size=8).digest()
    header = key + np.array([scale], "<f4").tobytes() + bytes([by_element, 0, 0, 0])
    return np.frombuffer(header + coordinates.astype("<f4").tobytes(), np.uint8)


def _coordinates(signatures: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(signatures[:, HEADER_BYTES:]).view("<f4")


def _by_element(signatures: np.ndarray) -> np.ndarray:
    return signatures[:, 12] == 1


def _keys(cell: float) -> Callable[[np.ndarray], np.ndarray]:
    def keys(signatures: np.ndarray) -> np.ndarray:
        """(n, 208) uint8 to (n, bands) uint64: the cells of six coordinates, and what shape they are of."""
        width = np.where(_by_element(signatures), LOG_CELL, cell)[:, None]
        shape = np.ascontiguousarray(signatures[:, :8]).view("<u8").astype(np.uint64)
        found = []
        for shift, order in zip(_shifts(), _orders(), strict=True):
            cells = np.floor(_coordinates(signatures) / width + shift)[:, order]
            cells = cells.astype(np.int64).astype(np.uint64).reshape(len(cells), -1, PER_BAND)
            key = np.broadcast_to(shape, cells.shape[:2])
            for member in range(PER_BAND):
                key = _mixed(key ^ cells[:, :, member])
            found.append(key)
        return np.concatenate(found, axis=1)

    return keys


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: a bijection of uint64 that spreads every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _closeness(radius: float, scale: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def closeness(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Minus the root mean square difference of the coordinates, in radii; minus infinity where the scales are too far apart."""
        apart = np.sqrt(np.mean((_coordinates(left) - _coordinates(right)) ** 2, axis=1, dtype=np.float64))
        by_element = _by_element(left)
        scales = np.ascontiguousarray(np.stack([left[:, 8:12], right[:, 8:12]])).view("<f4")[..., 0]
        fits = (np.abs(scales[0] - scales[1]) <= scale) & np.all(left[:, :8] == right[:, :8], axis=1)
        return np.where(fits, -apart / np.where(by_element, LOG_RADIUS, radius), -np.inf)

    return closeness


def close_pairs(left: np.ndarray, right: np.ndarray, cell: float, radius: float, scale: float) -> np.ndarray:
    """Pairs (k, 2) of rows of one shape, their descriptors within `radius` (1.4: unrelated), their scales within a factor of exp(`scale`).

    `cell` is the width of a cell of the index: several times the difference that is looked for.
    """
    return candidate_pairs(left, right, _keys(cell), _closeness(radius, scale), -1.0)
