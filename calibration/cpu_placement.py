"""Which operators the scheme `cpu` quantizes: those for which ONNX Runtime has an INT8 kernel, and only between each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from calibration.float_layers import NONE
from calibration.graph import mask_nodes, tensor_shapes
from calibration.scheme import channel_axis
from pipeline.macs import MULTIPLYING

if TYPE_CHECKING:
    import onnx

CHAINED = frozenset({"Conv", "Gemm"})
"""Their output is quantized too, so that the next operator starts from 8 bits. A MatMul's stays float: its bias is an Add of its own, and
attention scores need the range."""
BETWEEN = frozenset(
    {"Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu", "Reshape", "Resize",
     "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)  # fmt: skip
"""Quantized where every float input comes out of a quantized operator; elsewhere Q/DQ around them would only add noise and time."""
ALL_INPUTS = frozenset({"Add", "Concat", "Mul"})


@dataclasses.dataclass(frozen=True)
class Plan:
    """`nodes`: names of the nodes to quantize. `refused`: multiplying nodes that stay in float, and why.

    `by_tensor`: weights with one scale for all channels.
    """

    nodes: tuple[str, ...]
    refused: dict[str, str]
    by_tensor: frozenset[str]


def place(model: onnx.ModelProto, float_layers: Mapping[str, str] = NONE) -> Plan:
    """Walk the graph once, in its order; `float_layers` are left out, for the reasons they give. Node names must be unique."""
    import onnx

    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    outputs = {value.name for value in model.graph.output}
    ranks = {name: len(shape) for name, shape in tensor_shapes(model).items()}
    masks = set(mask_nodes(model))
    refused = {node.name: reason for node in model.graph.node if node.op_type in MULTIPLYING and (reason := _refusal(node, weights))}
    refused |= float_layers
    refused |= _shared(model, weights, refused)
    inside: set[str] = set()
    nodes, by_tensor = [], set()
    for node in model.graph.node:
        if node.op_type in MULTIPLYING:
            if node.name in refused:
                continue
            nodes.append(node.name)
            if node.op_type == "MatMul" and ranks.get(node.input[1]) != 2:
                by_tensor.add(node.input[1])
            if node.op_type in CHAINED:
                inside.update(node.output)
        elif node.op_type in BETWEEN and node.name not in masks and not outputs.intersection((*node.output, node.input[0])):
            wanted = node.input if node.op_type in ALL_INPUTS else node.input[:1]
            if inside.issuperset(wanted):
                nodes.append(node.name)
                inside.update(node.output)
    return Plan(tuple(nodes), refused, frozenset(by_tensor & weights.keys()))


def _shared(model: onnx.ModelProto, weights: Collection[str], refused: Collection[str]) -> dict[str, str]:
    """Nodes whose weight something in float reads as well (an embedding, say): as codes it would stand in the file a second time."""
    floats: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        takes = node.input[1] if node.op_type in MULTIPLYING and node.name not in refused else None
        floats |= {name: node for name in node.input if name in weights and name != takes}
    return {
        node.name: f"its weight is tied to {(other := floats[node.input[1]]).name} ({other.op_type}), which stays in float"
        for node in model.graph.node
        if node.op_type in MULTIPLYING and node.name not in refused and node.input[1] in floats
    }


def _refusal(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> str | None:
    """Why a multiplying node has no INT8 kernel in ONNX Runtime on a CPU, or None."""
    if node.op_type == "ConvTranspose":
        return "ONNX Runtime has no INT8 kernel for ConvTranspose on a CPU"
    if node.input[0] in weights:
        return "its first factor is a constant, which the INT8 kernels take as an activation only"
    if node.op_type != "MatMul" and node.input[1] not in weights:
        return "its weight is not a constant"
    if len(node.input) > 2 and node.input[2] and node.input[2] not in weights:
        return "its bias is not a constant"
    if node.op_type == "Gemm":
        attributes = {attribute.name: attribute.f or attribute.i for attribute in node.attribute}
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA", 0):
            return "its alpha, beta or transA is not the default, which ONNX Runtime's quantizer gets wrong"
        if len(node.input) > 2 and list(weights[node.input[2]].dims) != [weights[node.input[1]].dims[channel_axis(node)]]:
            return "its bias is no vector of one value a channel"
    return None
