"""An exported graph held to its torch module: at several sizes, hop by hop, row by row, and padded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.parity import compare, points, run_checked
from calibration.runtime import run_session
from calibration.tracing import run_module
from pipeline.errors import ModelError
from pipeline.padding import cut, fit, grow, paddable_axes
from pipeline.records import Parity
from pipeline.tensors import AxisRange, Batch, TensorSpec

if TYPE_CHECKING:
    from torch import nn

TO_ONNX, TO_SIMPLIFIED, SAME_ROWS = "torch -> onnx", "onnx -> simplified", "smallest batch -> this batch, same rows"


class Exported:
    """A torch module with its declaration and its own outputs at each point of the shape range."""

    def __init__(
        self, module: nn.Module, specs: tuple[TensorSpec, ...], shapes: dict[str, AxisRange], outputs: list[str], batch_axis: str, rows: Batch
    ) -> None:
        self.module, self.specs, self.shapes, self.outputs, self.batch_axis, self.rows = module, specs, shapes, outputs, batch_axis, rows
        self.expected: list[tuple[dict[str, int], Batch, dict[str, np.ndarray]]] = []

    def run_torch(self) -> None:
        """Run the module at every point, so that what is wrong with itself is not taken for the export's fault.

        Raises ModelError for a module that fails on the declared inputs or does not follow the batch axis.
        """
        failures: list[ModelError] = []
        wanted = points(self.shapes)
        for sizes in wanted:
            batch = fit(self.rows, self.specs, sizes)
            try:
                self.expected.append((sizes, batch, run_checked(self._run, batch, self.batch_axis, sizes, "the torch module")))
            except ModelError as error:
                if isinstance(error.__cause__, ModelError):  # inputs or outputs are not those declared, at any size
                    raise error.__cause__ from None
                failures.append(error)
        if len(failures) == len(wanted):
            inputs = ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}" for spec in self.specs)
            raise ModelError(
                "The torch module does not run on the declared inputs",
                where="model.inputs and model.outputs",
                expected=f"outputs {', '.join(self.outputs)} from {inputs}",
                got=failures[0].got,
                next="correct model.inputs and model.outputs in params.yaml, or the module's forward",
            ) from failures[0]
        if failures:
            raise failures[0]

    def _run(self, batch: Batch) -> dict[str, np.ndarray]:
        return run_module(self.module, self.specs, self.outputs, batch)


def at_points(exported: Exported, runtime: Any, what: str, suspects: list[str]) -> list[dict[str, np.ndarray]]:
    """Outputs of a session on what the torch module was run on; raises ModelError naming `suspects` when the batch axis is not followed."""
    axis = exported.batch_axis
    return [run_checked(lambda inputs: run_session(runtime, inputs), batch, axis, sizes, what, suspects) for sizes, batch, _ in exported.expected]


def parity(
    exported: Exported, raw: list[dict[str, np.ndarray]], tidied: Any, outputs: tuple[TensorSpec, ...], suspects: list[str]
) -> tuple[Parity, ...]:
    """Every output at every point: torch against the exporter's graph, that against the tidied one; and a row alone, and padded, against itself.

    `raw` is what `at_points` gave for the exporter's graph, `tidied` a session on the other. Raises ModelError beyond the bound.
    """
    axis, specs, shapes = exported.batch_axis, exported.specs, exported.shapes
    measured: list[Parity] = []
    simplified = at_points(exported, tidied, "the simplified graph in ONNX Runtime", suspects)
    for (sizes, batch, expected), first, got in zip(exported.expected, raw, simplified, strict=True):
        measured += compare(TO_ONNX, sizes, expected, first)
        measured += compare(TO_SIMPLIFIED, sizes, first, got)
        # Serving pads a batch to a warmed size: that is right only if a row's answer does not depend on its neighbours.
        if (count := shapes[axis].min) < sizes[axis]:
            few = run_session(tidied, fit(batch, specs, {**sizes, axis: count}))
            measured += compare(SAME_ROWS, sizes, few, {name: array[:count] for name, array in got.items()})
    return (*measured, *_padded(exported, tidied, outputs))


def _padded(exported: Exported, runtime: Any, outputs: tuple[TensorSpec, ...]) -> tuple[Parity, ...]:
    """Serving pads a row to a warmed size where `pad` allows it: that is right only if the model does not look at what was padded."""
    specs, shapes, rows = exported.specs, exported.shapes, exported.rows
    typical = {name: axis.opt for name, axis in shapes.items()}
    measured: tuple[Parity, ...] = ()
    for axis in sorted(paddable_axes(specs)):
        allowed = shapes[axis]
        sizes = {**typical, axis: allowed.opt if allowed.opt < allowed.max else allowed.min}
        if sizes[axis] == allowed.max:
            continue
        alone = fit(rows, specs, sizes)
        padded = run_session(runtime, grow(alone, specs, {axis: allowed.max}))
        try:
            measured += compare(f"{axis} {sizes[axis]} -> padded to {allowed.max}", sizes, run_session(runtime, alone), cut(padded, outputs, sizes))
        except ModelError as error:
            pads = ", ".join(f"model.inputs.{spec.name}.pad" for spec in specs if axis in spec.shape)
            raise ModelError(
                f"Padding the axis {axis!r} changes the model's answers",
                where=error.where,
                expected="the same answers with and without padding",
                got=error.got,
                next=f"let the model ignore what is padded (an attention mask), or take {pads} out of params.yaml",
            ) from error
    return measured
