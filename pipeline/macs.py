"""Multiply-accumulates of an ONNX graph, node by node, from inferred shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.errors import ModelError

if TYPE_CHECKING:
    import onnx

MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The operators that carry a network's arithmetic; the rest counts as free, as is customary."""


def macs_by_node(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, int]:
    """Multiply-accumulates of each Conv, ConvTranspose, Gemm and MatMul node, in graph order.

    `sizes` gives every named axis of the model's inputs a size (`{"batch": 1}` counts one row). A weight may be an
    initializer or come through DequantizeLinear: only shapes are read, so float and Q/DQ models count alike. A node
    without a name is keyed `<operator>_<index in the graph>`. Raises ModelError for an axis without a size, a shape
    that inference cannot find, or a multiplying node inside If, Loop or Scan.
    """
    import onnx

    static = onnx.inliner.inline_local_functions(model) if model.functions else _copy(model)
    _fix_axes(static, sizes)
    try:
        shapes = _shapes(onnx.shape_inference.infer_shapes(static, strict_mode=True, data_prop=True).graph)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError("The shapes of an ONNX graph do not fit together", where=f"at sizes {dict(sizes)}", got=str(error)) from error
    counts = {}
    for index, node in enumerate(static.graph.node):
        _refuse_hidden(node)
        if node.op_type in MULTIPLYING:
            counts[node_key(node, index)] = _node_macs(node, shapes)
    return counts


def node_key(node: onnx.NodeProto, index: int) -> str:
    """The node's name, or `<operator>_<index in the graph>` when it has none."""
    return str(node.name or f"{node.op_type}_{index}")


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = type(model)()
    copied.CopyFrom(model)
    return copied


def _fix_axes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Give the graph inputs their sizes and forget what was inferred for symbolic ones."""
    known = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in known:
            continue
        for position, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.HasField("dim_value"):
                continue
            if axis.dim_param not in sizes:
                raise ModelError(
                    "A model input has an axis without a size",
                    where=f"input {value.name}, axis {position} ({axis.dim_param or 'unnamed'})",
                    expected=f"one of the named axes {sorted(sizes)}",
                    got=axis.dim_param or "no name",
                )
            axis.dim_value = sizes[axis.dim_param]
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        axes = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(axis.HasField("dim_value") for axis in axes):
            shapes[value.name] = tuple(axis.dim_value for axis in axes)
    return shapes


def _node_macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    def shape(tensor: str) -> tuple[int, ...]:
        if tensor not in shapes:
            raise ModelError(
                "A shape is unknown, so multiply-accumulates cannot be counted",
                where=f"node {node.name or node.op_type}, tensor {tensor}",
                expected="a shape that ONNX shape inference finds",
                next="export the model with static inner shapes (no data-dependent Reshape before this node)",
            )
        return shapes[tensor]

    first, second = shape(node.input[0]), shape(node.input[1])
    if node.op_type == "ConvTranspose":  # every input element meets a whole (M / group, k...) filter
        return math.prod(first) * math.prod(second[1:])
    output = math.prod(shape(node.output[0]))
    if node.op_type == "Conv":
        return output * math.prod(second[1:])
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return output * (first[0] if transposed else first[1])
    return output * first[-1]


def _refuse_hidden(node: Any) -> None:
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            if inner.op_type in MULTIPLYING:
                raise ModelError(
                    "Multiply-accumulates inside a control-flow node cannot be counted",
                    where=f"node {node.name or node.op_type} ({node.op_type}), inner node {inner.name or inner.op_type}",
                    next="export the model without data-dependent control flow",
                )
            _refuse_hidden(inner)
