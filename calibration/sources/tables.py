"""Tables: parquet, Arrow, CSV and JSON files, by the loaders of the `datasets` library, streamed one file after another."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from calibration.sources.cells import Cells, cells_of
from calibration.sources.files import Files
from calibration.sources.source import Table
from pipeline.errors import DataError

BATCH_ROWS = 128
"""Rows that are held at a time, where the file's own batches allow it."""
SCAN_ROWS = 1000
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "na_values": ["", "nan", "NaN"], "float_precision": "round_trip"}
"""Only an empty cell and NaN are missing: "NA" or "null" may well be a class."""
SETTINGS: dict[str, dict[str, Any]] = {"parquet": {"batch_size": BATCH_ROWS}, "csv": CSV_OPTIONS}
BY_COLUMN = {"parquet": "columns", "csv": "usecols"}
"""Loaders that can read some columns alone, and the option that names these."""


def builder(module: str, paths: list[Path], **options: Any) -> Any:
    """A loader of the `datasets` library over exactly these local files: nothing is looked up, downloaded or counted on a network."""
    import importlib

    from datasets.data_files import DataFilesDict, DataFilesList

    names = {"parquet": "Parquet", "arrow": "Arrow", "csv": "Csv", "json": "Json", "imagefolder": "ImageFolder", "webdataset": "WebDataset"}
    made = getattr(importlib.import_module(f"datasets.packaged_modules.{module}.{module}"), names[module])
    files = [str(path.absolute()) for path in paths]
    with tempfile.TemporaryDirectory(prefix="qwarm-datasets-") as cache:
        return made(cache_dir=cache, data_files=DataFilesDict({"train": DataFilesList(files, [("",)] * len(files))}), **options)


def open_table(
    kind: str, files: Files, wanted: Collection[str] | None, *, text: Collection[str] = (), options: Mapping[str, Any] | None = None
) -> Table:
    """Files of one kind as one table, streamed.

    Of parquet and CSV, only the `wanted` columns are read (None: all); the columns `text` of a CSV are read as text ("007" stays so).
    Columns may stand in any order, and in another one in each file. Raises DataError for a file that is missing, torn, empty, or has columns
    whose types or class names differ from those of the other files; and for ragged lines (CSV) and what is no list of rows (JSON).
    """
    where = str(files.root)
    try:
        schemas, counts = zip(*(SCANS[kind](path, dict(options or {}), text) for path in files.paths), strict=True)
        if not sum(counts):
            raise DataError("The data source is empty", where=where, expected="at least one row", got="0 rows")
        columns = list(schemas[0].names if wanted is None else wanted)
        features = _shared_features(schemas, files, columns, kind)
        settings = {"features": features, **SETTINGS.get(kind, {}), **(options or {})}
        if kind in BY_COLUMN:
            settings[BY_COLUMN[kind]] = list(features)
        dataset = builder(kind, list(files.paths), **settings).as_streaming_dataset(split="train")
    except DataError:
        raise
    except Exception as error:  # ArrowInvalid, OSError, UnicodeDecodeError, ParserError and more
        raise unreadable(where, kind, error) from error

    def batches() -> Iterator[tuple[list[str], Mapping[str, Cells]]]:
        for number, path in enumerate(files.paths):
            one, first = dataset.shard(num_shards=len(files.paths), index=number), 0
            for batch in one.with_format("arrow").iter(batch_size=BATCH_ROWS):
                ids = [f"{files.prefix(path)}{first + index:07d}" for index in range(len(batch))]
                yield ids, {column: cells_of(batch[column]) for column in columns}
                first += len(batch)

    return Table(features, sum(counts), batches)


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


def _shared_features(schemas: tuple[pa.Schema, ...], files: Files, columns: Collection[str], kind: str) -> Any:
    """What all files agree on: the types of `columns`, or of all columns where the loader reads no fewer."""
    import datasets

    shared: dict[str, Any] = {}
    for schema, path in zip(schemas, files.paths, strict=True):
        if lacking := sorted(set(columns) - set(schema.names)):
            raise missing_column(lacking[0], schema.names, str(path))
        chosen = [field for field in schema if kind not in BY_COLUMN or field.name in columns]
        for name, feature in datasets.Features.from_arrow_schema(pa.schema(chosen, metadata=schema.metadata)).items():
            if shared.setdefault(name, feature) != feature:
                shared[name] = _common(shared[name], feature, f"column {name}, {path}")
    return datasets.Features(shared)


def _common(left: Any, right: Any, where: str) -> Any:
    import datasets

    if not any(isinstance(feature, (datasets.ClassLabel, datasets.Image)) for feature in (left, right)):
        try:
            return datasets.Features.from_arrow_schema(unify(*(datasets.Features({"x": feature}).arrow_schema for feature in (left, right))))["x"]
        except pa.ArrowException:
            pass
    raise DataError(
        "The files of a source disagree about a column",
        where=where,
        expected=str(left),
        got=str(right),
        next="write the files again with one type, and class labels with the same names in the same order",
    )


def unify(*schemas: pa.Schema) -> pa.Schema:
    """The types that hold the values of all schemas; integers and floats become floats. Raises ArrowException where there are none."""
    return pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")


def _scan_parquet(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:

    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(path) as parquet:
        return parquet.schema_arrow, int(parquet.metadata.num_rows)


def _scan_arrow(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:
    with pa.memory_map(str(path)) as stream:
        try:
            reader = pa.ipc.open_file(stream)
            return reader.schema, sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            stream.seek(0)
        reader = pa.ipc.open_stream(stream)
        return reader.schema, sum(batch.num_rows for batch in reader)


def _scan_csv(path: Path, options: dict[str, Any], text: Collection[str]) -> tuple[pa.Schema, int]:
    """Types over the whole file, because the loader guesses them anew for every 10,000 lines; a column of numbers and words is text."""
    _refuse_ragged(path, str(options.get("sep", ",")))
    schema, count = None, 0
    dataset = builder("csv", [path], **{**CSV_OPTIONS, **options}).as_streaming_dataset(split="train").with_format("arrow")
    for batch in dataset.iter(batch_size=10_000):
        count += len(batch)
        part = pa.schema([pa.field(field.name, _csv_type(batch[field.name])) for field in batch.schema])
        schema = part if schema is None else pa.schema([_text_or_unified(schema.field(field.name), field) for field in part])
    if schema is None:
        return pa.schema([]), 0
    return pa.schema([pa.field(field.name, pa.string()) if field.name in text else field for field in schema]), count


def _csv_type(column: pa.ChunkedArray) -> pa.DataType:
    if column.null_count == len(column):
        return pa.null()
    return pa.string() if pa.types.is_boolean(column.type) and column.null_count else column.type


def _text_or_unified(left: pa.Field, right: pa.Field) -> pa.Field:
    try:
        return unify(pa.schema([left]), pa.schema([right])).field(0)
    except pa.ArrowException:
        return pa.field(left.name, pa.string())


def _refuse_ragged(path: Path, separator: str) -> None:
    """pandas fills short lines with nothing, and takes the first column of long ones for an index."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        lines = csv.reader(stream, delimiter=separator)
        header = next(lines, [])
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise DataError("A CSV file names two columns alike", where=str(path), expected="one name a column", got=", ".join(twice))
        for line in lines:
            if line and len(line) != len(header):
                raise DataError(
                    "A CSV file has a ragged line",
                    where=f"{path}, line {lines.line_num}",
                    expected=f"{len(header)} fields, as in the header",
                    got=f"{len(line)} fields",
                    next="quote a field that holds a comma, or repair the line",
                )


def _scan_json(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:
    """Types over the whole file: the loader takes those of the first 10 MB, and turns a column of numbers and words into JSON text."""
    rows: list[Any] = []
    schema, count = None, 0

    def merge() -> pa.Schema:
        part = pa.schema(list(pa.array(rows).type))
        return part if schema is None else unify(schema, part)

    try:
        for number, row in _json_rows(path):
            if not isinstance(row, dict) or not row:
                raise DataError(
                    "A JSON file is no list of rows",
                    where=f"{path}, {number}",
                    expected="a list of objects, or one object a line",
                    got=repr(row)[:80],
                    next="write each row as an object of its columns",
                )
            rows.append(row)
            count += 1
            if len(rows) == SCAN_ROWS:
                schema = merge()
                rows.clear()
        return (merge() if rows else schema or pa.schema([])), count
    except (pa.ArrowException, json.JSONDecodeError) as error:
        raise DataError(
            "A JSON file does not fit",
            where=f"{path}, near row {count}",
            expected="a list of objects, or one object a line, with one type a column",
            got=str(error),
            next="repair the file",
        ) from error


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with open(path, encoding="utf-8-sig") as stream:
        if stream.read(1) == "[":
            stream.seek(0)
            for number, row in enumerate(json.load(stream)):
                yield f"item {number}", row
            return
        stream.seek(0)
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield f"line {number}", json.loads(line)


SCANS: dict[str, Callable[[Path, dict[str, Any], Collection[str]], tuple[pa.Schema, int]]] = {
    "parquet": _scan_parquet,
    "arrow": _scan_arrow,
    "csv": _scan_csv,
    "json": _scan_json,
}
"""Of one file: the types of its columns and its number of rows."""
