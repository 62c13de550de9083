"""A raw row as a person sees it: pictures as PNG, everything else as text."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import numpy as np

SIDE = 96
"""Pixels of a shown picture's longer side."""
TEXT = 400
"""Characters of a shown text."""


def shown(raw: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """`pictures`: base64 of PNG files; `texts`: "name: value". A picture is uint8 (H, W) or (H, W, 3)."""
    pictures, texts = [], []
    for name, value in raw.items():
        if value.dtype == np.uint8 and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)) and min(value.shape[:2]) > 1:
            pictures.append(base64.b64encode(png(value)).decode())
        else:
            text = str(value) if value.ndim == 0 else np.array2string(value, threshold=16, precision=4)
            texts.append(f"{name}: {text}"[:TEXT])
    return {"pictures": pictures, "texts": texts}


def png(picture: np.ndarray) -> bytes:
    """A PNG file, its longer side `SIDE` pixels; small pictures are enlarged in whole pixels."""
    from PIL import Image

    image = Image.fromarray(picture)
    scale = SIDE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    stream = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS).save(stream, format="PNG")
    return stream.getvalue()
