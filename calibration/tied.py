"""Weights that a model uses twice: stored once by the export, and taken apart for quantizers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from pipeline.digests import sha256_bytes
from pipeline.weights import stored_bytes

if TYPE_CHECKING:
    import onnx

SMALLEST_TIED = 1024
"""Bytes from which equal weights are stored once."""


def tie(model: onnx.ModelProto) -> None:
    """Store weights that are equal, or each other transposed, once: exporters copy a tied weight where they fold its transpose.

    Vectors stay apart: equal biases are no tied ones, and each gets its own scale when it is quantized.
    """
    import onnx

    graph = model.graph
    large = [tensor for tensor in graph.initializer if stored_bytes(tensor) >= SMALLEST_TIED and len(tensor.dims) > 1]
    alike = Counter((tensor.data_type, *sorted(tensor.dims)) for tensor in large)
    kept: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    transposed: list[onnx.NodeProto] = []
    for tensor in large:
        if alike[tensor.data_type, *sorted(tensor.dims)] == 1:
            continue
        array = onnx.numpy_helper.to_array(tensor)
        key = (tensor.data_type, *array.shape, sha256_bytes(array.tobytes()))
        turned = (tensor.data_type, *array.shape[::-1], sha256_bytes(np.ascontiguousarray(array.T).tobytes())) if array.ndim == 2 else key
        if key in kept:
            same[tensor.name] = kept[key]
        elif turned in kept:
            transposed.append(onnx.helper.make_node("Transpose", [kept[turned]], [tensor.name], name=f"{tensor.name}.transposed", perm=[1, 0]))
        else:
            kept[key] = tensor.name
            continue
        graph.initializer.remove(tensor)
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
    for place, node in enumerate(transposed):
        graph.node.insert(place, node)


def untie(model: onnx.ModelProto) -> None:
    """Replace each Transpose of a stored weight by the transposed weight, in place: quantizers look for weights that are stored.

    A tied weight is then there twice in memory, once of them soon as INT8 codes. The new weight takes the name of the Transpose's output.
    """
    import onnx

    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in stored]:
        array = onnx.numpy_helper.to_array(stored[node.input[0]])
        order = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), None)
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array.transpose(order)), node.output[0]))
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
