"""Weights that ONNX Runtime's quantizer need not hold: it sees the extremes of each channel, and codes are made a layer at a time.

`QDQQuantizer` holds every weight several times over (it copies the model, writes it, and reads it again). A scale is absmax / 127 of a channel, or
what the bias asks for, so a stand-in of two values a channel, the smallest and the largest, gives the same one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from calibration.scheme import channel_axis
from pipeline.macs import MULTIPLYING
from pipeline.side_files import light
from pipeline.weights import Values, assign, bare, folder_of, place_of, tensor_of, value_of

if TYPE_CHECKING:
    import onnx

CODES = "_quantized"
"""What ONNX Runtime appends to a weight's name."""


def sketch(source: onnx.ModelProto, nodes: Collection[str]) -> tuple[onnx.ModelProto, frozenset[str]]:
    """A copy of a lean graph for `QDQQuantizer`, which is to quantize the named `nodes`; and the weights that are stand-ins there.

    What else these nodes read is held; what nobody quantizes stays in its file. Shapes are inferred here, since stand-ins have others.
    """
    import onnx
    from onnxruntime.quantization.quant_utils import add_infer_metadata

    axes = {node.input[1]: channel_axis(node) for node in source.graph.node if node.name in nodes and node.op_type in MULTIPLYING}
    others = {
        name
        for node in source.graph.node
        for place, name in enumerate(node.input)
        if not (place == 1 and node.name in nodes and node.op_type in MULTIPLYING)
    }
    held = {name for node in source.graph.node if node.name in nodes for name in node.input}
    copy, instead = bare(source), set()
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(onnx.shape_inference.infer_shapes(light(source)).graph.value_info)
    for tensor in source.graph.initializer:
        if tensor.name in axes and tensor.name not in others and place_of(tensor) is not None:
            value = value_of(tensor)
            rest = tuple(place for place in range(value.ndim) if place != axes[tensor.name] % value.ndim)
            extremes = np.concatenate([value.min(axis=rest, keepdims=True), value.max(axis=rest, keepdims=True)], axis=rest[0])
            copy.graph.initializer.append(tensor_of(extremes, tensor.name, None))
            instead.add(tensor.name)
        elif tensor.name in held and place_of(tensor) is not None:
            copy.graph.initializer.append(tensor_of(value_of(tensor), tensor.name, None))
        else:
            copy.graph.initializer.append(tensor)
    add_infer_metadata(copy)
    return copy, frozenset(instead)


def fill(quantized: onnx.ModelProto, source: onnx.ModelProto, instead: Collection[str]) -> None:
    """Put the codes of the weights of `source` in the place of those of stand-ins, in files of its folder."""
    from onnxruntime.quantization.quant_utils import quantize_onnx_initializer

    floats, values = {tensor.name: tensor for tensor in source.graph.initializer}, Values(quantized.graph.initializer)
    for node in quantized.graph.node:
        name = node.input[0].removesuffix(CODES) if node.op_type == "DequantizeLinear" else ""
        if name not in instead:
            continue
        scale, zero = (values[parameter] for parameter in node.input[1:])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None) if scale.ndim else None
        kind = values.stored[node.input[0]].data_type
        codes = quantize_onnx_initializer(tensor_of(value_of(floats[name]), name, None), kind, zero, scale, axis)
        assign(values.stored[node.input[0]], value_of(codes), folder_of(source))
