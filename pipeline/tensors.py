"""What a model's inputs and outputs are: named tensors whose axes are numbers or named, bounded sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.errors import InputError
from pipeline.strict import Record

if TYPE_CHECKING:
    import numpy as np

Batch = Mapping[str, "np.ndarray"]
"""Named arrays with one shared first axis: `{"image": (N, C, H, W) float32}`."""


@dataclasses.dataclass(frozen=True)
class TensorSpec(Record):
    """One named tensor. `shape` mixes sizes and axis names, for example `("batch", 1, 32, 32)`; `dtype` is numpy's name.

    `pad` of an input is the value that may fill its named axes up to a longer row or a warmed size; null forbids that.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    pad: float | None = None

    def concrete(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every named axis replaced by its size."""
        return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in self.shape)


@dataclasses.dataclass(frozen=True)
class AxisRange(Record):
    """Sizes that a named axis may take, as an optimization profile has them: `min <= opt <= max`."""

    min: int
    opt: int
    max: int


def check_inputs(inputs: Batch, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange]) -> dict[str, int]:
    """Check arrays against their declaration and return the size of each named axis.

    Raises InputError for a wrong name, dtype or rank, a size outside its range, or two sizes for one axis.
    Nothing is converted: a float64 array for a float32 input is refused.
    """
    declared = {spec.name: spec for spec in specs}
    if set(inputs) != set(declared):
        raise InputError("Wrong input names", where="inputs", expected=", ".join(sorted(declared)), got=", ".join(sorted(inputs)) or "none")
    sizes: dict[str, int] = {}
    for name, spec in declared.items():
        array = inputs[name]
        if array.dtype != spec.dtype:  # three microseconds quicker than as text
            raise InputError("Wrong input dtype", where=f"input {name}", expected=spec.dtype, got=str(array.dtype))
        if len(array.shape) != len(spec.shape):
            raise InputError("Wrong input rank", where=f"input {name}", expected=f"shape {list(spec.shape)}", got=str(list(array.shape)))
        for axis, size in zip(spec.shape, array.shape, strict=True):
            if isinstance(axis, int):
                if size != axis:
                    raise InputError("Wrong input shape", where=f"input {name}", expected=f"shape {list(spec.shape)}", got=str(list(array.shape)))
                continue
            allowed = shapes[axis]
            if not allowed.min <= size <= allowed.max:
                raise InputError(
                    "A size is out of the served range",
                    where=f"input {name}, axis {axis}",
                    expected=f"{allowed.min} to {allowed.max}",
                    got=str(size),
                    next="split the request, or widen model.shapes in params.yaml and release again",
                )
            if sizes.setdefault(axis, size) != size:
                raise InputError("Two inputs disagree on one axis", where=f"input {name}, axis {axis}", expected=str(sizes[axis]), got=str(size))
    return sizes
