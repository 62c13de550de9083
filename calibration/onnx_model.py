"""An ONNX file as it comes from anywhere: read whole with its side files, and described by its inputs, outputs and axes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline import weights
from pipeline.errors import ConfigError, ModelError
from pipeline.records import ExportedModel
from pipeline.side_files import verify_side_files
from pipeline.tensors import AxisRange, TensorSpec
from pipeline.weights import attach, bytes_of, lean

if TYPE_CHECKING:
    import onnx

BATCH = "batch"
"""The name of a first axis that has none."""


@dataclasses.dataclass(frozen=True)
class Described:
    """Inputs and outputs of a graph. A named axis is dynamic; the first axis of every input that has one carries one name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def batch_axis(self) -> int | str | None:
        """Name or size of the first axis that all inputs share; None where they share none."""
        first = {spec.shape[0] if spec.shape else None for spec in self.inputs}
        return next(iter(first)) if len(first) == 1 else None

    @property
    def axes(self) -> tuple[str, ...]:
        """The named axes of the inputs, in order."""
        return tuple(dict.fromkeys(axis for spec in self.inputs for axis in spec.shape if isinstance(axis, str)))


def read_model(path: Path) -> onnx.ModelProto:
    """The model with its weights inside, wherever the file keeps them.

    Raises ModelError for a file that is no ONNX model, and Refused for a side file that is missing, lies elsewhere, or is not the one that
    the model's own record names.
    """
    import onnx

    model = _read(path)
    if verify_side_files(path, model):
        onnx.load_external_data_for_model(model, str(path.parent))
    return model


def read_lean(path: Path, folder: Path) -> onnx.ModelProto:
    """As `read_model`; with more than `weights.HELD` bytes of weights a lean graph, whose files are in the scratch `folder`."""
    import onnx

    model = _read(path)
    beside = verify_side_files(path, model)
    if bytes_of(model) > weights.HELD:
        if beside:
            attach(model, path.parent, folder)
        return lean(model, folder)
    if beside:
        onnx.load_external_data_for_model(model, str(path.parent))
    return model


def _read(path: Path) -> onnx.ModelProto:
    import onnx

    if not path.is_file():
        raise ModelError("There is no such model", where=str(path), expected="an ONNX file", got="no file", next="check the path")
    try:
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node:
            raise ValueError("no graph with nodes in it")
    except Exception as error:  # OSError, or protobuf's DecodeError, which has no public home
        raise ModelError(
            "A model cannot be read", where=str(path), expected="an ONNX file", got=f"{type(error).__name__}: {error}",
            next="export or copy the model again: the file is cut short, or no ONNX",
        ) from error  # fmt: skip
    return model


def describe(model: onnx.ModelProto) -> Described:
    """Inputs and outputs. Dynamic axes without a name get one, in place: `batch` (or what the first input calls it), others `<tensor>_<place>`.

    Raises ModelError for an input or output that is no tensor of numbers or has no rank.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if not inputs or not graph.output:
        raise ModelError("The model has no input or no output", where="graph", expected="at least one of each", got=f"{len(inputs)} inputs")
    batch = next((axis.dim_param for value in inputs for axis in value.type.tensor_type.shape.dim[:1] if axis.dim_param), BATCH)
    renamed: dict[str, str] = {}
    for value in inputs:
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.HasField("dim_value"):
                continue
            name = batch if place == 0 else axis.dim_param or f"{value.name}_{place}"
            if axis.dim_param:
                renamed[axis.dim_param] = name
            axis.dim_param = name
    for value in (*graph.value_info, *graph.output):
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if not axis.HasField("dim_value"):
                axis.dim_param = renamed.get(axis.dim_param, axis.dim_param) or (batch if place == 0 else f"{value.name}_{place}")
    return Described(tuple(_spec(value, "input") for value in inputs), tuple(_spec(value, "output") for value in graph.output))


def _spec(value: onnx.ValueInfoProto, kind: str) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"An {kind} is no tensor of numbers", where=f"{kind} {value.name}", expected="a tensor", got=str(value.type)[:100])
    if kind == "input" and not tensor.HasField("shape"):
        raise ModelError(f"An {kind} has no shape", where=f"{kind} {value.name}", expected="a rank, with sizes or names", got="no shape")
    axes = tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in tensor.shape.dim)
    return TensorSpec(value.name, str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))), axes)


def axis_ranges(found: Described, sizes: Mapping[str, int], *, batch: AxisRange) -> dict[str, AxisRange]:
    """A range for each named axis: `batch` for the first one, the one size that `sizes` gives for every other.

    Raises ConfigError for an axis without a size and for a size of an axis that does not exist.
    """
    if unknown := sorted(set(sizes) - set(found.axes)):
        raise ConfigError(
            "A size is given for an axis that the model does not have", where="--size", expected=", ".join(found.axes) or "no axis",
            got=", ".join(unknown), next="correct --size",
        )  # fmt: skip
    ranges = {}
    for axis in found.axes:
        if axis in sizes:
            ranges[axis] = AxisRange(sizes[axis], sizes[axis], sizes[axis])
        elif axis == found.batch_axis:
            ranges[axis] = batch
        else:
            raise ConfigError(
                "A dynamic axis needs a size",
                where=f"axis {axis} of input {next(spec.name for spec in found.inputs if axis in spec.shape)}",
                expected="a size to run the model at",
                got="none",
                next=f"add --size {axis}=N",
            )
    return ranges


def as_exported(model: onnx.ModelProto, sha256: str, found: Described, shapes: Mapping[str, AxisRange]) -> ExportedModel:
    """The record that a model would have had from `export`, for functions that ask for one; a static first axis is named `batch`.

    `found` and `shapes` are what `describe` and `axis_ranges` gave. Raises ModelError where the inputs share no first axis: there are no rows then.
    """
    first = found.batch_axis
    if first is None:
        raise ModelError(
            "The inputs do not share a batch axis",
            where="inputs",
            expected="one first axis for all of them",
            got=", ".join(f"{spec.name} {list(spec.shape)}" for spec in found.inputs),
            next="export the model with the batch as the first axis of every input",
        )
    inputs, outputs, ranges = found.inputs, found.outputs, dict(shapes)
    if isinstance(first, int):
        name = next(name for name in (BATCH, *(f"{BATCH}_{number}" for number in range(2, 99))) if name not in ranges)
        ranges[name] = AxisRange(first, first, first)
        inputs = tuple(dataclasses.replace(spec, shape=(name, *spec.shape[1:])) for spec in inputs)
        outputs = tuple(dataclasses.replace(spec, shape=(name, *spec.shape[1:])) if spec.shape[:1] == (first,) else spec for spec in outputs)
    return ExportedModel(
        onnx_sha256=sha256,
        checkpoint_sha256="",
        factory="",
        exporter=f"{model.producer_name or 'unknown'} {model.producer_version}".strip(),
        opset=opset(model),
        inputs=inputs,
        outputs=outputs,
        shapes=ranges,
        parity=(),
        macs=0,
        operators=dict(sorted(Counter(node.op_type for node in model.graph.node).items())),
    )


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that the model is written in."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)
