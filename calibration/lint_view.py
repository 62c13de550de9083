"""A graph as the lint reads it: constants, producers and names over the whole model, bodies of If, Loop and Scan included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pipeline.macs import node_key
from pipeline.weights import place_of, value_of

if TYPE_CHECKING:
    import onnx


class View:
    """`nodes` in graph order; a tensor is looked up by name, whichever graph of the model holds it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        flat = onnx.inliner.inline_local_functions(model) if model.functions else model
        self.nodes = list(_nodes(flat.graph))
        self.names = {id(node): node_key(node, index) for index, node in enumerate(self.nodes)}
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.stored = {tensor.name: tensor for tensor in _initializers(flat.graph)}
        for node in self.nodes:
            if node.op_type == "Constant" and (values := [attribute.t for attribute in node.attribute if attribute.name == "value"]):
                self.stored[node.output[0]] = values[0]
        self._arrays: dict[str, np.ndarray] = {}

    def name(self, node: onnx.NodeProto) -> str:
        """The node's name, or `<operator>_<index>` where it has none."""
        return self.names[id(node)]

    def label(self, node: onnx.NodeProto) -> str:
        """The node for a reader: `conv1 (Conv)`, or by its output where it has no name: `Conv_3 (output y)`."""
        return f"{self.name(node)} ({node.op_type if node.name else f'output {node.output[0]}'})"

    def array(self, tensor: str) -> np.ndarray | None:
        """The value of a constant; None for anything that is computed."""
        if tensor not in self.stored:
            return None
        if place_of(self.stored[tensor]) is not None:
            return value_of(self.stored[tensor])
        if tensor not in self._arrays:
            self._arrays[tensor] = value_of(self.stored[tensor])
        return self._arrays[tensor]

    def parameters(self, node: onnx.NodeProto) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Scale and zero point of a QuantizeLinear or DequantizeLinear, None for one that is computed.

        A zero point that is left out is zeros: of uint8, as ONNX says, or of the codes' type.
        """
        scale = self.array(node.input[1]) if len(node.input) > 1 else None
        if len(node.input) > 2 and node.input[2]:
            return scale, self.array(node.input[2])
        return scale, None if scale is None else np.zeros(scale.shape, self._left_out(node))

    def _left_out(self, node: onnx.NodeProto) -> np.dtype:
        import onnx

        if node.op_type == "QuantizeLinear":
            asked = next((attribute.i for attribute in node.attribute if attribute.name == "output_dtype"), 0)
            return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(asked)) if asked else np.dtype(np.uint8)
        codes, producer = self.array(node.input[0]), self.producers.get(node.input[0])
        if codes is not None:
            return codes.dtype
        zero = self.parameters(producer)[1] if producer is not None and producer.op_type == "QuantizeLinear" else None
        return zero.dtype if zero is not None else np.dtype(np.uint8)

    def dequantizer(self, tensor: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that gives `tensor`, if one does."""
        node = self.producers.get(tensor)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def weight(self, node: onnx.NodeProto) -> np.ndarray | None:
        """What a QuantizeLinear or DequantizeLinear reads, where that is a constant (float weights or codes), through a QuantizeLinear in between."""
        found = self.array(node.input[0])
        producer = self.producers.get(node.input[0])
        if found is None and node.op_type == "DequantizeLinear" and producer is not None and producer.op_type == "QuantizeLinear":
            return self.array(producer.input[0])
        return found


def axis_of(node: onnx.NodeProto) -> int:
    """Along which axis the scales of a QuantizeLinear or DequantizeLinear run (1 where the node does not say)."""
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for inner in _graphs(graph):
        yield from inner.node


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for inner in _graphs(graph):
        yield from inner.initializer
