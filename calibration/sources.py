"""Where rows come from: a Hugging Face `datasets` source on this machine's disk, read lazily and decoded in one way."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration.decode import decode_array, decode_picture
from pipeline.config import DataConfig
from pipeline.digests import sha256_arrays, sha256_file
from pipeline.errors import ConfigError, DataError
from pipeline.loading import load_object

LABEL = "label"
"""The name in `data.columns` that maps to the label's column, and is not given to preprocessing."""
Label = int | float | str | None
"""A class index where there are class names, else whatever scalar the column holds, or None without such a column."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoded row: `raw` by the names of `data.columns` (a picture is uint8 (H, W) or (H, W, 3), text a string array of rank 0).

    `digest` is the sha256 of the decoded content without the label, so equal pictures are found whatever their file format.
    """

    id: str
    raw: dict[str, np.ndarray]
    label: Label
    digest: str


@dataclasses.dataclass(frozen=True)
class Source:
    """An opened parquet source. `count` rows; ids are row numbers, zero-padded to seven digits."""

    path: Path
    sha256: str
    count: int
    class_names: tuple[str, ...]
    dataset: Any
    decoders: Mapping[str, Callable[[Any, str], np.ndarray]]
    columns: Mapping[str, str]
    label_of: Callable[[Any, str], Label] | None

    def rows(self, wanted: Collection[str] | None = None) -> Iterator[Row]:
        """Decode rows in source order, all or the `wanted` ids; memory does not grow with the number of rows.

        Raises DataError naming the row for a picture, value or label that cannot be read.
        """
        for index, cells in enumerate(self.dataset):
            row_id = f"{index:07d}"
            if wanted is not None and row_id not in wanted:
                continue
            raw = {
                name: decode(cells[self.columns[name]], f"row {row_id}, column {self.columns[name]}, {self.path}")
                for name, decode in self.decoders.items()
            }
            label = None
            if self.label_of is not None:
                label = self.label_of(cells[self.columns[LABEL]], f"row {row_id}, column {self.columns[LABEL]}, {self.path}")
            yield Row(row_id, raw, label, sha256_arrays(raw))


def load_class_names(reference: str, root: Path) -> tuple[str, ...]:
    """The model's own class names, in output order; raises ConfigError unless `reference` names distinct strings."""
    names = load_object(reference, root)
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ConfigError("The label names do not fit", where=reference, expected="a tuple of distinct strings", got=repr(names)[:120])
    return tuple(names)


def open_source(data: DataConfig, root: Path) -> Source:
    """Open the source that params.yaml declares; relative paths start at `root`. Raises as `open_parquet`."""
    return open_parquet(root / data.source.path, data.columns, load_class_names(data.labels, root) if data.labels else ())


def open_parquet(path: Path, columns: Mapping[str, str], class_names: Sequence[str]) -> Source:
    """Open one parquet file with the `datasets` library, offline; nothing is written outside a temporary folder.

    `columns` maps the names that preprocessing receives, and `label`, to columns. A picture is an `Image` column, a struct of `bytes`
    and `path`, or binary. A label is text, a ClassLabel (both looked up by name in `class_names`) or an integer index; without
    `class_names` it is any finite scalar, or there is no such column.
    Raises DataError for a missing, unreadable or empty file, an absent column, and class names that differ.
    """
    count = _row_count(path)
    dataset = _load(path)
    there = dict(dataset.features)
    for name, column in columns.items():
        if column not in there:
            raise DataError(
                "The source lacks a column",
                where=f"data.columns.{name} in params.yaml, source {path}",
                expected=f"one of {', '.join(sorted(there))}",
                got=column,
                next="correct data.columns in params.yaml",
            )
    decoders = {name: _decoder(there[column], path) for name, column in columns.items() if name != LABEL}
    if not decoders:
        raise DataError("No column is given to preprocessing", where="data.columns", expected="a name besides `label`", got=", ".join(columns))
    label_of: Callable[[Any, str], Label] | None = None
    if class_names:
        label_of = _label_reader(there[columns[LABEL]], tuple(class_names), path)
    elif LABEL in columns:
        label_of = _read_scalar
    return Source(path, sha256_file(path), count, tuple(class_names), _undecoded(dataset), decoders, dict(columns), label_of)


def _row_count(path: Path) -> int:
    import pyarrow  # type: ignore[import-untyped]  # comes with datasets
    import pyarrow.parquet  # type: ignore[import-untyped]

    if not path.is_file():
        raise DataError(
            "The data source is missing",
            where=str(path),
            expected="a parquet file",
            got="no file",
            next="run `dvc repro data`, or correct data.source.path",
        )
    try:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            count = int(parquet.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError("The data source cannot be read", where=str(path), expected="a complete parquet file", got=str(error)) from error
    if count == 0:
        raise DataError("The data source is empty", where=str(path), expected="at least one row", got="0 rows")
    return count


def _load(path: Path) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    import datasets

    with tempfile.TemporaryDirectory(prefix="qwarm-datasets-") as cache:
        return datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True, cache_dir=cache)


def _undecoded(dataset: Any) -> Any:
    import datasets

    for column, feature in dataset.features.items():
        if isinstance(feature, datasets.Image):
            dataset = dataset.cast_column(column, datasets.Image(decode=False))
    return dataset


def _decoder(feature: Any, path: Path) -> Callable[[Any, str], np.ndarray]:
    import datasets

    def picture(cell: Any, where: str) -> np.ndarray:
        content = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if content is None and isinstance(cell, Mapping) and cell.get("path"):
            with contextlib.suppress(OSError):
                content = (path.parent / cell["path"]).read_bytes()
        if content is None:
            raise DataError("A picture is missing", where=where, expected="picture bytes, or a path beside the source", got=repr(cell)[:120])
        return decode_picture(content, where)

    is_struct = isinstance(feature, Mapping) and set(feature) == {"bytes", "path"}
    if isinstance(feature, datasets.Image) or is_struct or (isinstance(feature, datasets.Value) and feature.dtype in {"binary", "large_binary"}):
        return picture
    dtype = _leaf_dtype(feature)
    return lambda cell, where: decode_array(cell, dtype, where)


def _leaf_dtype(feature: Any) -> np.dtype | None:
    while True:
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None:
            break
        feature = inner
    name = getattr(feature, "dtype", None)
    try:
        return None if name in {None, "string", "large_string"} else np.dtype(name)
    except TypeError:
        return None


def _read_scalar(cell: Any, where: str) -> Label:
    """A label without classes: a finite number or text."""
    if isinstance(cell, str) or (isinstance(cell, (int, float)) and math.isfinite(cell)):
        return cell
    raise DataError(
        "A label is no finite number and no text",
        where=where,
        expected="one scalar a row",
        got=repr(cell)[:120],
        next="correct the row; or take `label` out of data.columns, when your metric needs none",
    )


def _label_reader(feature: Any, class_names: tuple[str, ...], path: Path) -> Callable[[Any, str], int]:
    import datasets

    stored: tuple[str, ...] | None = None
    if isinstance(feature, datasets.ClassLabel):
        stored = tuple(feature.names)
        if unknown := sorted(set(stored) - set(class_names)):
            raise DataError(
                "The source has classes that the model does not",
                where=str(path),
                expected=f"class names of {', '.join(class_names)}",
                got=", ".join(unknown),
                next="make data.labels name every class, in the order of the model's outputs",
            )

    def read(cell: Any, where: str) -> int:
        if isinstance(cell, str):
            if cell in class_names:
                return class_names.index(cell)
        elif isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell < len(stored or class_names):
            return class_names.index(stored[cell]) if stored else cell
        raise DataError(
            "A label is outside the class names",
            where=where,
            expected=f"one of {', '.join(class_names)}, or an index 0 to {len(class_names) - 1}",
            got=repr(cell),
            next="correct the row, or make data.labels name every class",
        )

    return read
