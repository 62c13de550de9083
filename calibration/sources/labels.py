"""Labels bound to the model's own class names, and the text columns that name rows and groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibration.health import RowError
from pipeline.errors import ConfigError, DataError
from pipeline.loading import load_object

LABEL = "label"
"""The name in `data.columns` that maps to the label's column, and is not given to preprocessing."""
Label = int | float | str | None
"""A class index where there are class names, else whatever scalar the column holds, or None without such a column."""


def load_class_names(reference: str, root: Path) -> tuple[str, ...]:
    """The model's own class names, in output order; raises ConfigError unless `reference` names distinct strings."""
    names = load_object(reference, root)
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ConfigError("The label names do not fit", where=reference, expected="a tuple of distinct strings", got=repr(names)[:120])
    return tuple(names)


def _plain(cell: Any, where: str) -> Any:
    """A cell as a plain Python scalar, whole floats as integers (formats differ in that); raises RowError for a missing one."""
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        cell = cell[()]
    if isinstance(cell, np.generic):
        cell = cell.item()
    if cell is None:
        raise RowError(
            "missing_value", "A label is missing", where=where, expected="a label in each row", got="null", next="label or remove this row"
        )
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def read_scalar(cell: Any, where: str) -> Label:
    """A label without classes: a finite number or text."""
    value = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
        return value
    raise RowError(
        "missing_value" if value is None else "non_finite" if isinstance(value, float) else "wrong_type",
        "A label is no finite number and no text",
        where=where,
        expected="one scalar a row",
        got=repr(value)[:120],
        next="correct the row; or take `label` out of data.columns, when your metric needs none",
    )


def class_reader(
    stored: tuple[str, ...] | None, class_names: tuple[str, ...], where: str, *, numbers: bool, from_text: bool = False
) -> Callable[[Any, str], int]:
    """`read(cell, where)` gives the index of a label's class in `class_names`, the order of the model's outputs.

    Text is a class name. A number is an index into the names that the source carries (`stored`), else into `class_names`. `numbers`: the
    column holds numbers. `from_text`: it holds text that may be an index (CSV). Raises DataError when the source has other classes than the
    model, and where a number could be the index of one class and the name of another.
    """
    if stored and (unknown := sorted(set(stored) - set(class_names))):
        raise DataError(
            "The source has classes that the model does not",
            where=where,
            expected=f"class names of {', '.join(class_names)}",
            got=", ".join(unknown),
            next="make data.labels name every class, in the order of the model's outputs",
        )
    named_by_number = all(name.removeprefix("-").isdecimal() for name in class_names)
    if numbers and stored is None and named_by_number and class_names != tuple(map(str, range(len(class_names)))):
        raise DataError(
            "A number as a label could be a class's index or its name",
            where=where,
            expected="labels as text, because the class names are numbers that differ from their positions",
            got=f"a column of numbers, and the class names {', '.join(class_names)}",
            next="store the label column as text (or as a ClassLabel of `datasets`) in the source",
        )
    index = {name: position for position, name in enumerate(class_names)}

    def read(cell: Any, where: str) -> int:
        value = _plain(cell, where)
        if isinstance(value, str):
            if value in index:
                return index[value]
            if from_text and not named_by_number and value.isdecimal():
                value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(stored or class_names):
            return index[stored[value]] if stored else value
        raise RowError(
            "unknown_label",
            "A label is outside the class names",
            where=where,
            expected=f"one of {', '.join(class_names)}, or an index 0 to {len(class_names) - 1}",
            got=repr(cell),
            next="correct the row, or make data.labels name every class",
        )

    return read


def read_name(cell: Any, where: str, what: str, kind: str) -> str:
    """A row's id or group as text: equal whether it is stored as a number or as text. Raises RowError of `kind` where there is none."""
    value = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, (str, int)) and value != "":
        return str(value)
    missing = value is None or value == "" or value != value
    raise RowError(
        kind,
        f"A row has no {what}" if missing else f"A {what} is no text and no whole number",
        where=where,
        expected=f"a {what} in each row",
        got="null" if missing else repr(value)[:120],
        next=f"fill or remove this row, or name another column in data.{what}",
    )
