"""What every Q/DQ scheme does around its own placement: bind to the ranges, count what is in INT8 and what in float."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.digests import sha256_file
from pipeline.errors import QuantizeError, RangeError
from pipeline.macs import MULTIPLYING, node_key
from pipeline.records import ExportedModel, FloatNode, Ranges
from pipeline.weights import value_of

if TYPE_CHECKING:
    import onnx

Reason = Callable[["onnx.NodeProto", list[bool]], str]
"""Why a multiplying node of the Q/DQ graph is in float, given which of its two factors are dequantized."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where Q/DQ stand: nodes that multiply with both factors dequantized, and those that stay in float."""

    quantize_linear: int
    dequantize_linear: int
    quantized_nodes: tuple[str, ...]
    float_nodes: tuple[FloatNode, ...]


def bound(float_model: Path, exported: ExportedModel, ranges: Ranges) -> None:
    """Raise RangeError unless file, export record and ranges are of one model."""
    found = sha256_file(float_model)
    if found != exported.onnx_sha256 or ranges.onnx_sha256 != exported.onnx_sha256:
        raise RangeError(
            "The ranges were taken on another model",
            where=str(float_model),
            expected=f"ranges and file of model {exported.onnx_sha256}",
            got=f"file {found}, ranges of {ranges.onnx_sha256}",
            next="run `dvc repro ranges`",
        )


def count(quantized: onnx.ModelProto, reason: Reason) -> Placement:
    """Count Q/DQ and sort the multiplying nodes of `quantized` into INT8 and float, with a reason for each of the latter."""
    producers = {name: node.op_type for node in quantized.graph.node for name in node.output}
    operators = Counter(node.op_type for node in quantized.graph.node)
    inside, outside = [], []
    for index, node in enumerate(quantized.graph.node):
        if node.op_type in MULTIPLYING:
            covered = [producers.get(name) == "DequantizeLinear" for name in node.input[:2]]
            if all(covered):
                inside.append(node_key(node, index))
            else:
                outside.append(FloatNode(node_key(node, index), node.op_type, reason(node, covered)))
    return Placement(operators["QuantizeLinear"], operators["DequantizeLinear"], tuple(inside), tuple(outside))


def zero_channels(model: onnx.ModelProto, nodes: Collection[str]) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """`{weight: (channel axis, channels, those that are zero throughout)}` for the weights of the named nodes that have such channels."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.name not in nodes or node.op_type not in MULTIPLYING or node.input[1] not in weights:
            continue
        weight, axis = value_of(weights[node.input[1]]), channel_axis(node)
        zero = np.flatnonzero(~np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).any(axis=1))
        if len(zero):
            found[node.input[1]] = (axis, weight.shape[axis], tuple(int(index) for index in zero))
    return found


def channel_axis(node: onnx.NodeProto) -> int:
    """Which axis of a multiplying node's weight is its output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 1
    return 1 if node.op_type == "ConvTranspose" else -1


def broken(node: onnx.NodeProto, expected: str, got: str) -> QuantizeError:
    """The refusal of a Q/DQ graph at one of its nodes."""
    return QuantizeError("The Q/DQ model is not what was asked for", where=f"node {node.name} ({node.op_type})", expected=expected, got=got)
