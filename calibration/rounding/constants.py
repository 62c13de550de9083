"""Constants of a Q/DQ graph, also those behind a QuantizeLinear or a DequantizeLinear."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

KINDS = {"value": None, "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""Attributes of a Constant that hold its value, and the type of those that are no tensor."""
FOLDED = frozenset({"QuantizeLinear", "DequantizeLinear"})


def constants_of(model: onnx.ModelProto) -> tuple[dict[str, np.ndarray], list[onnx.NodeProto]]:
    """Values of all constants by name, and the nodes that give no constant."""
    import onnx

    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    left = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name in KINDS:
            kind, value = KINDS[node.attribute[0].name], onnx.helper.get_attribute_value(node.attribute[0])
            values[node.output[0]] = onnx.numpy_helper.to_array(value) if kind is None else np.array(value, kind)
        elif node.op_type in FOLDED and values.keys() >= set(node.input):
            values[node.output[0]] = _folded(node, [values[name] for name in node.input])
        else:
            left.append(node)
    return values, left


def _folded(node: onnx.NodeProto, inputs: list[np.ndarray]) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear as the ONNX specification has them, per tensor or per axis."""
    value, scale = inputs[:2]
    zero = inputs[2] if len(inputs) > 2 else np.zeros_like(scale, np.uint8)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [-1 if place == axis % value.ndim else 1 for place in range(value.ndim)] if scale.size > 1 else [1] * value.ndim
    scale, zero = scale.reshape(shape), zero.reshape(shape)
    if node.op_type == "DequantizeLinear":
        return (value.astype(np.float32) - zero.astype(np.float32)) * scale
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(zero.dtype)
