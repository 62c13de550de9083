"""Operators of transformers that no scheme quantizes, and why: they multiply next to nothing, and eight bits would cost accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.records import FloatNode

if TYPE_CHECKING:
    import onnx

EMBEDDING = "an embedding: a look-up multiplies nothing, so eight bits would cost accuracy and gain no time"
CURVE = "its curve around zero is finer than eight bits of its whole range, and no CPU runtime has an INT8 kernel for it"
NORM = "it divides by the spread of each row: eight bits would scale whole rows wrongly"
SOFTMAX = "its exponentials span more than eight bits hold"
REASONS = {
    "Erf": CURVE,
    "Gelu": CURVE,
    "GroupNormalization": NORM,
    "InstanceNormalization": NORM,
    "LayerNormalization": NORM,
    "LogSoftmax": SOFTMAX,
    "RMSNormalization": NORM,
    "Softmax": SOFTMAX,
}


def kept_in_float(model: onnx.ModelProto) -> tuple[FloatNode, ...]:
    """Nodes of a Q/DQ graph that compute in float by choice, in graph order; node names must be there."""
    tables = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) >= 2}
    return tuple(
        FloatNode(node.name, node.op_type, REASONS.get(node.op_type, EMBEDDING))
        for node in model.graph.node
        if node.op_type in REASONS or (node.op_type == "Gather" and node.input[0] in tables)
    )
