"""Lays one picture over another: grey, flip and border that fit best, then an affine map from the places where patches are found again.

Patches are found by normalized cross-correlation of the band that survives compression, and an affine map is fitted to their displacements
by reweighted least squares with Cauchy weights (P. J. Huber, "Robust Statistics", 1981), so that a stamp or an object that moved pulls
at nothing. It follows a crop or border of a tenth, a rotation of three degrees and another aspect ratio.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

LEAST_SIDE = 20
"""Pictures with fewer pixels on a side are compared as they lie, or flipped: an affine map could make any two of a class alike."""
LEAST_RESEMBLANCE = 0.35
LEAST_FOUND = (0.5, 0.6)
"""Correlations of the middle, and of the patches (by their structure) in the two steps, below which two pictures are told apart at once."""
PATCHES = 4
COARSE, FINE = (6 / 64, 0.02), (2 / 64, 0.012)
"""How far a patch may lie from its place, and which misfit halves its weight, both as parts of the side."""
BAND = (0.7, 4.0)
"""Gaussian widths, in pixels of a 64 pixel side, between which structure is looked for."""
HALF_BAND = (0.5, 3.0)
FLIPS = (None, 1, 0, -1)
"""OpenCV's codes: as it is, left-right, upside down, both."""
LEAST_COVERED = 0.55
"""Share of each picture's structure that must lie over the other picture."""


class Evidence(NamedTuple):
    """A picture of at most 64 pixels a side, (h, w) or (h, w, 3) uint8, and its border's top, bottom, left and right as parts of the side."""

    pixels: np.ndarray
    border: tuple[float, float, float, float]


class Aligned(NamedTuple):
    """Two (h, w) float32 greys that lie over each other, and the (h, w) float32 weight of each pixel, 0 to 1."""

    left: np.ndarray
    right: np.ndarray
    weight: np.ndarray


class _Form(NamedTuple):
    """One way to look at both pictures: a grey, with the border covered up or cut off, and the masks of what is no border."""

    left: np.ndarray
    right: np.ndarray
    left_mask: np.ndarray
    right_mask: np.ndarray


def common_size(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both reduced to the smaller height and the smaller width of the two."""
    height, width = (min(a, b) for a, b in zip(left.shape[:2], right.shape[:2], strict=True))
    return _resized(left, height, width), _resized(right, height, width)


def greys(pixels: np.ndarray) -> list[np.ndarray]:
    """Luma and lightness, (h, w) float32; one only for a grey picture. A shift of hue leaves lightness, a grey copy luma."""
    if pixels.ndim == 2:
        return [pixels.astype(np.float32)]
    red, green, blue = cv2.split(pixels)
    highest, lowest = cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue)
    luma = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return [luma, cv2.addWeighted(highest, 0.5, lowest, 0.5, 0, dtype=cv2.CV_32F)]


def align(left: Evidence, right: Evidence) -> Aligned | None:
    """The right picture laid over the left one; None when no flip brings them near each other."""
    left_greys, right_greys = (greys(pixels) for pixels in common_size(left.pixels, right.pixels))
    height, width = left_greys[0].shape
    if min(height, width) < LEAST_SIDE:
        return _best_flip(left_greys, right_greys)
    found = _best_form(_forms(left_greys, right_greys, left.border, right.border))
    if found is None:
        return None
    form, moved = found
    sigma = max(0.6, min(height, width) / 64)
    band = tuple(width * sigma for width in BAND)
    left_band = _band(form.left, *band)
    structure = np.sqrt(_patch_energy(left_band))
    structure /= structure.max() + 1e-9
    total = np.eye(3)
    for (reach, misfit), least in zip((COARSE, FINE), LEAST_FOUND, strict=True):
        right_band = _band(_warped(moved.right, total), *band)
        steps = (max(2, round(height * reach)), max(2, round(width * reach)))
        patches = _displacements(left_band, right_band, *steps)
        if float((structure * patches[:, 4]).sum() / structure.sum()) < least:
            return None
        weight = np.sqrt(structure) * np.clip(patches[:, 4] - 0.3, 0, 1)
        total = total @ _affine(patches, weight, height, width, misfit * width)
    seen = np.minimum(form.left_mask, _warped(moved.right_mask, total, outside=0))
    seen_from_right = np.minimum(moved.right_mask, _warped(form.left_mask, np.linalg.inv(total), outside=0))
    covered = min(_covered_share(left_band, seen), _covered_share(_band(moved.right, *band), seen_from_right))
    return Aligned(form.left, _warped(moved.right, total), _softened(seen > 0.5)) if covered >= LEAST_COVERED else None


def _resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    return picture if picture.shape[:2] == (height, width) else cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def _pairs(left: list[np.ndarray], right: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Luma with luma, lightness with lightness; a grey picture is both."""
    return list(itertools.zip_longest(left, right, fillvalue=(left if len(left) == 1 else right)[0]))


def _flipped(picture: np.ndarray, code: int | None) -> np.ndarray:
    return picture if code is None else cv2.flip(picture, code)


def _best_flip(left: list[np.ndarray], right: list[np.ndarray]) -> Aligned:
    options = [(a, _flipped(b, code)) for a, b in _pairs(left, right) for code in FLIPS]
    scores = [float(cv2.matchTemplate(b - b.mean(), a - a.mean(), cv2.TM_CCOEFF_NORMED)[0, 0]) for a, b in options]
    best = options[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]
    return Aligned(*best, np.ones(best[0].shape, np.float32))


def _forms(left: list[np.ndarray], right: list[np.ndarray], left_border: tuple[float, ...], right_border: tuple[float, ...]) -> Iterator[_Form]:
    """Borders of equal width on both need no care: either both have them, or neither."""
    clean = np.ones(left[0].shape, np.float32)
    bordered = max(abs(a - b) for a, b in zip(left_border, right_border, strict=True)) > 0.5 / 64
    for a, b in _pairs(left, right):
        yield _Form(a, b, clean, clean)
        if not bordered:
            continue
        inner_a, inner_b = _inside(a, left_border), _inside(b, right_border)
        yield _Form(_covered(a, inner_a), _covered(b, inner_b), _mask(a, inner_a), _mask(b, inner_b))
        yield _Form(_resized_up(a[inner_a], clean), _resized_up(b[inner_b], clean), clean, clean)


def _inside(grey: np.ndarray, border: tuple[float, ...]) -> tuple[slice, slice]:
    height, width = grey.shape
    top, bottom, left, right = (int(np.ceil(part * side - 1e-6)) for part, side in zip(border, (height, height, width, width), strict=True))
    return slice(top, height - bottom), slice(left, width - right)


def _covered(grey: np.ndarray, inner: tuple[slice, slice]) -> np.ndarray:
    """The border replaced by the mirrored inside, so that no filter sees its edge."""
    (height, width), (rows, columns) = grey.shape, inner
    return cv2.copyMakeBorder(grey[inner], rows.start, height - rows.stop, columns.start, width - columns.stop, cv2.BORDER_REFLECT)


def _mask(grey: np.ndarray, inner: tuple[slice, slice]) -> np.ndarray:
    mask = np.zeros(grey.shape, np.float32)
    mask[inner] = 1
    return mask


def _resized_up(part: np.ndarray, like: np.ndarray) -> np.ndarray:
    return cv2.resize(part, like.shape[::-1], interpolation=cv2.INTER_LINEAR)


def _band(grey: np.ndarray, low: float, high: float) -> np.ndarray:
    narrow, wide = (cv2.GaussianBlur(grey, (0, 0), sigma, borderType=cv2.BORDER_REFLECT) for sigma in (low, high))
    return narrow - wide


def _best_form(forms: Iterator[_Form]) -> tuple[_Form, _Form] | None:
    """The form and, once more, with its right side flipped, whose middle half is most alike at half the size."""
    best, found = LEAST_RESEMBLANCE, None
    for form in forms:
        left, right = (_band(cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), *HALF_BAND) for grey in form[:2])
        (height, width), down, across = left.shape, max(1, round(left.shape[0] / 11)), max(1, round(left.shape[1] / 11))
        top, side = height // 4, width // 4
        middle = left[top : height - top, side : width - side]
        for code in FLIPS:
            wider = _flipped(right, code)[top - down : height - top + down, side - across : width - side + across]
            score = float(cv2.matchTemplate(wider, middle, cv2.TM_CCOEFF_NORMED).max())
            if score > best:
                best, found = score, (form, form._replace(right=_flipped(form.right, code), right_mask=_flipped(form.right_mask, code)))
    return found


def _patch_energy(band: np.ndarray) -> np.ndarray:
    height, width = (side // PATCHES * PATCHES for side in band.shape)
    blocks = (band[:height, :width] ** 2).reshape(PATCHES, height // PATCHES, PATCHES, width // PATCHES)
    return np.sqrt(blocks.mean(axis=(1, 3))).ravel()


def _displacements(left: np.ndarray, right: np.ndarray, down: int, across: int) -> np.ndarray:
    """(PATCHES * PATCHES, 5): each patch's centre x, y, its displacement in x and y to a fraction of a pixel, and the correlation there."""
    height, width = (side // PATCHES for side in left.shape)
    padded = cv2.copyMakeBorder(right, down, down, across, across, cv2.BORDER_REFLECT)
    rows = []
    for y, x in itertools.product(range(0, height * PATCHES, height), range(0, width * PATCHES, width)):
        wider = padded[y : y + height + 2 * down, x : x + width + 2 * across]
        scores = cv2.matchTemplate(wider, left[y : y + height, x : x + width], cv2.TM_CCOEFF_NORMED)
        _, score, _, (right_by, down_by) = cv2.minMaxLoc(scores)
        dx = right_by - across + _vertex(scores[down_by], right_by)
        dy = down_by - down + _vertex(scores[:, right_by], down_by)
        rows.append((x + width / 2 - 0.5, y + height / 2 - 0.5, dx, dy, score))
    return np.array(rows)


def _vertex(scores: np.ndarray, place: int) -> float:
    """Where the parabola through the maximum and its neighbours has its own, relative to it."""
    if not 0 < place < len(scores) - 1:
        return 0.0
    before, here, after = (float(score) for score in scores[place - 1 : place + 2])
    bend = before - 2 * here + after
    return 0.5 * (before - after) / bend if bend < -1e-6 else 0.0


def _affine(patches: np.ndarray, weight: np.ndarray, height: int, width: int, misfit: float) -> np.ndarray:
    """(3, 3) map from left to right pixels that fits most patches; a slight pull towards no movement where they say nothing."""
    arm = width / 4
    place = np.column_stack([patches[:, 0] - (width - 1) / 2, patches[:, 1] - (height - 1) / 2, np.full(len(patches), arm)])
    moved, trust = patches[:, 2:4], weight
    slope = np.zeros((3, 2))
    for _ in range(6):
        weighted = place.T * trust
        slope = np.linalg.solve(weighted @ place + 1e-3 * arm * arm * np.eye(3), weighted @ moved)
        residual = np.hypot(*(moved - place @ slope).T)
        trust = weight / (1 + (residual / misfit) ** 2)
    total = np.eye(3)
    total[:2, :2] += slope[:2].T
    total[:2, 2] = slope[2] * arm - slope[0] * (width - 1) / 2 - slope[1] * (height - 1) / 2
    return total


def _warped(grey: np.ndarray, total: np.ndarray, outside: int | None = None) -> np.ndarray:
    """`grey` seen through the map. Beyond its edge it is mirrored, or `outside`."""
    if outside is None and np.array_equal(total, np.eye(3)):
        return grey
    method, edge = (cv2.INTER_CUBIC, cv2.BORDER_REFLECT) if outside is None else (cv2.INTER_LINEAR, cv2.BORDER_CONSTANT)
    flags = method | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(grey, total[:2].astype(np.float32), grey.shape[::-1], flags=flags, borderMode=edge, borderValue=outside or 0)


def _covered_share(band: np.ndarray, seen: np.ndarray) -> float:
    """Share of a picture's structure, its outermost tenths left out, that lies over the other picture."""
    rows, columns = (slice(side // 10, side - side // 10) for side in band.shape)
    energy = band[rows, columns] ** 2
    return float(energy[seen[rows, columns] > 0.5].sum() / (energy.sum() + 1e-9))


def _softened(seen: np.ndarray) -> np.ndarray:
    """1 well inside, 0 outside, and a slope between them."""
    solid = seen.astype(np.float32)
    if seen.all():
        return solid
    step = 2 * max(1, min(seen.shape) // 16) + 1
    shrunk = cv2.erode(solid, np.ones((step, step), np.uint8), borderType=cv2.BORDER_CONSTANT, borderValue=1)
    return cv2.blur(shrunk, (step, step), borderType=cv2.BORDER_REPLICATE)
