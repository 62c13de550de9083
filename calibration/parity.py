"""How far two runs of one model are apart, output by output, and the bound beyond which an export is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipeline.decibels import sqnr_db
from pipeline.errors import ModelError
from pipeline.records import Parity
from pipeline.tensors import AxisRange, Batch

MAX_RELATIVE = 1e-3
"""Largest difference over the reference's largest magnitude. Two float32 runtimes that add in another order stay near 1e-6."""
MIN_SQNR_DB = 60.0
"""Signal to noise of the whole output; the same two stay above 100 dB. bf16 alone is near 28 dB."""


def points(shapes: Mapping[str, AxisRange]) -> list[dict[str, int]]:
    """Three distinct points of the shape range: smallest, typical, largest; filled up from between when two coincide.

    Where several axes have a range, also a point an axis with it at its smallest and the others at their largest: a graph may mix them up.
    """
    chosen = {name: _three(axis) for name, axis in shapes.items()}
    count = max(len(sizes) for sizes in chosen.values())
    found = [{name: sizes[min(index, len(sizes) - 1)] for name, sizes in chosen.items()} for index in range(count)]
    ranging = [name for name, sizes in chosen.items() if len(sizes) > 1]
    if len(ranging) > 1:
        found += [{name: sizes[0 if name == small else -1] for name, sizes in chosen.items()} for small in ranging]
    return found


def _three(axis: AxisRange) -> list[int]:
    sizes = {axis.min, axis.opt, axis.max}
    for size in range(axis.min, axis.max + 1):
        if len(sizes) == 3:
            break
        sizes.add(size)
    return sorted(sizes)


def compare(
    hop: str, sizes: Mapping[str, int], reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], *,
    max_relative: float = MAX_RELATIVE, min_sqnr_db: float = MIN_SQNR_DB,
) -> tuple[Parity, ...]:  # fmt: skip
    """One `Parity` an output; raises ModelError where an output differs in shape, is not finite, or is beyond the bound.

    `max_relative` is the largest difference over the largest magnitude of the reference.
    """
    measured = []
    for name, expected in reference.items():
        got, where = other[name], f"output {name} at {dict(sizes)}, {hop}"
        if got.shape != expected.shape:
            raise ModelError("An exported model gives another shape", where=where, expected=str(list(expected.shape)), got=str(list(got.shape)))
        for side, array in (("reference", expected), ("other", got)):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError("A model output is not finite", where=f"{where}, {side}", expected="finite numbers", got="NaN or infinity")
        figure = figures(hop, sizes, name, expected, got)
        if figure.max_relative > max_relative or (figure.sqnr_db is not None and figure.sqnr_db < min_sqnr_db):
            said = "equal" if figure.sqnr_db is None else f"{figure.sqnr_db:.1f} dB"
            raise ModelError(
                "The exported model is too far from its reference",
                where=where,
                expected=f"relative difference at most {max_relative:g} and at least {min_sqnr_db:g} dB",
                got=f"relative difference {figure.max_relative:.3g} (absolute {figure.max_absolute:.3g}), {said}",
                next="look for data-dependent branches, random layers or batch statistics in the torch module",
            )
        measured.append(figure)
    return tuple(measured)


def figures(hop: str, sizes: Mapping[str, int], output: str, reference: np.ndarray, other: np.ndarray) -> Parity:
    """Largest absolute difference, the same over the reference's largest magnitude, and SQNR of two finite arrays of one shape."""
    wide, narrow = reference.astype(np.float64), other.astype(np.float64)
    absolute = float(np.max(np.abs(wide - narrow), initial=0.0))
    largest = float(np.max(np.abs(wide), initial=0.0))
    relative = absolute / largest if largest > 0 else (0.0 if absolute == 0 else 1.0)
    return Parity(hop, dict(sizes), output, absolute, relative, sqnr_db(wide, narrow))


def run_checked(
    run: Callable[[Batch], Mapping[str, np.ndarray]], batch: Batch, axis: str, sizes: Mapping[str, int], what: str, suspects: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Run at one point and check that each output's first axis is the batch; raises ModelError naming `axis` and the `suspects`."""
    try:
        outputs = dict(run(batch))
    except Exception as error:  # a user's forward or a runtime may raise anything
        said = error.got if isinstance(error, ModelError) else f"{type(error).__name__}: {str(error)[:600]}"
        raise not_followed(axis, f"{what} at {dict(sizes)}", said, suspects) from error
    for name, array in outputs.items():
        if array.shape[:1] != (sizes[axis],):
            raise not_followed(axis, f"{what} at {dict(sizes)}", f"output {name} has shape {list(array.shape)}", suspects)
    return outputs


def not_followed(axis: str, where: str, got: str, suspects: Sequence[str] = ()) -> ModelError:
    """The error for an axis that is declared dynamic and in fact fixed."""
    return ModelError(
        f"The axis {axis!r} is declared dynamic, and the model does not follow it",
        where=where + (f", suspected node {', '.join(suspects[:3])}" if suspects else ""),
        expected=f"every output to have {axis} as its first axis, at any size of model.shapes.{axis}",
        got=got,
        next=f"remove the fixed size from the model (often a reshape), or export it with one size (model.shapes.{axis} with min = opt = max)",
    )
