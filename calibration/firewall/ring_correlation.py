"""How much of the structure of two aligned pictures is the same, and how much structure that is.

The two spectra are correlated ring by ring, as crystallographers do (W. O. Saxton and W. Baumeister, "The correlation averaging of a regularly
arranged bacterial cell envelope protein", 1982): a ring's correlation does not see brightness, contrast or blur. A copy agrees in every ring
that stands above the noise of compression; pictures of one class agree in the lowest rings only.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import cv2
import numpy as np

NOISE = 30.0
"""Power a pixel (levels squared, 5.5 levels) below which a frequency is taken for noise of compression."""
TAPER = 10
"""One tenth of each side fades to nothing, so that the picture's edges are no structure."""
WINDOW = 6
"""Side of the window of the local comparison: this part of the picture's side."""
EXPLAINED = 0.35
"""A place of one picture is found in the other when this much of its amplitude is. Less than a half, for a stamp that is half transparent."""
PEAK = 8.0
"""Power of one frequency beyond this many times its ring's is not counted as structure: lines of text have such peaks, and little else in common."""
OCCUPIED = 0.25
"""A picture with structure in a smaller part than this (one corner of a plain ground) has fewer independent coefficients in proportion."""
CELLS = 16
UNRELATED = 0.3
"""A ring with a smaller correlation than this counts for less in the local comparison."""
_SMALL = 1e-9


class _Rings(NamedTuple):
    number: np.ndarray  # (h, w) ring of each frequency; 0: the mean and the corners
    frequency: np.ndarray  # (R,) 1 to R, cycles a picture
    size: np.ndarray  # (R,) frequencies in each ring


class Comparison:
    """Two aligned (h, w) float32 pictures, and the (h, w) float32 weight of each pixel, 0 to 1. Each figure is worked out when it is asked for."""

    def __init__(self, left: np.ndarray, right: np.ndarray, weight: np.ndarray) -> None:
        self.pictures, self.weight = (left, right), weight
        self.rings = _rings(*left.shape)
        window = weight * _taper(*left.shape)
        self.energy = float((window * window).sum()) + _SMALL
        self.spectra = [_spectrum(picture, window) for picture in self.pictures]
        self.power = [self._by_ring(_product(spectrum, spectrum)) / self.rings.size / self.energy for spectrum in self.spectra]
        shared = self._by_ring(_product(*self.spectra)) / self.rings.size / self.energy
        self.amplitude = np.sqrt(self.power[0] * self.power[1])
        self.correlation = shared / (self.amplitude + _SMALL)

    def edges(self) -> float:
        """Correlation of both pictures, each frequency counted by its amplitude times its frequency, as in a picture of edges."""
        lower = np.minimum(*self.power)
        importance = self.rings.size * self.rings.frequency * self.amplitude * lower / (lower + NOISE)
        return float((self.correlation * importance).sum() / (importance.sum() + _SMALL))

    def coefficients(self) -> float:
        """How many independent coefficients hold the structure of the simpler picture (participation ratio of the power times the frequency),
        less where structure is in one place only."""
        whole = self
        if self.weight.min() < 1:  # an edge of the weight is no structure of the pictures
            whole = Comparison(*self.pictures, np.ones_like(self.weight))
        counts = [one.participants(which) for one in {self, whole} for which in (0, 1)]
        return min(counts) * min(1.0, *(_occupied(picture) / OCCUPIED for picture in self.pictures))

    def found(self) -> float:
        """Share of one picture's structure that is in its place in the other, whatever else is there; the better of both directions."""
        return max(self._found(0), self._found(1))

    def _by_ring(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.rings.number.ravel(), weights=values.ravel(), minlength=len(self.rings.size) + 1)[1:]

    def participants(self, which: int) -> float:
        power = _product(self.spectra[which], self.spectra[which]) / self.energy
        usual = self._by_ring(np.sqrt(power)) / self.rings.size
        limit = np.concatenate([[0.0], PEAK * usual * usual])[self.rings.number]
        energies = np.maximum(np.minimum(power, limit) - NOISE, 0) * self.rings.number
        return float(energies.sum() ** 2 / ((energies * energies).sum() + _SMALL)) / 2  # a real picture has each coefficient twice

    def _found(self, which: int) -> float:
        """The share of this picture, window by window.

        This picture is whitened; the other is brought to it by the regression of each ring. Where the other shows the same structure, with
        or without something added to it, the product of both is near the square of this one; where it shows another thing, near 0.
        """
        power, other = self.power[which], self.power[1 - which]
        gain = np.sqrt(power / (power + NOISE)) / np.sqrt(power + 1e-3)
        back = np.sqrt((power + _SMALL) / (other + _SMALL)) / np.clip(self.correlation, UNRELATED / 10, 1)
        other_gain = gain * np.minimum(back, 1e3) * np.clip(self.correlation / UNRELATED, 0, 1)
        mine, theirs = self._filtered(which, gain), self._filtered(1 - which, other_gain)
        window = tuple(max(3, side // WINDOW | 1) for side in reversed(mine.shape))
        square, product = (cv2.blur(image, window, borderType=cv2.BORDER_CONSTANT) for image in (mine * mine, mine * theirs))
        structure = np.sqrt(np.maximum(square, 0))
        return float(structure[product > EXPLAINED * square].sum() / (structure.sum() + _SMALL))

    def _filtered(self, which: int, gain: np.ndarray) -> np.ndarray:
        by_frequency = np.concatenate([[0.0], gain]).astype(np.float32)[self.rings.number][..., None]
        return cv2.idft(self.spectra[which] * by_frequency, flags=cv2.DFT_REAL_OUTPUT | cv2.DFT_SCALE)


def _spectrum(picture: np.ndarray, window: np.ndarray) -> np.ndarray:
    mean = float((picture * window).sum()) / (float(window.sum()) + _SMALL)
    return cv2.dft((picture - mean) * window, flags=cv2.DFT_COMPLEX_OUTPUT)


def _occupied(picture: np.ndarray) -> float:
    """Share of CELLS x CELLS cells that hold structure: participation ratio of its amplitude."""
    sigma = min(picture.shape) / 64
    narrow, wide = (cv2.GaussianBlur(picture, (0, 0), max(0.4, width * sigma), borderType=cv2.BORDER_REFLECT) for width in (0.7, 4.0))
    band = narrow - wide
    cells = np.sqrt(cv2.resize(band * band, (CELLS, CELLS), interpolation=cv2.INTER_AREA))
    return float(cells.sum() ** 2 / ((cells * cells).sum() + _SMALL)) / cells.size


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Real part of left times the conjugate of right; the last axis holds real and imaginary parts."""
    return left[..., 0] * right[..., 0] + left[..., 1] * right[..., 1]


@functools.lru_cache(256)
def _rings(height: int, width: int) -> _Rings:
    down, across = np.fft.fftfreq(height) * height, np.fft.fftfreq(width) * width
    number = np.rint(np.hypot(down[:, None], across[None, :])).astype(np.int64)
    last = max(1, max(height, width) // 2)
    number[number > last] = 0
    size = np.bincount(number.ravel(), minlength=last + 1)[1:]
    return _Rings(number, np.arange(1.0, last + 1), np.maximum(size, 1))


@functools.lru_cache(256)
def _taper(height: int, width: int) -> np.ndarray:
    def side(length: int) -> np.ndarray:
        edge = max(1, length // TAPER)
        rise = np.sin((np.arange(edge) + 0.5) / edge * np.pi / 2) ** 2
        fade = np.ones(length)
        fade[:edge], fade[length - edge :] = rise, rise[::-1]
        return fade

    return np.outer(side(height), side(width)).astype(np.float32)
