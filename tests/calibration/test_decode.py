"""One declared decode path: what each kind of picture becomes, and what is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from calibration.decode import decode_array, decode_picture
from pipeline.errors import DataError

GRADIENT = np.arange(48, dtype=np.uint8).reshape(6, 8)


def encode(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format=format, **options)
    return stream.getvalue()


def test_grey_stays_two_dimensional() -> None:
    assert np.array_equal(decode_picture(encode(Image.fromarray(GRADIENT)), "row 0")[0], GRADIENT)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_colour_becomes_rgb(mode: str) -> None:
    picture = Image.new("RGB", (8, 6), (200, 30, 90)).convert(mode)
    decoded, _ = decode_picture(encode(picture, "TIFF" if mode == "CMYK" else "PNG"), "row 0")
    assert decoded.shape == (6, 8, 3)
    assert decoded.dtype == np.uint8
    assert np.abs(decoded[0, 0].astype(int) - [200, 30, 90]).max() <= 26  # the web palette of mode P has steps of 51


def test_sixteen_bits_are_scaled_not_saturated() -> None:
    levels = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    assert decode_picture(encode(Image.fromarray(levels)), "row 0")[0].tolist() == [[0, 1, 128, 255]]


def test_exif_turns_the_picture_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by 90 degrees
    decoded, _ = decode_picture(encode(Image.fromarray(GRADIENT), exif=exif), "row 0")
    assert np.array_equal(decoded, np.rot90(GRADIENT, -1))


@pytest.mark.parametrize("content", [b"", b"<html></html>", encode(Image.fromarray(GRADIENT))[:50]], ids=["empty", "web page", "truncated"])
def test_what_is_no_complete_picture_is_refused_by_row(content: bytes) -> None:
    with pytest.raises(DataError, match="row 0000007"):
        decode_picture(content, "row 0000007")


def test_floating_point_pictures_have_no_declared_way() -> None:
    with pytest.raises(DataError, match="mode F"):
        decode_picture(encode(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF"), "row 1")


@pytest.mark.parametrize("value", [None, [[1.0], [2.0, 3.0]], {"a": 1}])
def test_values_that_are_no_arrays(value: object) -> None:
    with pytest.raises(DataError, match="row 3"):
        decode_array(value, np.dtype("float32"), "row 3")


def test_arrays_keep_the_declared_dtype() -> None:
    assert decode_array([[1, 2], [3, 4]], np.dtype("float32"), "row 0").dtype == np.float32
