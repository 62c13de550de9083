"""The frame of one colour that was put around or over a picture's edge."""

from __future__ import annotations

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
    return Border(_even(planes[:most]), _even(planes[::-1][:most]), _even(columns[:across]), _even(columns[::-1][:across]))


def without(picture: np.ndarray, border: Border) -> np.ndarray:
    """The part inside the border (a view)."""
    height, width = picture.shape[:2]
    return picture[border.top : height - border.bottom, border.left : width - border.right]


def _even(lines: np.ndarray) -> int:
    """How many of the first lines (n, length, C) are of one colour, the first line's."""
    count, first = 0, None
    for line in lines:
        if np.ptp(line[:: max(1, len(line) // 32)].astype(np.int16), axis=0).max() > 8 * EVEN_LEVELS or line.std(axis=0).max() > EVEN_LEVELS:
            break
        mean = line.mean(axis=0)
        first = mean if first is None else first
        if np.abs(mean - first).max() > STEP_LEVELS:
            break
        count += 1
    return count
