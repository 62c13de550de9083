"""CSV: the types of its columns over the whole file, and lines that are not what the header says."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from calibration.sources.loading import stream, unify
from pipeline.errors import DataError

OPTIONS: dict[str, Any] = {"keep_default_na": False, "na_values": ["", "nan", "NaN"], "float_precision": "round_trip"}
"""Only an empty cell and NaN are missing: "NA" or "null" may well be a class. Numbers are read exactly."""
SCAN_ROWS = 10_000


def scan(path: Path, options: dict[str, Any], text: Collection[str]) -> tuple[pa.Schema, int]:
    """Types of the columns, and the number of rows. The columns `text` are text whatever they hold ("007" stays so).

    The loader guesses types anew for every 10,000 lines; here one column has one type, and numbers among words are text.
    Raises DataError as `refuse_ragged`, and what pandas raises.
    """
    refuse_ragged(path, str(options.get("sep", ",")))
    fields: dict[str, pa.Field] = {}
    holes: set[str] = set()
    count = 0
    for batch in stream("csv", [path], **{**OPTIONS, **options}).with_format("arrow").iter(batch_size=SCAN_ROWS):
        count += len(batch)
        for name in batch.schema.names:
            field = pa.field(name, pa.string() if name in text else _type(batch[name]))
            fields[name] = _common(fields[name], field) if name in fields else field
            if batch[name].null_count:
                holes.add(name)
    return pa.schema([_with_holes(field) if name in holes else field for name, field in fields.items()]), count


def _type(column: pa.ChunkedArray) -> pa.DataType:
    return pa.null() if column.null_count == len(column) else column.type


def _with_holes(field: pa.Field) -> pa.Field:
    """pandas has no integer and no boolean that is missing."""
    if pa.types.is_integer(field.type):
        return pa.field(field.name, pa.float64())
    return pa.field(field.name, pa.string()) if pa.types.is_boolean(field.type) else field


def _common(left: pa.Field, right: pa.Field) -> pa.Field:
    try:
        return unify(pa.schema([left]), pa.schema([right])).field(0)
    except pa.ArrowException:
        return pa.field(left.name, pa.string())


def refuse_ragged(path: Path, separator: str) -> None:
    """Raise DataError for a line of more or fewer fields than the header, and for a name that two columns have.

    pandas fills short lines with nothing, takes the first column of long ones for an index, and renames the second of two columns.
    """
    with open(path, newline="", encoding="utf-8-sig") as lines_of_text:
        lines = csv.reader(lines_of_text, delimiter=separator)
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
