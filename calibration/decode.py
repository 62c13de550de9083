"""The one declared way from a stored cell to the array that preprocessing sees."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.health import RowError

if TYPE_CHECKING:
    from PIL import Image

GREY_MODES = {"1": "L", "L": "L", "LA": "L"}
"""Pillow modes that decode to (H, W); an alpha channel is dropped."""
COLOUR_MODES = {"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"}
"""Pillow modes that decode to (H, W, 3), converted by Pillow to RGB."""
SIXTEEN_BIT_MODES = {"I;16", "I;16L", "I;16B", "I;16N"}
"""Grey with 16 bits: scaled by 255 / 65535, never saturated."""
MAX_PIXELS = 100_000_000
ORIENTATION, BITS_PER_SAMPLE = 0x0112, 0x0102
"""Tags of EXIF 2.32 and TIFF 6.0."""
REPAIR = "repair or remove this row in the source, then run `dvc repro`; or set data.health.undecodable: quarantine to leave such rows out"


def decode_picture(content: bytes, where: str, *, name: str = "", max_pixels: int = MAX_PIXELS) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encoded picture bytes to uint8 (H, W) for grey or (H, W, 3) for colour, turned upright as its EXIF says; and what was unusual.

    The format is read from the bytes, never from a file name; `name`, where there is one, is only compared with it. The notes are keys of
    `data.health`. Raises RowError naming `where` for bytes that are no complete picture, pixel formats without a declared way (32-bit integer
    and floating point), and more than `max_pixels`, which are not decoded.
    """
    from PIL import Image, ImageOps

    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow's own guard warns from here on, and raises at twice as many
    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.width * picture.height > max_pixels:
                raise _too_large(f"{picture.width} x {picture.height} = {picture.width * picture.height} pixels", max_pixels, where)
            frames = getattr(picture, "n_frames", 1)  # before load: counting seeks
            picture.load()
            notes = tuple(_notes(picture, frames, content, name))
            upright = ImageOps.exif_transpose(picture) if "exif_rotation" in notes else picture
            return _to_array(upright, where), notes
    except RowError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(str(error), max_pixels, where) from error
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, struct.error and more on damaged files
        raise RowError(
            "undecodable",
            "A picture cannot be decoded",
            where=where,
            expected="a complete picture in a format Pillow reads",
            got=f"{len(content)} bytes beginning {content[:8]!r}: {error}",
            next=REPAIR,
        ) from error


def _too_large(got: str, max_pixels: int, where: str) -> RowError:
    return RowError(
        "too_large",
        "A picture is too large to decode",
        where=where,
        expected=f"at most {max_pixels} pixels",
        got=got,
        next="make it smaller, raise data.max_pixels, or set data.health.too_large: quarantine",
    )


def _notes(picture: Image.Image, frames: int, content: bytes, name: str) -> Iterator[str]:
    """Kinds of `data.health` that this picture shows, in the order of that list."""
    if picture.getexif().get(ORIENTATION, 1) in range(2, 9):
        yield "exif_rotation"
    if picture.mode in GREY_MODES or picture.mode in SIXTEEN_BIT_MODES:
        yield "greyscale"
    if picture.mode == "CMYK":
        yield "cmyk"
    if picture.mode in {"P", "PA"}:
        yield "palette"
    if picture.mode in {"RGBA", "LA", "PA"} or "transparency" in picture.info:
        yield "alpha"
    if picture.mode in SIXTEEN_BIT_MODES or _is_deep(picture, content):
        yield "sixteen_bit"
    if frames > 1:
        yield "several_frames"
    if _is_misnamed(picture, name):
        yield "misnamed"


def _is_deep(picture: Image.Image, content: bytes) -> bool:
    """Colour with 16 bits a channel, of which Pillow keeps the upper eight."""
    if picture.format == "PNG":
        return content[24] == 16  # the bit depth in IHDR, the first chunk (PNG specification, 11.2.2)
    return picture.format == "TIFF" and max(picture.tag_v2.get(BITS_PER_SAMPLE, (8,))) == 16  # type: ignore[attr-defined]


def _is_misnamed(picture: Image.Image, name: str) -> bool:
    from PIL import Image

    suffix = f".{name.rpartition('.')[2].lower()}" if "." in name else ""
    named = Image.registered_extensions().get(suffix)
    same = {"MPO": "JPEG", "JPEG2000": "JPEG2000", "DIB": "BMP"}  # an MPO is a JPEG with further pictures behind it
    return named is not None and same.get(named, named) != same.get(str(picture.format), picture.format)


def _to_array(picture: Image.Image, where: str) -> np.ndarray:
    if picture.mode in GREY_MODES:
        return np.array(picture.convert("L"), dtype=np.uint8)
    if picture.mode in COLOUR_MODES:
        return np.array(picture.convert("RGB"), dtype=np.uint8)
    if picture.mode in SIXTEEN_BIT_MODES:
        return np.rint(np.asarray(picture, dtype=np.float64) * (255.0 / 65535.0)).astype(np.uint8)
    raise RowError(
        "undecodable",
        "A picture has a pixel format without a declared way to 8 bits",
        where=where,
        expected=f"a mode of {sorted({*GREY_MODES, *COLOUR_MODES, *SIXTEEN_BIT_MODES})}",
        got=f"mode {picture.mode}",
        next="store it with 8 or 16 bits a channel, or as an array column",
    )


def decode_array(value: Any, dtype: np.dtype | None, where: str) -> np.ndarray:
    """A scalar, array or nested list to an array of its own of `dtype` (numpy's choice when None).

    Raises RowError naming `where` for a missing value, ragged lists, and values that the dtype cannot hold.
    """
    if value is None:
        raise RowError("missing_value", "A value is missing", where=where, expected="a value in each row", got="null", next="fill or remove this row")
    try:
        array = np.array(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        kind = "wrong_shape" if "inhomogeneous" in str(error) or "sequence" in str(error) else "wrong_type"
        raise RowError(
            kind, "A value cannot become an array", where=where, expected=f"a full array of {dtype or 'numbers'}", got=str(error)
        ) from error
    if array.dtype.kind not in "biufU":
        raise RowError("wrong_type", "A value cannot become an array", where=where, expected="numbers or text", got=f"{type(value).__name__}")
    return array
