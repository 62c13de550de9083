"""JSON: a list of rows, or one row a line; and the types of their columns over the whole file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # comes with datasets

from calibration.sources.loading import BATCH_ROWS, unify
from pipeline.errors import DataError

SCAN_ROWS = 1000


def scan(path: Path, _: dict[str, Any], __: Collection[str]) -> tuple[pa.Schema, int]:
    """Types of the columns, and the number of rows.

    The loader takes the types of the first 10 MB, and turns a column of numbers and words into JSON text without a word.
    Raises DataError for what is no list of rows, and for a column of several types.
    """
    schema, count, some = pa.schema([]), 0, list[Any]()
    try:
        for where, row in _rows(path):
            if not isinstance(row, dict) or not row:
                raise DataError(
                    "A JSON file is no list of rows",
                    where=f"{path}, {where}",
                    expected="a list of objects, or one object a line",
                    got=repr(row)[:80],
                    next="write each row as an object of its columns",
                )
            some.append(row)
            count += 1
            if len(some) == SCAN_ROWS:
                schema = unify(schema, _types(some))
                some.clear()
        return (unify(schema, _types(some)) if some else schema), count
    except (pa.ArrowException, json.JSONDecodeError) as error:
        raise DataError(
            "A JSON file does not fit",
            where=f"{path}, up to row {count}",
            expected="a list of objects, or one object a line, with one type a column",
            got=str(error),
            next="repair the file",
        ) from error


def _types(rows: list[Any]) -> pa.Schema:
    return pa.schema(list(pa.array(rows).type))


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with open(path, encoding="utf-8-sig") as lines:
        if is_list(path):
            for number, row in enumerate(json.load(lines)):
                yield f"item {number}", row
            return
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"line {number}", json.loads(line)


def is_list(path: Path) -> bool:
    """Whether the file is one list, and not a row a line."""
    with open(path, encoding="utf-8-sig") as text:
        return text.read(1000).lstrip()[:1] == "["


def read_list(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of one list, which is held in memory whole: the loader does that as well, and rounds floats to ten decimals."""
    rows = [row for _, row in _rows(path)]
    for first in range(0, len(rows), BATCH_ROWS):
        yield pa.Table.from_pylist(rows[first : first + BATCH_ROWS], schema=schema)
