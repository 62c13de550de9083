"""From a column of a source to the cells of its rows, and how each kind of column is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from calibration.decode import MAX_PIXELS, decode_array, decode_picture
from calibration.health import RowError
from pipeline.errors import DataError

Cells = Callable[[int], Any]
"""The cell of a row, by its number in a batch: an array or scalar, text, a picture's bytes and path, or None."""
Decoder = Callable[[Any, str], tuple[np.ndarray, tuple[str, ...]]]
"""A cell, and where it is, to the array that preprocessing sees and the anomalies that were met (keys of `data.health`)."""


def cells_of(column: pa.ChunkedArray | pa.Array) -> Cells:
    """Access to the cells of an Arrow column. Lists become arrays; a ragged list or a hole in one raises RowError when that cell is read."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count == 0 and (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        numbers = array.to_numpy()
        return lambda index: numbers[index]
    if _is_list(array.type):
        return lambda index: _nested(scalar.values) if (scalar := array[index]).is_valid else None
    return lambda index: array[index].as_py()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _nested(values: pa.Array) -> np.ndarray:
    """Rows of equal length to one array: (n,) of numbers or text, (n, m) of lists of m, and so on."""
    if values.null_count:
        raise RowError(
            "missing_value", "A value is missing inside an array", expected="full arrays", got=f"{values.null_count} of {len(values)} are null"
        )
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if not _is_list(values.type):
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
            return np.array(values.to_pylist(), dtype=str)
        return np.array(values.to_numpy(zero_copy_only=False))
    if not len(values):
        return np.zeros(0)
    lengths = [values.type.list_size] if pa.types.is_fixed_size_list(values.type) else sorted(set(values.value_lengths().to_pylist()))
    if len(lengths) > 1:
        raise RowError("wrong_shape", "An array is ragged", expected="lists of one length", got=f"lengths {lengths[0]} to {lengths[-1]}")
    inner = _nested(values.flatten())
    return inner.reshape(len(values), lengths[0], *inner.shape[1:])


def kind_of(feature: Any) -> str:
    """`picture`, `text` or `numbers`; else the name of a type that has no declared way to an array."""
    import datasets

    if isinstance(feature, datasets.Image) or (isinstance(feature, Mapping) and set(feature) == {"bytes", "path"}):
        return "picture"
    dtype = str(getattr(_leaf(feature), "dtype", None))
    if dtype in {"binary", "large_binary"} and isinstance(feature, datasets.Value):
        return "picture"
    if dtype in {"string", "large_string", "string_view"}:
        return "text"
    number = isinstance(feature, datasets.ClassLabel) or dtype.startswith(("int", "uint", "float", "bool", "null"))
    return "numbers" if number else f"{type(_leaf(feature)).__name__}({dtype})"


def _leaf(feature: Any) -> Any:
    while True:
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None:
            return feature
        feature = inner


def is_list(feature: Any) -> bool:
    """Whether a cell holds several values."""
    return _leaf(feature) is not feature or hasattr(feature, "shape")


def decoder(feature: Any, where: str, folder: Path, max_pixels: int = MAX_PIXELS) -> Decoder:
    """How the cells of a column are decoded. A picture that is stored as a path is read from `folder` (absolute), and from nowhere above it.

    Raises DataError for a type without a declared way to an array.
    """
    kind = kind_of(feature)
    if kind == "picture":
        return lambda cell, at: _picture(cell, at, folder, max_pixels)
    if kind not in {"text", "numbers"}:
        raise DataError(
            "A column has a type without a declared way to an array",
            where=where,
            expected="pictures, numbers, text, or lists of numbers or text",
            got=kind,
            next="map another column in data.columns, or store this one as one of these",
        )
    dtype = None if kind == "text" else _dtype(_leaf(feature))
    return lambda cell, at: (decode_array(cell, dtype, at), ())


def _dtype(feature: Any) -> np.dtype | None:
    try:
        return np.dtype(feature.dtype)
    except (AttributeError, TypeError):
        return None


def _read_beside(name: str, folder: Path, where: str) -> bytes:
    """A picture that a row names by its path. Links inside the folder are followed; `..` out of it is not."""
    root = os.path.normpath(folder)
    path = os.path.normpath(folder / name)
    if not name or os.path.commonpath([root, path]) != root:
        raise RowError(
            "missing_value",
            "A picture is missing",
            where=where,
            expected="picture bytes, or a path beside the source",
            got=name or "null",
            next="add the picture, or remove this row",
        )
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise RowError(
            "undecodable", "A picture cannot be read", where=where, expected="a readable file", got=str(error), next="add or remove the file"
        ) from error


def _picture(cell: Any, where: str, folder: Path, max_pixels: int) -> tuple[np.ndarray, tuple[str, ...]]:
    stored = cell if isinstance(cell, Mapping) else {"bytes": cell, "path": None}
    content, name = stored.get("bytes"), stored.get("path") or ""
    if content is None:
        content = _read_beside(name, folder, where)
    return decode_picture(content, where, name=name, max_pixels=max_pixels)
