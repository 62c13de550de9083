"""Rounded weights into a Q/DQ graph, as codes and scales: a tool that rounds again would find others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.rounding.layers import layers_of
from calibration.rounding.reconstruct import Rounded
from pipeline.weights import folder_of, tensor_of

if TYPE_CHECKING:
    import onnx

LARGEST_BIAS = 2**31 - 1


def written(source: onnx.ModelProto, quantized: onnx.ModelProto, rounded: Mapping[str, Rounded]) -> onnx.ModelProto:
    """A copy of `quantized` with the codes, scales and biases of `rounded`.

    A weight is an int8 constant behind one DequantizeLinear, also where it was a float one behind a QuantizeLinear. A bias stays what it
    was: int32 at the product of both scales, or float.
    """
    copy = type(quantized)()
    copy.CopyFrom(quantized)
    graph, folder = copy.graph, folder_of(quantized)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}

    def put(name: str, value: np.ndarray) -> None:
        tensor = tensor_of(value, name, folder)
        if name in constants:
            constants[name].CopyFrom(tensor)
        else:
            graph.initializer.append(tensor)

    for layer in layers_of(source, quantized):
        if layer.name not in rounded:
            continue
        result, dequantize = rounded[layer.name], producers[layer.weight[1]]
        if (quantize := producers.get(dequantize.input[0])) is not None:
            graph.node.remove(quantize)
            dequantize.input[0] = f"{layer.weight[1]}_codes"
        put(dequantize.input[0], result.codes)
        put(dequantize.input[1], result.scale)
        put(dequantize.input[2], np.zeros(len(result.scale), np.int8))
        if layer.bias is None or result.bias is None:
            continue
        if (restored := producers.get(layer.bias[1])) is None:
            put(layer.bias[1], result.bias.astype(np.float32))
            continue
        step = np.float32(layer.step) * result.scale
        codes = np.clip(np.rint(result.bias / step.astype(np.float64)), -LARGEST_BIAS, LARGEST_BIAS)
        put(restored.input[0], codes.astype(np.int32))
        put(restored.input[1], step)
    _drop_unused(graph)
    return copy


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
