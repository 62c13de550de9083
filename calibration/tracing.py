"""A torch module to an ONNX graph: torch.export first, TorchScript where that fails and its trace can be trusted."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.parity import not_followed
from pipeline.errors import ModelError
from pipeline.padding import fit
from pipeline.platforms import package_version
from pipeline.tensors import AxisRange, Batch, TensorSpec

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import nn

OPSET = 20
"""modelopt's INT8 Q/DQ needs at least 19 and converts anything older; ONNX Runtime 1.24, OpenVINO 2026.4 and the TensorRT 10 parsers all take 20."""
LEAST_TRACED = 2
"""torch.export treats a traced size of 0 or 1 as a constant."""
SAID = 900
Bind = Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def bind(module: nn.Module, specs: tuple[TensorSpec, ...]) -> Bind:
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


def run_module(module: nn.Module, specs: tuple[TensorSpec, ...], outputs: list[str], batch: Batch) -> dict[str, np.ndarray]:
    """The module's outputs by name, in the order in which it returns them. Raises ModelError as `call` does."""
    import torch

    with torch.no_grad():
        found = call(module, bind(module, specs), outputs, {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()})
    return {name: tensor.numpy() for name, tensor in found.items()}


def call(module: nn.Module, bound: Bind, outputs: list[str], inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The module's output tensors by name; raises ModelError when it returns another number of tensors than `outputs` names."""
    import torch

    arguments, named = bound(inputs)
    leaves = torch.utils._pytree.tree_leaves(module(*arguments, **named))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(leaves) or len(leaves) != len(outputs):
        got = f"{len(leaves)} outputs: {', '.join(type(leaf).__name__ for leaf in leaves)}"
        raise ModelError("The module returns other outputs than declared", where="model.outputs", expected=", ".join(outputs), got=got)
    return dict(zip(outputs, tensors, strict=True))


def trace(
    module: nn.Module, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], outputs: list[str], rows: Batch
) -> tuple[onnx.ModelProto, str, str | None]:
    """The exporter's graph as it comes, the exporter's name, and why it was not torch.export, or null.

    Every axis of `shapes` that has a range is dynamic. TorchScript records what one run did: a Python decision on a value or a size would be fixed
    for good, so its own warning of that refuses. Raises ModelError with the reasons of both.
    """
    bound = bind(module, specs)
    sizes = {name: min(max(axis.opt, LEAST_TRACED), axis.max) for name, axis in shapes.items()}
    batch = fit(rows, specs, sizes)
    try:
        graph = _by_torch_export(module, bound, specs, shapes, outputs, batch)
        exporter, fallback = f"torch {package_version('torch')} dynamo, onnxscript {package_version('onnxscript')}", None
    except Exception as error:  # torch raises many kinds; all mean that this module cannot be exported as declared
        fallback = _cause(error)
        try:
            graph = _by_torchscript(module, bound, specs, shapes, outputs, batch)
        except Exception as second:  # the same
            raise _refused(shapes, fallback, _cause(second)) from error
        exporter = f"torch {package_version('torch')} torchscript, onnxscript {package_version('onnxscript')}"
    _check_ports(graph, specs, shapes, outputs)
    return graph, exporter, fallback


def _by_torch_export(
    module: nn.Module, bound: Bind, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], outputs: list[str], batch: Batch
) -> onnx.ModelProto:
    import torch

    dims = {name: torch.export.Dim(name, min=axis.min, max=axis.max) for name, axis in shapes.items() if axis.min < axis.max}
    dynamic = {spec.name: {place: dims[axis] for place, axis in enumerate(spec.shape) if axis in dims} for spec in specs}
    arguments, named = bound({name: torch.from_numpy(array) for name, array in batch.items()})
    positional_dynamic, named_dynamic = bound(dynamic)
    with _quiet():
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
    return program.model_proto


def _by_torchscript(
    module: nn.Module, bound: Bind, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], outputs: list[str], batch: Batch
) -> onnx.ModelProto:
    """Traced, with BatchNorm folded and shared weights found again by onnxscript's optimizer, as it does for torch.export."""
    import onnx
    import onnxscript.optimizer
    import torch

    dynamic = {
        spec.name: names
        for spec in specs
        if (names := {place: axis for place, axis in enumerate(spec.shape) if isinstance(axis, str) and shapes[axis].min < shapes[axis].max})
    }
    first = str(specs[0].shape[0])
    dynamic |= {name: {0: first} for name in outputs if shapes[first].min < shapes[first].max}
    arguments, named = bound({name: torch.from_numpy(array) for name, array in batch.items()})
    stream = io.BytesIO()
    with _quiet(), warnings.catch_warnings():
        warnings.filterwarnings("error", category=torch.jit.TracerWarning)
        torch.onnx.export(
            module,
            arguments,
            stream,
            kwargs=named,
            dynamo=False,
            opset_version=OPSET,
            input_names=[spec.name for spec in specs],
            output_names=outputs,
            dynamic_axes=dynamic,
        )
    return onnxscript.optimizer.optimize(onnx.load_from_string(stream.getvalue()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without "torchvision is not installed", progress on standard output and advice to the reader of warnings."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:SAID]}"


def _refused(shapes: Mapping[str, AxisRange], first: str, second: str) -> ModelError:
    after = "remove what fixes the axis (a reshape to a number, a Python branch on a size), or narrow model.shapes in params.yaml"
    if "No ONNX function found" in first or "UnsupportedOperatorError" in second:
        after = "replace the operator that is named, or compute it outside the model (in data.preprocess or behind the outputs)"
    elif "TracerWarning" in second or "data-dependent" in first:
        after = "write the branch on values as torch.where, or move it out of the model"
    return ModelError(
        "The model cannot be exported with the declared axes",
        where=f"model.shapes {', '.join(f'{name} {axis.min} to {axis.max}' for name, axis in shapes.items())}",
        expected="a module that torch.export, or else TorchScript, traces with these axes dynamic",
        got=f"torch.export: {first}; TorchScript: {second}",
        next=after,
    )


def _check_ports(graph: onnx.ModelProto, specs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], outputs: list[str]) -> None:
    import onnx

    weights = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value for value in graph.graph.input if value.name not in weights]
    if [value.name for value in graph.graph.output] != outputs or [value.name for value in inputs] != [spec.name for spec in specs]:
        unused = sorted({spec.name for spec in specs} - {value.name for value in inputs})
        raise ModelError(
            "The exported graph has other inputs or outputs than params.yaml declares",
            where="model.inputs and model.outputs",
            expected=f"inputs {[spec.name for spec in specs]}, outputs {outputs}",
            got=f"inputs {[value.name for value in inputs]}, outputs {[value.name for value in graph.graph.output]}",
            next=f"take what `forward` does not use out of model.inputs: {', '.join(unused)}" if unused else "correct model.inputs and model.outputs",
        )
    for spec, value in zip(specs, inputs, strict=True):
        tensor = value.type.tensor_type
        dtype = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
        if dtype != spec.dtype:
            where = f"input {spec.name} of the exported graph"
            raise ModelError("An input has another dtype than declared", where=where, expected=spec.dtype, got=dtype, next="correct model.inputs")
        for axis, found in zip(spec.shape, tensor.shape.dim, strict=True):
            if isinstance(axis, str) and shapes[axis].min == shapes[axis].max:
                found.dim_param = axis  # exported as its one number: engines look for the name that was declared
            elif isinstance(axis, str) and found.dim_param != axis:
                raise not_followed(axis, f"input {spec.name} of the exported graph", f"axis {found.dim_param or found.dim_value}")
