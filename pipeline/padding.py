"""Named axes other than the batch: rows of different lengths in one batch, and tensors brought to a warmed size.

An axis may grow only when every input that carries it declares a `pad` value (`TensorSpec.pad`): padding one of two inputs and not the
other would tear them apart. What padding leaves unchanged is the model's own business (its attention mask); `export` proves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import InputError, QwarmError
from pipeline.tensors import AxisRange, Batch, TensorSpec


def paddable_axes(specs: Sequence[TensorSpec]) -> frozenset[str]:
    """Named axes, the batch apart, that every input carrying them lets grow."""
    carried = {axis for spec in specs for axis in spec.shape[1:] if isinstance(axis, str)}
    fixed = {axis for spec in specs if spec.pad is None for axis in spec.shape if isinstance(axis, str)}
    return frozenset(carried - fixed)


def named_sizes(inputs: Batch, specs: Sequence[TensorSpec]) -> dict[str, int]:
    """Size of each named axis, the batch included, as the first input that carries it has it."""
    sizes: dict[str, int] = {}
    for spec in specs:
        for axis, size in zip(spec.shape, inputs[spec.name].shape, strict=True):
            if isinstance(axis, str):
                sizes.setdefault(axis, size)
    return sizes


def grow(inputs: Batch, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """`inputs` with each axis named in `sizes` padded at its end to that size; an array that need not grow is returned as it is."""
    grown = {}
    for spec in specs:
        array = inputs[spec.name]
        missing = [max(0, sizes.get(axis, 0) - size) if isinstance(axis, str) else 0 for axis, size in zip(spec.shape, array.shape, strict=True)]
        grown[spec.name] = np.pad(array, [(0, count) for count in missing], constant_values=spec.pad or 0) if any(missing) else array
    return grown


def cut(outputs: Batch, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """`outputs` with each named axis cut back to its size in `sizes`: what was asked for before padding."""
    return {
        spec.name: outputs[spec.name][tuple(slice(sizes.get(axis)) if isinstance(axis, str) else slice(None) for axis in spec.shape)]
        for spec in specs
    }


def stack(
    rows: Sequence[Batch],
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, AxisRange],
    names: Sequence[str],
    error: type[QwarmError] = InputError,
) -> dict[str, np.ndarray]:
    """Rows `{input: (...)}` to one batch `{input: (N, ...)}`, a paddable axis grown to the longest row's size (and at least its minimum).

    `names` say in an error which row it was ("row 0000012"). Raises `error` for rows whose shapes differ along any other axis.
    """
    for spec in specs:
        for row, name in zip(rows, names, strict=True):
            if row[spec.name].ndim != len(spec.shape) - 1:
                where, got = f"{name}, input {spec.name}", str(list(row[spec.name].shape))
                raise error("A row has the wrong rank", where=where, expected=f"shape {list(spec.shape[1:])}", got=got)
    paddable = paddable_axes(specs)
    longest = {axis: shapes[axis].min for axis in paddable if axis in shapes}
    for spec in specs:
        for row in rows:
            for axis, size in zip(spec.shape[1:], row[spec.name].shape, strict=True):
                if axis in paddable:
                    longest[str(axis)] = max(longest.get(str(axis), 0), size)
    batch = {}
    for spec in specs:
        parts = [grow({spec.name: row[spec.name][np.newaxis]}, (spec,), longest)[spec.name] for row in rows]
        for part, name in zip(parts, names, strict=True):
            if part.shape != parts[0].shape:
                axis = next(axis for axis, size, first in zip(spec.shape, part.shape, parts[0].shape, strict=True) if size != first)
                raise error(
                    "Rows of one batch have different shapes",
                    where=f"{name}, input {spec.name}, axis {axis}",
                    expected=f"{list(parts[0].shape[1:])}, as {names[0]} has",
                    got=str(list(part.shape[1:])),
                    next=f"declare model.inputs.{spec.name}.pad in params.yaml (for every input with this axis), or pad or crop in data.preprocess",
                )
        batch[spec.name] = np.concatenate(parts)
    return batch


def fit(rows: Batch, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """`rows` cropped, or repeated from the start, to exactly `sizes` on every named axis."""
    fitted = {}
    for spec in specs:
        array = rows[spec.name]
        index = np.ix_(*[np.arange(size) % have for size, have in zip(spec.concrete(sizes), array.shape, strict=True)])
        fitted[spec.name] = np.ascontiguousarray(array[index])
    return fitted
