"""The one declared way from a stored cell to the array that preprocessing sees."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

GREY_MODES = {"1": "L", "L": "L", "LA": "L"}
"""Pillow modes that decode to (H, W); an alpha channel is dropped."""
COLOUR_MODES = {"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"}
"""Pillow modes that decode to (H, W, 3), converted by Pillow to RGB."""
SIXTEEN_BIT_MODES = {"I;16", "I;16L", "I;16B", "I;16N"}
"""Grey with 16 bits: scaled by 255 / 65535, never saturated."""


def decode_picture(content: bytes, where: str) -> np.ndarray:
    """Encoded picture bytes to uint8 (H, W) for grey or (H, W, 3) for colour, turned upright as its EXIF says.

    The format is read from the bytes, never from a file name. Raises DataError naming `where` for bytes that are no
    complete picture, and for pixel formats without a declared way (32-bit integer and floating point).
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            upright = ImageOps.exif_transpose(picture)
            return _to_array(upright, where)
    except DataError:
        raise
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, struct.error and more on damaged files
        raise DataError(
            "A picture cannot be decoded",
            where=where,
            expected="a complete picture in a format Pillow reads",
            got=f"{len(content)} bytes beginning {content[:8]!r}: {error}",
            next="repair or remove this row in the source, then run `dvc repro`",
        ) from error


def _to_array(picture: Image.Image, where: str) -> np.ndarray:
    if picture.mode in GREY_MODES:
        return np.asarray(picture.convert("L"), dtype=np.uint8)
    if picture.mode in COLOUR_MODES:
        return np.asarray(picture.convert("RGB"), dtype=np.uint8)
    if picture.mode in SIXTEEN_BIT_MODES:
        return np.rint(np.asarray(picture, dtype=np.float64) * (255.0 / 65535.0)).astype(np.uint8)
    raise DataError(
        "A picture has a pixel format without a declared way to 8 bits",
        where=where,
        expected=f"a mode of {sorted({*GREY_MODES, *COLOUR_MODES, *SIXTEEN_BIT_MODES})}",
        got=f"mode {picture.mode}",
        next="store it with 8 or 16 bits a channel, or as an array column",
    )


def decode_array(value: Any, dtype: np.dtype | None, where: str) -> np.ndarray:
    """A scalar or nested list to an array of `dtype` (numpy's choice when None).

    Raises DataError naming `where` for a missing value, ragged lists, and values that the dtype cannot hold.
    """
    try:
        if value is None:
            raise ValueError("no value")
        array = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError("A value cannot become an array", where=where, expected=f"a full array of {dtype or 'numbers'}", got=str(error)) from error
    if array.dtype == object:
        raise DataError("A value cannot become an array", where=where, expected="numbers or text", got=type(value).__name__)
    return array
