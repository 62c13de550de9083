"""The example's data source: scikit-learn's handwritten digits as one parquet file, as a user's own data would come.

1797 scans of 8x8 pixels by 43 writers (E. Alpaydin and C. Kaynak, UCI "Optical Recognition of Handwritten Digits", 1998).
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from pipeline.files import replacing

LEVELS = 16
"""The scans hold 0 to 16; stored as round(level * 255 / 16), which round(pixel * 16 / 255) undoes exactly."""


def to_pixels(scan: np.ndarray) -> np.ndarray:
    """Levels 0..16 of any shape to uint8 0..255."""
    return np.rint(np.asarray(scan) * 255.0 / LEVELS).astype(np.uint8)


def to_png(pixels: np.ndarray) -> bytes:
    """A grey (H, W) uint8 picture as PNG bytes."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", optimize=False)
    return stream.getvalue()


def write(path: Path) -> None:
    """Write the columns `image` (Image, PNG) and `label` (ClassLabel "0" to "9") to `path`: equal bytes on each run.

    The class names travel in the file, so a model whose names are in another order is found out. Raises DiskFullError.
    """
    from datasets import ClassLabel, Dataset, Features, Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = Features({"image": Image(), "label": ClassLabel(names=[str(name) for name in digits.target_names])})
    pictures = [{"bytes": to_png(to_pixels(scan)), "path": None} for scan in digits.images]
    dataset = Dataset.from_dict({"image": pictures, "label": digits.target.tolist()}, features=features)
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        dataset.to_parquet(stream)
