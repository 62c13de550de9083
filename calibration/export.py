"""torch to ONNX: one float graph with the declared dynamic axes, proven equal to torch at several sizes, hop by hop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.checkpoint import load_module
from calibration.export_parity import Exported, at_points, parity
from calibration.graph import nodes_that_fix, tidy
from calibration.parity import not_followed
from calibration.runtime import session
from calibration.tracing import OPSET, trace
from pipeline.config import ModelConfig
from pipeline.digests import sha256_file
from pipeline.errors import ModelError
from pipeline.files import replacing_folder
from pipeline.macs import macs_by_node
from pipeline.records import ExportedModel
from pipeline.side_files import MAX_INSIDE, describe_files, light, save_model
from pipeline.tensors import AxisRange, Batch, TensorSpec

if TYPE_CHECKING:
    import onnx


def export(
    model: ModelConfig,
    root: Path,
    folder: Path,
    rows: Batch,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    *,
    limit: int = MAX_INSIDE,
) -> ExportedModel:
    """Write `folder`/model.onnx and exported.json, whole or not at all.

    `rows` are a few prepared rows `{input: (n, ...)}` for tracing and parity. The torch module, the graph as the exporter gives it and the tidied
    graph are compared at the smallest, typical and largest sizes (with several axes, also with one small and the others large), each row alone
    with the same row in a batch, and, where inputs declare `pad`, rows padded with the same rows not padded. Weights beyond `limit` bytes go to a
    side file whose sha256 the model file holds. Raises ConfigError or ModelError: factory, checkpoint, rows of another dtype, an operator in
    training mode, a fixed axis, a graph that cannot be exported, or a difference beyond the bound.
    """
    steps = 4
    progress(0, steps, "checkpoint")
    module = load_module(model, root)
    specs, shapes = model.input_specs(), model.axis_ranges()
    _check_rows(rows, specs)
    exported = Exported(module, specs, shapes, model.outputs, model.batch_axis, rows)
    exported.run_torch()
    progress(1, steps, "torch.onnx.export")
    graph, exporter, fallback = trace(module, specs, shapes, model.outputs, rows)
    suspects = nodes_that_fix(graph, model.batch_axis)
    raw = at_points(exported, session(graph, optimize=False, limit=limit), "the exported graph in ONNX Runtime", suspects)
    tidy(graph)
    outputs = _output_specs(graph, shapes, model.batch_axis)
    progress(2, steps, "parity")
    measured = parity(exported, raw, session(graph, limit=limit), outputs, nodes_that_fix(graph, model.batch_axis))
    typical = {name: axis.opt for name, axis in shapes.items()} | {model.batch_axis: 1}
    progress(3, steps, "write")
    with replacing_folder(folder) as temporary:
        sha256 = save_model(graph, temporary / "model.onnx", limit)
        _check_valid(temporary / "model.onnx")
        record = ExportedModel(
            onnx_sha256=sha256,
            checkpoint_sha256=sha256_file(root / model.checkpoint),
            factory=model.factory,
            exporter=exporter,
            opset=OPSET,
            inputs=specs,
            outputs=outputs,
            shapes=shapes,
            parity=measured,
            macs=sum(macs_by_node(light(graph), typical).values()),
            operators=dict(sorted(Counter(node.op_type for node in graph.graph.node).items())),
            fallback=fallback,
            files=describe_files(temporary / "model.onnx"),
        )
        record.save(temporary / "exported.json")
    progress(4, steps, "")
    return record


def _check_rows(rows: Batch, specs: tuple[TensorSpec, ...]) -> None:
    """The rows that the trace and the parity rest on have the declared names, dtypes and ranks."""
    if set(rows) != {spec.name for spec in specs}:
        expected = ", ".join(spec.name for spec in specs)
        raise ModelError("The rows are not the declared inputs", where="model.inputs", expected=expected, got=", ".join(rows))
    for spec in specs:
        array = rows[spec.name]
        if str(array.dtype) != spec.dtype or array.ndim != len(spec.shape):
            others = [other.name for other in specs if str(array.dtype) == other.dtype and array.ndim == len(other.shape)]
            hint = f" (it would fit {', '.join(others)}: are two inputs swapped?)" if others else ""
            raise ModelError(
                "A row has another dtype or rank than the declared input",
                where=f"input {spec.name}",
                expected=f"{spec.dtype} {list(spec.shape)}",
                got=f"{array.dtype} of shape {list(array.shape)}{hint}",
                next="correct model.inputs in params.yaml, or what data.preprocess returns",
            )


def _check_valid(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        got = " ".join(str(error).split())[:600]
        raise ModelError("The exporter's graph is not valid ONNX", where="export", expected="a graph that onnx.checker accepts", got=got) from error


def _output_specs(graph: onnx.ModelProto, shapes: Mapping[str, AxisRange], batch_axis: str) -> tuple[TensorSpec, ...]:
    import onnx

    specs = []
    for value in graph.graph.output:
        axes = [axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in value.type.tensor_type.shape.dim]
        dtype = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)))
        batch = shapes[batch_axis]
        if axes[:1] == [batch.min] and batch.min == batch.max:  # a batch of one size is exported as that number
            axes[0] = batch_axis
        if axes[:1] != [batch_axis]:
            raise not_followed(batch_axis, f"output {value.name} of the exported graph", f"shape {axes}", nodes_that_fix(graph, batch_axis))
        if unknown := [axis for axis in axes if isinstance(axis, str) and axis not in shapes]:
            raise ModelError(
                "An output has an axis that depends on the inputs in an undeclared way",
                where=f"output {value.name}",
                expected=f"sizes, or one of the axes {', '.join(shapes)}",
                got=f"shape {axes} with {', '.join(unknown) or 'an unnamed axis'}",
                next="fix the size of this axis in model.shapes (min = opt = max)",
            )
        specs.append(TensorSpec(value.name, dtype, tuple(axes)))
    return tuple(specs)
