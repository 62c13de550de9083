"""Tables: parquet, Arrow, CSV and JSON files, streamed one file after another, with one type a column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from calibration.sources import csv_files, json_files
from calibration.sources.cells import Cells, cells_of
from calibration.sources.files import Files
from calibration.sources.loading import BATCH_ROWS, empty, missing_column, stream, unify, unreadable
from calibration.sources.source import Table
from pipeline.errors import DataError

BY_COLUMN = {"parquet", "csv"}
"""Kinds of which some columns can be read alone."""
Read = Callable[[int], Iterator[pa.Table]]
"""Streams the rows of one file, by its number."""


def open_table(
    kind: str,
    files: Files,
    wanted: Collection[str] | None,
    *,
    text: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Table:
    """Files of one kind as one table. Columns may stand in another order in each file.

    Of parquet and CSV, only the `wanted` columns are read (None: all); the columns `text` of a CSV are text. `options` are the loader's;
    `features` among them are types that are declared and not found.
    Raises DataError for a file that is missing, torn, empty, or has columns whose types or class names differ from those of the other files;
    for ragged lines (CSV), and for what is no list of rows (JSON).
    """
    where, options = str(files.root), dict(options or {})
    declared = options.pop("features", None) or {}
    try:
        schemas, counts = zip(*(SCANS[kind](path, options, text) for path in files.paths), strict=True)
        if not sum(counts):
            raise empty(where)
        columns = list(schemas[0].names if wanted is None else wanted)
        found = _shared_features(schemas, files, columns, kind)
        features = type(found)({name: declared.get(name, feature) for name, feature in found.items()})
        read = _parquet_reader(files, features) if kind == "parquet" else _reader(kind, files, features, options)
    except DataError:
        raise
    except Exception as error:  # ArrowInvalid, OSError, UnicodeDecodeError, ParserError and more
        raise unreadable(where, kind, error) from error

    def batches() -> Iterator[tuple[list[str], Mapping[str, Cells]]]:
        for number, path in enumerate(files.paths):
            first = 0
            for batch in read(number):
                ids = [f"{files.prefix(path)}{first + index:07d}" for index in range(len(batch))]
                yield ids, {column: cells_of(batch[column]) for column in columns}
                first += len(batch)

    return Table(features, sum(counts), batches)


def _reader(kind: str, files: Files, features: Any, options: Mapping[str, Any]) -> Read:
    """Through the loader of `datasets`; except for a list in JSON."""
    settings = {**csv_files.OPTIONS, "usecols": list(features)} if kind == "csv" else {}
    dataset = stream(kind, list(files.paths), features=features, **settings, **options).with_format("arrow")

    def read(number: int) -> Iterator[pa.Table]:
        if kind == "json" and json_files.is_list(files.paths[number]):
            return json_files.read_list(files.paths[number], features.arrow_schema)
        return dataset.shard(num_shards=len(files.paths), index=number).iter(batch_size=BATCH_ROWS)

    return read


def _parquet_reader(files: Files, features: Any) -> Read:
    """In place of the loader's own loop, which decodes a whole row group before it gives its first row.

    (60,000 rows of 4,096 values in one row group: 3 GB and 10 s or more there, 0.4 GB and a second here; see benchmarks/sources.py.)
    """
    from datasets.table import table_cast
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    def read(number: int) -> Iterator[pa.Table]:
        with ParquetFile(files.paths[number]) as parquet:
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(features)):
                yield table_cast(pa.Table.from_batches([batch]), features.arrow_schema)

    return read


def _shared_features(schemas: tuple[pa.Schema, ...], files: Files, columns: Collection[str], kind: str) -> Any:
    """What all files agree on: the types of `columns`, or of all columns where the loader reads no fewer."""
    import datasets

    shared: dict[str, Any] = {}
    for schema, path in zip(schemas, files.paths, strict=True):
        if lacking := sorted(set(columns) - set(schema.names)):
            raise missing_column(lacking[0], schema.names, str(path))
        chosen = [_plain(field) for field in schema if kind not in BY_COLUMN or field.name in columns]
        for name, feature in datasets.Features.from_arrow_schema(pa.schema(chosen, metadata=schema.metadata)).items():
            if shared.setdefault(name, feature) != feature:
                shared[name] = _common(shared[name], feature, f"column {name}, {path}")
    return datasets.Features(shared)


def _plain(field: pa.Field) -> pa.Field:
    """A category of pandas (a dictionary in Arrow) is what its values are."""
    return pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field


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


def _scan_parquet(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as parquet:
        return parquet.schema_arrow, int(parquet.metadata.num_rows)


def _scan_arrow(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:
    with pa.memory_map(str(path)) as mapped:
        try:
            reader = pa.ipc.open_file(mapped)
            return reader.schema, sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            mapped.seek(0)
        reader = pa.ipc.open_stream(mapped)
        return reader.schema, sum(batch.num_rows for batch in reader)


SCANS: dict[str, Callable[[Path, dict[str, Any], Collection[str]], tuple[pa.Schema, int]]] = {
    "parquet": _scan_parquet,
    "arrow": _scan_arrow,
    "csv": csv_files.scan,
    "json": json_files.scan,
}
"""Of one file: the types of its columns and its number of rows."""
