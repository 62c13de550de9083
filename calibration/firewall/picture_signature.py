"""A picture's signature: its lowest cosine coefficients, which a flip only changes in sign.

The coefficients are those of the perceptual hash pHash (C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010),
kept as small integers instead of bits. A picture is described with and without its border, and in two greys: luma, which a grey copy keeps, and
HSL lightness (max + min) / 2, which no shift of hue changes. Whole numbers are added and multiplied on the way, so each machine makes equal bytes.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from calibration.firewall.borders import NO_BORDER, border_of, without

GRID = 32
"""A picture is first averaged to GRID x GRID cells, whatever its size."""
ORDER = 12
"""Coefficients with fewer half waves than this, counted along the diagonal; the mean is left out."""
SIXTEENTHS = 16
LUMA = np.array([77.0, 150.0, 29.0])
"""256 times the weights of red, green and blue (ITU-R BT.601)."""
COSINES = np.rint(256 * np.cos(np.pi * np.outer(np.arange(ORDER), np.arange(GRID) + 0.5) / GRID))
DOWN, ACROSS = np.meshgrid(np.arange(ORDER), np.arange(ORDER), indexing="ij")
DISC = (np.hypot(DOWN, ACROSS) > 0) & (np.hypot(DOWN, ACROSS) < ORDER)
WEIGHTS = (np.hypot(DOWN, ACROSS) ** 0.5 * np.where(DOWN, 1.0, 0.5**0.5) * np.where(ACROSS, 1.0, 0.5**0.5))[DISC]
"""A natural picture's coefficients fall as 1 / frequency; half of that is taken back."""
LENGTH = int(DISC.sum())
VIEWS = 4
"""Luma and lightness without the border, then luma and lightness of the whole."""
HEADER = 4
BYTES = HEADER + VIEWS * LENGTH
"""Standard deviation in levels, mean red, green and blue, then the views as int8."""
FLIPS = np.stack([np.ones(LENGTH), (-1.0) ** ACROSS[DISC], (-1.0) ** DOWN[DISC], (-1.0) ** (ACROSS + DOWN)[DISC]]).astype(np.float32)
"""(4, LENGTH) signs that a left-right, an upside-down and a double flip give to the coefficients."""
CHUNK_ROWS = 256


def signature(picture: np.ndarray) -> np.ndarray:
    """(H, W) or (H, W, 3) uint8 to (BYTES,) uint8."""
    cells = _cells(picture)
    whole = _greys(cells)
    border = border_of(picture)
    outer = [_coefficients(grey) for grey in whole]
    inner = outer if border == NO_BORDER else [_coefficients(grey) for grey in _greys(_cells(without(picture, border)))]
    mean = cells.sum(axis=(0, 1)) / (SIXTEENTHS * GRID * GRID)
    header = np.rint([max(map(_spread, whole)), *(mean if len(mean) == 3 else np.repeat(mean, 3))]).astype(np.uint8)
    return np.concatenate([header, np.concatenate([*inner, *outer]).view(np.uint8)])


def views(signatures: np.ndarray) -> np.ndarray:
    """(n, BYTES) uint8 to (n, VIEWS, LENGTH) int8."""
    return signatures[:, HEADER:].view(np.int8).reshape(len(signatures), VIEWS, LENGTH)


def unit(coefficients: np.ndarray) -> np.ndarray:
    """(n, LENGTH) int8 to float32 of length 1, or 0 where there is no structure."""
    values = coefficients.astype(np.float32)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1.0)


@functools.lru_cache(256)
def _shares(length: int) -> np.ndarray:
    """(GRID, length): how much of each pixel falls into each of GRID equal cells, in GRIDths of a pixel."""
    cells, pixels = np.arange(GRID)[:, None] * length, np.arange(length)[None, :] * GRID
    return np.clip(np.minimum(cells + length, pixels + GRID) - np.maximum(cells, pixels), 0, None).astype(np.float64)


def _cells(picture: np.ndarray) -> np.ndarray:
    """(GRID, GRID, C) mean of each cell in whole sixteenths of a level; float64 that holds integers, so that no sum is rounded."""
    height, width = picture.shape[:2]
    flat = picture.reshape(height, -1)
    rows = _shares(height)
    total = sum(rows[:, start : start + CHUNK_ROWS] @ flat[start : start + CHUNK_ROWS].astype(np.float64) for start in range(0, height, CHUNK_ROWS))
    sums = _shares(width) @ np.asarray(total).reshape(GRID, width, -1)
    return np.rint(sums * SIXTEENTHS / (height * width))


def _greys(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Luma and lightness, both in 256 * 16ths of a level; one and the same array for a grey picture."""
    if cells.shape[2] == 1:
        grey = cells[..., 0] * LUMA.sum()
        return grey, grey
    red, green, blue = (cells[..., channel] for channel in range(3))
    highest, lowest = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    return cells @ LUMA, (highest + lowest) * (LUMA.sum() / 2)


def _spread(grey: np.ndarray) -> float:
    """Standard deviation in levels."""
    count, total, squares = grey.size, int(grey.sum()), int((grey * grey).sum())
    return math.sqrt(count * squares - total * total) / (count * SIXTEENTHS * float(LUMA.sum()))


def _coefficients(grey: np.ndarray) -> np.ndarray:
    """(GRID, GRID) to (LENGTH,) int8: weighted, scaled to length 127."""
    values = (COSINES @ grey @ COSINES.T)[DISC] * WEIGHTS
    norm = math.sqrt(math.fsum(values * values))
    return np.rint(values * (127 / norm)).astype(np.int8) if norm else np.zeros(LENGTH, np.int8)
