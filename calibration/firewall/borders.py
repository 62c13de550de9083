"""The frame of one colour that was put around or over a picture's edge."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

WIDEST = 0.15
"""No more than this share of the height or width counts as border on one side."""
EVEN_LEVELS, STEP_LEVELS = 4.0, 8.0
"""A line belongs to the border while its standard deviation, and its mean's distance from the outermost line, stay within these."""
LEAST_SIDE = 16
"""Below this many pixels a side a line of one colour is no sign of a border."""


class Border(NamedTuple):
    """Rows and columns of pixels on each side."""

    top: int
    bottom: int
    left: int
    right: int


NO_BORDER = Border(0, 0, 0, 0)


def border_of(picture: np.ndarray) -> Border:
    """Widths of a picture's border in pixels; (H, W) or (H, W, 3) uint8."""
    height, width = picture.shape[:2]
    if min(height, width) < LEAST_SIDE:
        return NO_BORDER
    planes = picture.reshape(height, width, -1)
    columns = planes.transpose(1, 0, 2)
    most, across = int(height * WIDEST), int(width * WIDEST)
    sides = planes[:most], planes[::-1][:most], columns[:across], columns[::-1][:across]
    seen = planes[_outermost(height, width)]
    plain = (seen.max(axis=1) - seen.min(axis=1)).max(axis=1) <= 8 * EVEN_LEVELS
    return Border(*(_even(lines) if even else 0 for lines, even in zip(sides, plain.tolist(), strict=True)))


def without(picture: np.ndarray, border: Border) -> np.ndarray:
    """The part inside the border (a view)."""
    height, width = picture.shape[:2]
    return picture[border.top : height - border.bottom, border.left : width - border.right]


@functools.lru_cache(256)
def _outermost(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns, (4, n) each, of some 32 pixels of the top, bottom, left and right line: most pictures show no border there."""
    down, across = (np.arange(0, length, max(1, length // 32)) for length in (height, width))
    count = max(len(down), len(across))
    down, across = (np.pad(places, (0, count - len(places)), mode="edge") for places in (down, across))
    top, left = np.zeros(count, int), np.zeros(count, int)
    return np.stack([top, top + height - 1, down, down]), np.stack([across, across, left, left + width - 1])


def _even(lines: np.ndarray) -> int:
    """How many of the first lines (n, length, C) uint8 are of one colour, the first line's. In whole numbers: the same on each machine."""
    sample = lines[:, :: max(1, lines.shape[1] // 32)]
    wide = (sample.max(axis=1) - sample.min(axis=1)).max(axis=1) > 8 * EVEN_LEVELS
    values, length = lines.astype(np.int64), lines.shape[1]
    totals, squares = values.sum(axis=1), np.square(values).sum(axis=1)
    uneven = (length * squares - totals * totals).max(axis=1) > (EVEN_LEVELS * length) ** 2
    other = np.abs(totals - totals[:1]).max(axis=1) > STEP_LEVELS * length
    ends = np.flatnonzero(wide | uneven | other)
    return int(ends[0]) if len(ends) else len(lines)
