"""From one raw 8x8 picture to what the model takes. Shipped in the bundle: Python and numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SIDE, ENLARGED = 8, 32
LUMA = np.array([0.299, 0.587, 0.114])
"""ITU-R BT.601 weights of red, green and blue."""


def _interpolation() -> np.ndarray:
    """(32, 8) matrix of bilinear weights with half-pixel centres and clamped edges."""
    centres = np.clip((np.arange(ENLARGED) + 0.5) * SIDE / ENLARGED - 0.5, 0, SIDE - 1)
    left = np.minimum(np.floor(centres).astype(int), SIDE - 2)
    weights = np.zeros((ENLARGED, SIDE))
    rows = np.arange(ENLARGED)
    weights[rows, left] = 1 - (centres - left)
    weights[rows, left + 1] = centres - left
    return weights


WEIGHTS = _interpolation()


def prepare(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Turn `{"image": uint8 (8, 8), (8, 8, 1) or (8, 8, 3)}` into `{"image": float32 (1, 32, 32)}` in [-1, 1].

    Grey is kept, colour becomes BT.601 luma. The weights are multiples of 1/8, so the result does not depend on the
    order in which a processor adds. Raises ValueError for another shape or dtype.
    """
    if "image" not in raw:
        raise ValueError(f"prepare needs 'image': got {sorted(raw)}")
    picture = np.asarray(raw["image"])
    if picture.dtype != np.uint8 or picture.shape not in {(SIDE, SIDE), (SIDE, SIDE, 1), (SIDE, SIDE, 3)}:
        raise ValueError(f"image must be uint8 of shape (8, 8), (8, 8, 1) or (8, 8, 3): got {picture.dtype} {picture.shape}")
    if picture.ndim == 3:
        picture = np.rint(picture @ LUMA) if picture.shape[2] == 3 else picture[..., 0]
    enlarged = WEIGHTS @ picture.astype(np.float64) @ WEIGHTS.T
    return {"image": (enlarged / 127.5 - 1)[np.newaxis].astype(np.float32)}
