"""Near pictures: two that come from one original, however it was compressed, resized, brightened, flipped, cropped, framed or turned.

What decides is structure that two different pictures do not share: how far their spectra agree ring by ring after one was laid over the other,
measured against how much structure there is. A picture with many independent coefficients (a photograph, a page of text) is told from all
others by a part of them; one with few (a digit, a glyph) is like many of its class, and must agree in nearly all of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import cv2
import numpy as np

from calibration.firewall import alignment, borders, picture_index, picture_signature, residual, ring_correlation
from calibration.firewall.alignment import LEAST_SIDE, Evidence, align, common_size, greys
from calibration.firewall.borders import border_of
from calibration.firewall.residual import trimmed_residual
from calibration.firewall.ring_correlation import Comparison

ALGORITHM = "rings-2"
"""Raise the number when a change of code changes a signature or a decision."""
PARTS = (alignment, borders, picture_index, picture_signature, residual, ring_correlation)


@dataclass(frozen=True)
class Pictures:
    """Pictures, (H, W) or (H, W, 3) uint8 of any size.

    What can be told depends on the resolution. From 32 pixels a side a copy is found through all changes named above. Below 20 pixels
    pictures are compared as they lie, or flipped, and nearly all coefficients must agree: of the 8x8 digits, copies with another brightness
    or contrast, larger ones, and JPEG of quality 90 are found, while JPEG of quality 60 changes a digit more than two writers differ, and is not.
    A picture without structure (standard deviation below `flat_levels`, or fewer than `least_pixels`) is near only to one whose levels are the
    same, `flat_difference` apart in the mean.

    `side`: pixels a side that are compared. `edges_by_structure`: the least correlation of edges by the number of independent coefficients.
    `small_edges`: the same below 20 pixels. `sure_edges`: enough alone, where the place of each difference is not asked. `found`: the least
    share of one picture that is in its place in the other (frames of one scene, where something moved, have less). `residual`: the most
    that may be left of the pixels that agree best, below `sure_edges` (drawings of one shape on two grounds leave more), unless there are
    `many` coefficients.
    """

    side: int = 64
    least_pixels: int = 64
    flat_levels: float = 4.0
    flat_difference: float = 0.5
    edges_by_structure: tuple[tuple[float, float], ...] = ((8.0, 0.996), (26.0, 0.977), (31.0, 0.88), (36.0, 0.6))
    small_edges: float = 0.994
    sure_edges: float = 0.97
    found: float = 0.87
    residual: float = 0.02
    many: float = 120.0

    @property
    def name(self) -> str:
        return "picture"

    @property
    def version(self) -> str:
        """The algorithm and this object's parameters in the clear, then a digest of the constants of the files it uses."""
        constants = {module.__name__: {name: value for name, value in vars(module).items() if _is_parameter(name, value)} for module in PARTS}
        return f"{ALGORITHM} {self!r} {hashlib.sha256(repr(constants).encode()).hexdigest()[:16]}"

    @property
    def signature_bytes(self) -> int:
        return picture_signature.BYTES

    def sign(self, content: np.ndarray) -> np.ndarray:
        """(H, W) or (H, W, 3) uint8 to (signature_bytes,) uint8."""
        return picture_signature.signature(content)

    def candidates(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Pairs (k, 2) int64 of the rows whose lowest coefficients are alike, under any flip; see `picture_index` for its limits."""
        return picture_index.candidates(left, right)

    def evidence(self, content: np.ndarray) -> Evidence:
        """The picture reduced to at most `side` pixels a side (12 kB for colour), and its border."""
        height, width = content.shape[:2]
        border = border_of(content)
        size = (min(self.side, width), min(self.side, height))
        pixels = content.copy() if size == (width, height) else cv2.resize(content, size, interpolation=cv2.INTER_AREA)
        return Evidence(pixels, (border.top / height, border.bottom / height, border.left / width, border.right / width))

    def distance(self, left: Evidence, right: Evidence) -> float | None:
        """Share of the structure that is not the same, or of the range of levels for flat pictures; None when they have no common original."""
        if np.array_equal(left.pixels, right.pixels):
            return 0.0
        pixels = common_size(left.pixels, right.pixels)
        flat = [max(float(grey.std()) for grey in greys(picture)) < self.flat_levels for picture in pixels]
        if any(flat) or pixels[0].shape[0] * pixels[0].shape[1] < self.least_pixels:
            return self._difference_in_level(*pixels)
        aligned = align(left, right)
        if aligned is None:
            return None
        comparison = Comparison(*aligned)
        edges = comparison.edges()
        small = min(aligned.left.shape) < LEAST_SIDE
        if not self._is_near(comparison, edges, small):
            return None
        doubtful = not small and edges < self.sure_edges and comparison.coefficients() < self.many
        if doubtful and trimmed_residual(*aligned) > self.residual:
            return None
        return float(np.clip(1 - edges, 0, 1))

    def _is_near(self, comparison: Comparison, edges: float, small: bool) -> bool:
        if small:
            return edges >= self.small_edges
        coefficients, least_edges = np.array(self.edges_by_structure).T
        if edges < least_edges.min():
            return False
        least = float(np.interp(comparison.coefficients(), coefficients, least_edges))
        return edges >= max(least, self.sure_edges) or (edges >= least and comparison.found() >= self.found)

    def _difference_in_level(self, left: np.ndarray, right: np.ndarray) -> float | None:
        difference = float(np.abs(np.atleast_3d(left).astype(np.float32) - np.atleast_3d(right)).mean())
        return difference / 255 if difference <= self.flat_difference else None


def _is_parameter(name: str, value: object) -> bool:
    return name.lstrip("_").isupper() and isinstance(value, int | float | tuple)
