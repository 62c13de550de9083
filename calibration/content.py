"""The digest of a row's content by value: equal whatever file format, dtype or column order it was stored in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

EXACT = 2.0**53
"""Beyond it float64 skips integers."""
INT64_MAX = np.iinfo(np.int64).max


def content_digest(raw: Mapping[str, np.ndarray]) -> str:
    """Hex sha256 over named arrays: names, shapes and values in `canonical` form; the order of names does not matter."""
    digest = hashlib.sha256()
    for name in sorted(raw):
        array = raw[name]
        if array.dtype.kind == "U":
            texts = [text.encode("utf-8", "surrogatepass") for text in array.ravel().tolist()]
            digest.update(f"{name}\0text\0{array.shape}\0{[len(text) for text in texts]}\0".encode())
            digest.update(b"".join(texts))
        else:
            array = canonical(array)
            digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(array.tobytes(order="C"))
    return digest.hexdigest()


def canonical(array: np.ndarray) -> np.ndarray:
    """Equal numbers to equal bytes: uint8 or int64 where all are integers (booleans and whole floats are), else float32 with one NaN and one zero.

    A picture in colour (H, W, 3) uint8 whose channels agree is the grey picture (H, W): lossless formats differ in what they keep.
    Raises TypeError for what is no number.
    """
    if array.dtype.kind == "f":
        array = _whole(array)
        if array.dtype.kind == "f":
            return array
    if array.dtype == np.uint8:
        return array[..., 0] if _grey(array) else array
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{array.dtype} holds no numbers")
    if array.size == 0:
        return array.astype(np.uint8)
    low, high = array.min(), array.max()
    if low >= 0 and high <= 255:
        array = array.astype(np.uint8)
        return array[..., 0] if _grey(array) else array
    return array.astype("<u8" if high > INT64_MAX else "<i8")


def _whole(array: np.ndarray) -> np.ndarray:
    """int64 where every float is an integer, before or after rounding to float32; else float32."""
    with np.errstate(over="ignore"):
        rounded = array.astype("<f4")
    for floats in (array, rounded) if array.dtype.itemsize > 4 else (rounded,):
        first = floats.flat[0] if floats.size else 0.0
        if np.rint(first) == first and bool((np.rint(floats) == floats).all()) and bool((np.abs(floats) <= EXACT).all()):
            return floats.astype("<i8")
    rounded += np.float32(0)  # minus zero becomes zero
    rounded[np.isnan(rounded)] = np.nan
    return rounded


def _grey(array: np.ndarray) -> bool:
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        return False
    corner = array[0, 0]
    if corner[0] != corner[1] or corner[1] != corner[2]:
        return False
    return bool((array[..., 0] == array[..., 1]).all() and (array[..., 1] == array[..., 2]).all())
