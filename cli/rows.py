"""Rows for a command that has a model and a file: arrays of an .npz by input name, or a data set's columns, checked against the model's inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cli.options import by_hand
from pipeline.arrays import read_arrays
from pipeline.digests import merkle_root, sha256_arrays
from pipeline.errors import ConfigError, DataError
from pipeline.tensors import TensorSpec

LABEL_NAMES = ("label", "labels")
"""Arrays that are taken for labels where the model has no such input."""
One = tuple[str, dict[str, np.ndarray], Any]
"""Id, inputs without the batch axis, label."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that fit a model. `read` starts over each time it is called; `left_out`: rows that are not finite, by id, with what is wrong."""

    ids: tuple[str, ...]
    root: str
    left_out: Mapping[str, str]
    read: Callable[[], Iterator[One]]

    def batches(self, size: int, without: Collection[str] = ()) -> Iterator[dict[str, np.ndarray]]:
        """Batches `{input: (n, ...)}`, n <= size, of all rows but those `without`; memory holds one."""
        held: list[dict[str, np.ndarray]] = []
        for row_id, inputs, _ in self._kept():
            if row_id in without:
                continue
            held.append(inputs)
            if len(held) == size:
                yield _stack(held)
                held = []
        if held:
            yield _stack(held)

    def first(self, count: int, without: Collection[str] = ()) -> dict[str, np.ndarray]:
        """The first rows but those `without`, `count` of them at most, in one batch."""
        return next(self.batches(count, without))

    def labels(self) -> np.ndarray | None:
        """(N,) of whatever the label's column holds; None without one."""
        found = [label for _, _, label in self._kept()]
        return None if not found or found[0] is None else np.array(found)

    def _kept(self) -> Iterator[One]:
        return (row for row in self.read() if row[0] not in self.left_out)


def read_rows(
    path: Path, specs: Sequence[TensorSpec], *, columns: Mapping[str, str], preprocess: str | None, label: str | None, class_names: Sequence[str],
    quarantine: bool | None = None,
) -> Rows:  # fmt: skip
    """Open `path` and look at every row once: names, dtypes, shapes, finiteness.

    An .npz holds one array (N, ...) an input, and perhaps labels. Of a data set, `columns` maps what `preprocess` (`file.py:function`) receives to
    columns; without `preprocess` the inputs are columns. A row that is not finite is refused by number and input or, with `quarantine`,
    left out and listed; None where a command leaves none out. Raises ConfigError, DataError or RecordError.
    """
    if path.suffix == ".npz":
        if preprocess or columns:
            expected, after = "arrays as the model takes them", "leave out these options, or give the data set itself"
            raise ConfigError("An .npz is not preprocessed", where=str(path), expected=expected, got="--preprocess or --column", next=after)
        read = _from_arrays(path, specs, label)
    else:
        read = _from_dataset(path, specs, columns, preprocess, label, class_names)
    ids, digests, left_out = [], [], {}
    for row_id, inputs, _ in read():
        _check(f"{path}, row {row_id}", inputs, specs)
        if reason := _not_finite(inputs):
            if not quarantine:
                after = "repair or remove the row" + (", or leave such rows out with --quarantine" if quarantine is not None else "")
                where = f"{path}, row {row_id}, {reason[0]}"
                raise DataError("A row is not finite", where=where, expected="finite numbers", got=reason[1], next=after)
            left_out[row_id] = f"{reason[0]}: {reason[1]}"
            continue
        ids.append(row_id)
        digests.append(sha256_arrays(inputs))
    if not ids:
        got = f"{len(left_out)} rows, none of them finite" if left_out else "none"
        raise DataError("There are no rows", where=str(path), expected="one or more", got=got, next="give rows as the model takes them")
    return Rows(tuple(ids), merkle_root(digests), left_out, read)


def _from_arrays(path: Path, specs: Sequence[TensorSpec], label: str | None) -> Callable[[], Iterator[One]]:
    arrays = read_arrays(path, what="The rows", next="check the path; save arrays with numpy.savez(path, input=array)")
    names = [spec.name for spec in specs]
    if label is not None and label not in arrays:
        expected = f"one of {', '.join(arrays)}"
        raise ConfigError("There is no such array of labels", where=f"--label {label}", expected=expected, got=label, next="correct --label")
    label = label or next((name for name in LABEL_NAMES if name in arrays and name not in names), None)
    given = [name for name in arrays if name != label]
    if set(given) != set(names):
        raise DataError(
            "The arrays are not the model's inputs", where=str(path), expected=", ".join(names), got=", ".join(given) or "no array",
            next="name the arrays as the inputs are named: numpy.savez(path, input=array)",
        )  # fmt: skip
    counts = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in [*names, *([label] if label else [])]}
    if len(set(counts.values())) != 1:
        got = ", ".join(f"{name} {count}" for name, count in counts.items())
        after = "save one row a label and input: the first axis of every array"
        raise DataError("The arrays have different numbers of rows", where=str(path), expected="one number", got=got, next=after)
    _check_swapped(path, arrays, specs)

    def read() -> Iterator[One]:
        for index in range(next(iter(counts.values()))):
            yield str(index), {name: arrays[name][index] for name in names}, arrays[label][index] if label else None

    return read


def _from_dataset(
    path: Path, specs: Sequence[TensorSpec], columns: Mapping[str, str], preprocess: str | None, label: str | None, class_names: Sequence[str]
) -> Callable[[], Iterator[One]]:
    from calibration.prepared import load_prepare
    from calibration.sources import LABEL, guess, open_rows

    wanted = dict(columns) or {spec.name: spec.name for spec in specs}
    with by_hand(f"--column, for {path}", "correct the path, --column or --label"):
        source = open_rows(guess(path), {**wanted, **({LABEL: label} if label else {})}, tuple(class_names) if label else ())
    with by_hand("--preprocess"):
        prepare = load_prepare(preprocess, Path())[0] if preprocess else None

    def read() -> Iterator[One]:
        with by_hand(f"--column, for {path}", "correct the row, --column or --label"):
            for row in source.rows():
                try:
                    inputs = dict(prepare(row.raw)) if prepare else dict(row.raw)
                except Exception as error:  # the user's own code
                    got = f"{type(error).__name__}: {error}"
                    where, after = f"{path}, row {row.id}", "correct --preprocess, or the row in the source"
                    raise DataError("Preprocessing failed on a row", where=where, expected="the model's inputs", got=got, next=after) from error
                yield row.id, inputs, row.label

    return read


def _check(row: str, inputs: Mapping[str, Any], specs: Sequence[TensorSpec]) -> None:
    if set(inputs) != {spec.name for spec in specs}:
        expected, got = ", ".join(spec.name for spec in specs), ", ".join(map(str, inputs))
        after = "map columns to the inputs with --column INPUT=COLUMN, or return the inputs from --preprocess"
        raise DataError("A row has other inputs than the model", where=row, expected=expected, got=got, next=after)
    sizes: dict[str, int] = {}
    for spec in specs:
        array, where = inputs[spec.name], f"{row}, input {spec.name}"
        dtype = str(array.dtype) if isinstance(array, (np.ndarray, np.generic)) else type(array).__name__
        if dtype != spec.dtype:
            after = f"convert it: array.astype(numpy.{spec.dtype}), if that is what the model means"
            raise DataError("An input has another dtype than the model's", where=where, expected=spec.dtype, got=dtype, next=after)
        shape = spec.shape[1:]
        if array.ndim != len(shape) or any(isinstance(axis, int) and axis != size for axis, size in zip(shape, array.shape, strict=True)):
            expected, got = str(list(shape)), str(list(array.shape))
            after = "crop, pad or transpose the rows, or export the model with that axis dynamic"
            raise DataError("An input has another shape than the model's", where=where, expected=expected, got=got, next=after)
        for axis, size in zip(shape, array.shape, strict=True):
            if isinstance(axis, str) and sizes.setdefault(axis, size) != size:
                where, after = f"{where}, axis {axis}", "give all inputs of a row one size along it"
                raise DataError("Two inputs disagree on an axis", where=where, expected=str(sizes[axis]), got=str(size), next=after)


def _check_swapped(path: Path, arrays: Mapping[str, np.ndarray], specs: Sequence[TensorSpec]) -> None:
    """Two inputs that fit each other's declaration and not their own were swapped."""
    for spec in specs:
        for other in specs:
            if _fits(arrays[spec.name], spec) or other.name == spec.name:
                continue
            if _fits(arrays[spec.name], other) and _fits(arrays[other.name], spec):
                expected = f"{spec.name} {spec.dtype} {list(spec.shape)}, {other.name} {other.dtype} {list(other.shape)}"
                got = f"{spec.name} {arrays[spec.name].dtype} {list(arrays[spec.name].shape)}"
                where = f"{path}, arrays {spec.name} and {other.name}"
                raise DataError("Two inputs are swapped", where=where, expected=expected, got=got, next="swap the names of the two arrays")


def _fits(array: np.ndarray, spec: TensorSpec) -> bool:
    same = array.ndim == len(spec.shape) and str(array.dtype) == spec.dtype
    return same and all(not isinstance(axis, int) or axis == size for axis, size in zip(spec.shape[1:], array.shape[1:], strict=True))


def _not_finite(inputs: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    for name, array in inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"input {name}", f"{int(array.size - np.isfinite(array).sum())} of {array.size} values are NaN or infinite"
    return None


def _stack(rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    shapes = [{name: array.shape for name, array in row.items()} for row in rows]
    if any(shape != shapes[0] for shape in shapes):
        got = str(next(shape for shape in shapes if shape != shapes[0]))
        raise DataError("Rows have different shapes", where="one batch", expected=str(shapes[0]), got=got, next="pad or crop them to one shape")
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
