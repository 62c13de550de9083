"""What the openers share: loaders of the `datasets` library over local files, and how their faults and types are worded."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from pipeline.errors import DataError

BATCH_ROWS = 128
"""Rows that are held at a time, where the file's own batches allow it."""
LOADERS = {"arrow": "Arrow", "csv": "Csv", "json": "Json", "imagefolder": "ImageFolder", "webdataset": "WebDataset"}


def stream(kind: str, paths: list[Path], **options: Any) -> Any:
    """An `IterableDataset` over exactly these local files: nothing is looked up, downloaded or counted on a network, or written anywhere."""
    from datasets.data_files import DataFilesDict, DataFilesList

    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # they log what they raise
    loader = getattr(importlib.import_module(f"datasets.packaged_modules.{kind}.{kind}"), LOADERS[kind])
    files = DataFilesList([str(path.absolute()) for path in paths], [("",)] * len(paths))
    with tempfile.TemporaryDirectory(prefix="qwarm-datasets-") as cache:
        return loader(cache_dir=cache, data_files=DataFilesDict({"train": files}), **options).as_streaming_dataset(split="train")


def unify(*schemas: pa.Schema) -> pa.Schema:
    """The types that hold the values of all schemas; integers and floats become floats. Raises ArrowException where there are none."""
    return pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")


def unreadable(where: str, kind: str, error: Exception) -> DataError:
    return DataError(
        "The data source cannot be read",
        where=where,
        expected=f"complete files of kind {kind}",
        got=f"{type(error).__name__}: {error}",
        next="repair or remove the file, or correct data.source",
    )


def missing_column(column: str, there: Collection[str], where: str) -> DataError:
    return DataError(
        "The source lacks a column",
        where=where,
        expected=f"one of {', '.join(sorted(there))}",
        got=column,
        next="correct data.columns, data.id or data.group in params.yaml",
    )


def empty(where: str, expected: str = "at least one row") -> DataError:
    return DataError("The data source is empty", where=where, expected=expected, got="0 rows")
