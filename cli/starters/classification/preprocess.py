"""From one raw row to what the model takes. Shipped in the bundle and run by the host: Python and numpy only, one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SIDE = 32
MEAN, DEVIATION = 0.5, 0.25  # EDIT: as in training


def weights(have: int, want: int) -> np.ndarray:
    """(want, have) matrix of bilinear weights: half-pixel centres, clamped edges, widened when it shrinks so that nothing is skipped."""
    support = max(1.0, have / want)
    centres = (np.arange(want) + 0.5) * have / want - 0.5
    matrix = np.maximum(0.0, 1 - np.abs(np.arange(have)[None, :] - np.clip(centres, 0, have - 1)[:, None]) / support)
    return matrix / matrix.sum(axis=1, keepdims=True)


def prepare(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """EDIT: `{"image": uint8 (H, W) or (H, W, 3)}` of any size to `image` (3, 32, 32) float32. The names of `raw` are those of data.columns."""
    picture = np.asarray(raw["image"])
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise ValueError(f"image must be uint8 (H, W) or (H, W, 3): got {picture.dtype} {picture.shape}")
    colours = np.repeat(picture[:, :, None], 3, axis=2) if picture.ndim == 2 else picture[:, :, :3]
    height, width = colours.shape[:2]
    planes = np.ascontiguousarray(colours.transpose(2, 0, 1), dtype=np.float64)
    scaled = weights(height, SIDE) @ planes @ weights(width, SIDE).T
    return {"image": ((scaled / 255 - MEAN) / DEVIATION).astype(np.float32)}
