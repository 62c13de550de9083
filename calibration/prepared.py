"""One raw row through the user's preprocessing, checked against the model's declared inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibration.health import RowError
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, DataError
from pipeline.loading import load_object, source_file
from pipeline.padding import paddable_axes, stack
from pipeline.tensors import AxisRange, TensorSpec

Prepare = Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]
"""One raw row to the model's named inputs, without the batch axis."""


def load_prepare(reference: str, root: Path) -> tuple[Prepare, str]:
    """The preprocessing function and the sha256 of its file; raises ConfigError when it is no function of a file."""
    prepare = load_object(reference, root)
    if not callable(prepare):
        raise ConfigError("Preprocessing is not callable", where=reference, expected="a function of one raw row", got=type(prepare).__name__)
    path = source_file(reference, root)
    if path is None:
        try:
            path = Path(inspect.getfile(prepare))
        except TypeError as error:
            raise ConfigError("Preprocessing has no file to ship", where=reference, expected="a function in a .py file", got=str(error)) from error
    return prepare, sha256_file(path)


def prepare_row(
    row_id: str,
    raw: Mapping[str, np.ndarray],
    prepare: Prepare,
    specs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange] | None = None,
    values: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, np.ndarray]:
    """`prepare(raw)` with names, dtypes, sizes and values checked; raises RowError, a DataError, naming the row and the input.

    A named axis must have one size in all inputs of the row, within its range in `shapes` (shorter is right where it can be padded).
    `values` holds the least and largest value of integer inputs that declare them. The batch axis is not there yet.
    """
    try:
        prepared = prepare(raw)
    except Exception as error:  # the user's own code
        raise RowError(
            "preprocessing",
            "Preprocessing failed on a row",
            where=f"row {row_id}",
            expected="the model's inputs",
            got=f"{type(error).__name__}: {error}",
            next="correct data.preprocess in params.yaml, or the row in the source",
        ) from error
    names = [spec.name for spec in specs]
    if not isinstance(prepared, Mapping) or set(prepared) != set(names):
        got = ", ".join(sorted(map(str, prepared))) if isinstance(prepared, Mapping) else type(prepared).__name__
        raise DataError("Preprocessing gives other inputs than model.inputs declares", where=f"row {row_id}", expected=", ".join(names), got=got)
    checked = {}
    for spec in specs:
        array, where = prepared[spec.name], f"row {row_id}, input {spec.name}"
        shape = spec.shape[1:]
        if not isinstance(array, np.ndarray) or str(array.dtype) != spec.dtype:
            got = str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
            raise RowError("wrong_type", "Preprocessing gives another dtype than model.inputs declares", where=where, expected=spec.dtype, got=got)
        if len(array.shape) != len(shape) or any(isinstance(axis, int) and axis != size for axis, size in zip(shape, array.shape, strict=True)):
            raise RowError(
                "wrong_shape",
                "Preprocessing gives another shape than model.inputs declares",
                where=where,
                expected=str(list(shape)),
                got=str(list(array.shape)),
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = int(array.size - np.isfinite(array).sum())
            raise RowError(
                "non_finite",
                "A row is not finite after preprocessing",
                where=where,
                expected="finite numbers",
                got=f"{bad} of {array.size} values are NaN or infinite",
                next="repair or remove this row in the source, or set data.health.non_finite: quarantine; then run `dvc repro`",
            )
        if values and spec.name in values:
            _check_values(array, *values[spec.name], where)
        checked[spec.name] = array
    _check_sizes(row_id, checked, specs, shapes or {})
    return checked


def _check_values(array: np.ndarray, low: int, high: int, where: str) -> None:
    beyond = array[(array < low) | (array > high)]
    if beyond.size:
        raise RowError(
            "out_of_range",
            "A row has a value beyond the declared range",
            where=where,
            expected=f"{low} to {high}, as model.inputs declares",
            got=f"{beyond.size} of {array.size} values, the first is {beyond[0]}",
            next="correct the row or data.preprocess, or set data.health.out_of_range: quarantine",
        )


def _check_sizes(row_id: str, arrays: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange]) -> None:
    paddable, sizes = paddable_axes(specs), dict[str, int]()
    for spec in specs:
        for axis, size in zip(spec.shape[1:], arrays[spec.name].shape, strict=True):
            if not isinstance(axis, str):
                continue
            where = f"row {row_id}, input {spec.name}, axis {axis}"
            if sizes.setdefault(axis, size) != size:
                raise RowError("wrong_shape", "Two inputs of one row disagree on an axis", where=where, expected=str(sizes[axis]), got=str(size))
            allowed = shapes.get(axis)
            if allowed is not None and (size > allowed.max or (size < allowed.min and axis not in paddable) or size == 0):
                raise RowError(
                    "wrong_shape",
                    "A row has a size beyond the declared range",
                    where=where,
                    expected=f"{allowed.min} to {allowed.max}, as model.shapes.{axis} says",
                    got=str(size),
                    next="cut (or lengthen) it in data.preprocess, or widen model.shapes in params.yaml",
                )


def stack_rows(
    rows: list[dict[str, np.ndarray]], ids: list[str], specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange] | None = None
) -> dict[str, np.ndarray]:
    """Rows to one batch with a new first axis, padded where `model.inputs` says so; raises DataError naming the first row that does not fit."""
    return stack(rows, specs, shapes or {}, [f"row {row_id}" for row_id in ids], DataError)
