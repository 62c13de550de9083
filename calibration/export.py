"""torch to ONNX: one float graph with the declared dynamic axes, proven equal to torch at several sizes."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.checkpoint import load_module
from calibration.graph import nodes_that_fix, tidy
from calibration.parity import compare, not_followed, points, run_checked
from calibration.runtime import run_session, session
from pipeline.config import ModelConfig
from pipeline.digests import sha256_bytes, sha256_file
from pipeline.errors import ModelError
from pipeline.files import replacing_folder
from pipeline.macs import macs_by_node
from pipeline.padding import cut, fit, grow, paddable_axes
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, Parity
from pipeline.tensors import AxisRange, Batch, TensorSpec

if TYPE_CHECKING:
    import onnx
    from torch import nn

OPSET = 20
"""modelopt's INT8 Q/DQ needs at least 19 and converts anything older; ONNX Runtime 1.24, OpenVINO 2026.4 and the TensorRT 10 parsers all take 20."""
MAX_PROTOBUF_BYTES = 2**31 - 1
LEAST_TRACED = 2
"""torch.export treats a traced size of 0 or 1 as a constant."""


def export(model: ModelConfig, root: Path, folder: Path, rows: Batch, progress: Callable[[int, int, str], None] = lambda *_: None) -> ExportedModel:
    """Write `folder`/model.onnx and exported.json, whole or not at all.

    `rows` are a few prepared rows `{input: (n, ...)}` for tracing and parity. Outputs of torch and of ONNX Runtime are
    compared at the smallest, typical and largest sizes, each row alone with the same row in a batch, and, where inputs declare `pad`,
    rows padded with the same rows not padded. Raises ConfigError or ModelError: factory, checkpoint, a fixed axis, a graph that cannot
    be exported, or a difference beyond the bound.
    """
    steps = 4
    progress(0, steps, "checkpoint")
    module = load_module(model, root)
    specs, shapes = model.input_specs(), model.axis_ranges()
    progress(1, steps, "torch.onnx.export")
    graph = _trace(module, specs, shapes, model.outputs, rows)
    tidy(graph)
    content = _serialize(graph)
    progress(2, steps, "parity")
    outputs = _output_specs(graph, shapes, model.batch_axis)
    parity = _parity(module, content, specs, outputs, shapes, model.batch_axis, rows, nodes_that_fix(graph, model.batch_axis))
    typical = {name: axis.opt for name, axis in shapes.items()} | {model.batch_axis: 1}
    record = ExportedModel(
        onnx_sha256=sha256_bytes(content),
        checkpoint_sha256=sha256_file(root / model.checkpoint),
        factory=model.factory,
        exporter=f"torch {package_version('torch')} dynamo, onnxscript {package_version('onnxscript')}",
        opset=OPSET,
        inputs=specs,
        outputs=outputs,
        shapes=shapes,
        parity=parity,
        macs=sum(macs_by_node(graph, typical).values()),
        operators=dict(sorted(Counter(node.op_type for node in graph.graph.node).items())),
    )
    progress(3, steps, "write")
    with replacing_folder(folder) as temporary:
        (temporary / "model.onnx").write_bytes(content)
        record.save(temporary / "exported.json")
    progress(4, steps, "")
    return record


def _bind(module: nn.Module, specs: tuple[TensorSpec, ...]) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """How named inputs become `forward`'s arguments: by name, never by position when there are several (equal shapes would swap silently)."""
    names = [spec.name for spec in specs]
    parameters = inspect.signature(module.forward).parameters
    if set(names) <= set(parameters):
        return lambda inputs: ((), {name: inputs[name] for name in names})
    if len(names) == 1:
        return lambda inputs: ((inputs[names[0]],), {})
    raise ModelError(
        "The model's inputs cannot be told apart",
        where="model.inputs in params.yaml",
        expected=f"names of forward's parameters: {', '.join(parameters)}",
        got=", ".join(names),
        next="name the inputs as `forward` does",
    )


def _trace(module: nn.Module, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], outputs: list[str], rows: Batch) -> onnx.ModelProto:
    import torch

    traced = {name: min(max(axis.opt, LEAST_TRACED), axis.max) for name, axis in shapes.items()}
    dims = {name: torch.export.Dim(name, min=axis.min, max=axis.max) for name, axis in shapes.items() if axis.min < axis.max}
    dynamic = {spec.name: {place: dims[axis] for place, axis in enumerate(spec.shape) if axis in dims} for spec in specs}
    bind = _bind(module, specs)
    arguments, named = bind({name: torch.from_numpy(array) for name, array in fit(rows, specs, traced).items()})
    positional_dynamic, named_dynamic = bind(dynamic)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)  # "torchvision is not installed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                arguments,
                kwargs=named,
                dynamo=True,
                external_data=False,
                verbose=False,
                opset_version=OPSET,
                input_names=[spec.name for spec in specs],
                output_names=outputs,
                dynamic_shapes=named_dynamic or positional_dynamic,
            )
    except Exception as error:  # torch raises many kinds; all mean that this module cannot be exported as declared
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(
            "The model cannot be exported with the declared axes",
            where=f"model.shapes {', '.join(f'{name} {axis.min} to {axis.max}' for name, axis in shapes.items())}",
            expected="a module that torch.export traces with these axes dynamic",
            got=f"{type(cause).__name__}: {str(cause)[:1200]}",
            next="remove what fixes the axis (a reshape to a number, a Python branch on a size), or narrow model.shapes in params.yaml",
        ) from error
    graph = program.model_proto
    if len(graph.graph.output) != len(outputs) or [value.name for value in graph.graph.input] != [spec.name for spec in specs]:
        raise ModelError(
            "The exported graph has other inputs or outputs than params.yaml declares",
            where="model.inputs and model.outputs",
            expected=f"inputs {[spec.name for spec in specs]}, outputs {outputs}",
            got=f"inputs {[value.name for value in graph.graph.input]}, {len(graph.graph.output)} outputs",
        )
    for spec, value in zip(specs, graph.graph.input, strict=True):
        for axis, found in zip(spec.shape, value.type.tensor_type.shape.dim, strict=True):
            if axis in dims and found.dim_param != axis:
                raise not_followed(str(axis), f"input {spec.name} of the exported graph", f"axis {found.dim_param or found.dim_value}")
    return graph


def _serialize(graph: onnx.ModelProto) -> bytes:
    import onnx

    if graph.ByteSize() > MAX_PROTOBUF_BYTES:
        raise ModelError("The model is too large for one ONNX file", where="export", expected="less than 2 GiB", got=f"{graph.ByteSize()} bytes")
    onnx.checker.check_model(graph, full_check=True)
    return bytes(graph.SerializeToString(deterministic=True))


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


def _parity(
    module: nn.Module,
    content: bytes,
    specs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange],
    batch_axis: str,
    rows: Batch,
    suspects: list[str],
) -> tuple[Parity, ...]:
    import torch

    bind = _bind(module, specs)

    def run_torch(batch: Batch) -> dict[str, np.ndarray]:
        arguments, named = bind({name: torch.from_numpy(array) for name, array in batch.items()})
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(module(*arguments, **named))
        return {spec.name: leaf.numpy() for spec, leaf in zip(outputs, leaves, strict=True)}

    runtime = session(content)
    measured: list[Parity] = []
    for sizes in points(shapes):
        batch = fit(rows, specs, sizes)
        expected = run_checked(run_torch, batch, batch_axis, sizes, "the torch module")
        got = run_checked(lambda inputs: run_session(runtime, inputs), batch, batch_axis, sizes, "the exported graph in ONNX Runtime", suspects)
        measured += compare("torch -> onnxruntime-cpu", sizes, expected, got)
        # Serving pads a batch to a warmed size: that is right only if a row's answer does not depend on its neighbours.
        if (count := shapes[batch_axis].min) < sizes[batch_axis]:
            few = run_session(runtime, fit(batch, specs, {**sizes, batch_axis: count}))
            measured += compare("smallest batch -> this batch, same rows", sizes, few, {name: array[:count] for name, array in got.items()})
    return (*measured, *_padding_parity(runtime, specs, outputs, shapes, rows))


def _padding_parity(
    runtime: Any, specs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], rows: Batch
) -> tuple[Parity, ...]:
    """Serving pads a row to a warmed size where `pad` allows it: that is right only if the model does not look at what was padded."""
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
