"""Named arrays with a shared first axis in .npz files: read a few rows at a time, never unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from calibration.sources.cells import Cells
from calibration.sources.files import Files
from calibration.sources.loading import empty, missing_column, unreadable
from calibration.sources.source import Table
from pipeline.errors import DataError

BATCH_BYTES = 1 << 22


def open_arrays(files: Files, wanted: Collection[str] | None) -> Table:
    """Each array is a column. Memory holds some rows, except for arrays in Fortran order, which are read whole.

    Raises DataError for a torn file, an absent array, arrays of objects, and arrays of unequal first axes.
    """
    import datasets

    features: dict[str, datasets.Value] = {}
    counts = []
    columns = sorted(_headers(files.paths[0]) if wanted is None else wanted)
    for path in files.paths:
        headers = _headers(path)
        if lacking := sorted(set(columns) - set(headers)):
            raise missing_column(lacking[0], headers, str(path))
        lengths = {name: headers[name][0][0] if headers[name][0] else None for name in columns}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            got = ", ".join(f"{name} {list(headers[name][0])}" for name in columns)
            raise DataError("Arrays have no shared first axis", where=str(path), expected="one number of rows in all columns", got=got)
        for name in columns:
            shape, _, dtype = headers[name]
            features[name] = _feature(name, shape[1:], dtype, path)
        counts.append(next(iter(lengths.values())) or 0)
    if not sum(counts):
        raise empty(str(files.root))

    def batches() -> Iterator[tuple[list[str], Mapping[str, Cells]]]:
        for path in files.paths:
            first = 0
            for arrays in _chunks(path, columns):
                length = len(next(iter(arrays.values())))
                yield (
                    [f"{files.prefix(path)}{first + index:07d}" for index in range(length)],
                    {name: array.__getitem__ for name, array in arrays.items()},
                )
                first += length

    return Table(features, sum(counts), batches)


Header = tuple[tuple[int, ...], bool, np.dtype]
"""Shape, whether it is in Fortran order, and dtype."""


def _headers(path: Path) -> dict[str, Header]:
    try:
        with zipfile.ZipFile(path) as archive:
            found = {}
            for name in archive.namelist():
                with archive.open(name) as stream:
                    found[name.removesuffix(".npy")] = _header(stream)
            return found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(str(path), "npz", error) from error


def _header(stream: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, bool(fortran), dtype


def _feature(name: str, shape: tuple[int, ...], dtype: np.dtype, path: Path) -> object:
    """The array's type in the words of `datasets`, as for the other kinds of source."""
    import datasets

    if dtype.kind not in "biufU":
        raise DataError(
            "An array holds neither numbers nor text",
            where=f"array {name}, {path}",
            expected="a dtype of booleans, integers, floats or text",
            got="Python objects, which are not unpickled" if dtype.hasobject else str(dtype),
            next="save it again with such a dtype",
        )
    feature = datasets.Value("string" if dtype.kind == "U" else dtype.name)
    for _ in shape:
        feature = datasets.List(feature)
    return feature


def _chunks(path: Path, names: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """Some rows of all arrays at a time, read from the archive front to back."""
    with zipfile.ZipFile(path) as archive:
        stored = set(archive.namelist())
        streams = {name: archive.open(f"{name}.npy" if f"{name}.npy" in stored else name) for name in names}
        headers = {name: _header(stream) for name, stream in streams.items()}
        total = headers[names[0]][0][0]
        widths = {name: int(np.prod(shape[1:], dtype=np.int64)) for name, (shape, _, _) in headers.items()}
        step = max(1, BATCH_BYTES // max(1, sum(widths[name] * headers[name][2].itemsize for name in names)))
        whole = {}
        for name, (shape, fortran, dtype) in headers.items():
            if fortran and len(shape) > 1:
                whole[name] = np.frombuffer(streams[name].read(), dtype).reshape(shape, order="F")
        for first in range(0, total, step):
            rows = min(step, total - first)
            arrays = {}
            for name, (shape, _, dtype) in headers.items():
                if name in whole:
                    arrays[name] = whole[name][first : first + rows]
                else:
                    arrays[name] = np.frombuffer(streams[name].read(rows * widths[name] * dtype.itemsize), dtype).reshape(rows, *shape[1:])
            yield arrays
        for stream in streams.values():
            stream.close()
