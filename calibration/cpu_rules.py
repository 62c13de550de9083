"""Whether a Q/DQ graph of the scheme `cpu` says what the ranges and the float weights imply: every scale, zero point, code and bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.rounding.check import NOT_FITTED, verify_fitted
from calibration.rounding.reconstruct import Rounded
from calibration.scheme import broken, channel_axis
from pipeline.errors import QuantizeError, RangeError
from pipeline.records import Ranges, TensorRange
from pipeline.weights import Values, declared, folder_of

if TYPE_CHECKING:
    import onnx

LEVELS, CODES = 127, 255
"""Largest weight code, and steps between the smallest and the largest activation code."""
SAFE_MAGNITUDE = 1.0
"""Stands for the absolute maximum of a weight channel that is zero throughout: scale 1 / 127."""
SHARING = frozenset({"AveragePool", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose output ONNX Runtime quantizes with their input's scale."""
OUTPUT_SUFFIX = "_QuantizeLinear_Input"
INT32_STEPS, BIAS_MARGIN = 2**32 - 2, 1.0001
"""ONNX Runtime raises a weight's scale until twice the bias, with this margin, fits into int32."""
TOLERANCE = 1e-4
ROWS_OF = 2**22
"""Weights that are compared at once: rows of so many."""


def activation_parameters(entry: TensorRange) -> tuple[float, float]:
    """Scale and exact (unrounded) zero point of a U8 tensor whose range is widened to hold 0; a dead tensor takes scale 1.

    Raises RangeError for a range that is not finite.
    """
    low, high = min(entry.low, 0.0), max(entry.high, 0.0)
    if not np.isfinite(high - low):
        raise RangeError("A calibrated range is not finite", where="the ranges", expected="finite numbers", got=f"{entry.low} to {entry.high}")
    scale = (high - low) / CODES
    return (scale, -low / scale) if scale >= np.finfo(np.float32).tiny else (1.0, 0.0)


def verify(source: onnx.ModelProto, quantized: onnx.ModelProto, ranges: Ranges, rounded: Mapping[str, Rounded] = NOT_FITTED) -> None:
    """Raise QuantizeError naming the first node whose parameters are not what `ranges` and the weights of `source` imply.

    Activations: scalar float32 scale, uint8 zero point, both from the tensor's own range, or its input's for an operator that only moves
    values. Weights: int8 codes within half a step of the float weights, scale absmax / 127 a channel (more only where an int32 bias
    needs it); those of `rounded` nodes instead what was fitted, no farther than `MOST_MOVED` from the float weights. Biases: int32, zero point 0,
    scale the product of both. The graph passes ONNX's own full check.
    """
    graph = _Graph(quantized)
    for node in quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            _verify_activation(graph, node, ranges)
    originals = {node.name: node for node in source.graph.node}
    values = _Graph(source).values
    for node in quantized.graph.node:
        if node.op_type in {"Conv", "Gemm", "MatMul"} and all(name in graph.dequantized for name in node.input[:2]):
            _verify_weight(graph, node, originals[node.name], values, rounded.get(node.name))
    _check(quantized)


class _Graph:
    """Constants, producers and DequantizeLinear nodes of a graph by tensor name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.values = Values(model.graph.initializer)
        self.producers = {name: node for node in model.graph.node for name in node.output}
        self.dequantized = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}

    def parameters(self, node: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point of a QuantizeLinear or DequantizeLinear node; scales must be constant, finite and positive."""
        if len(node.input) != 3 or not {*node.input[1:]} <= self.values.keys():
            raise broken(node, "a constant scale and a constant zero point", f"inputs {', '.join(node.input)}")
        scale, zero = self.values[node.input[1]], self.values[node.input[2]]
        if scale.dtype != np.float32 or not np.isfinite(scale).all() or (scale <= 0).any():
            raise broken(node, "finite, positive float32 scales", f"{scale.dtype}, smallest {scale.min()}")
        return scale, zero


def _verify_activation(graph: _Graph, node: onnx.NodeProto, ranges: Ranges) -> None:
    scale, zero = graph.parameters(node)
    tensor = node.input[0]
    if zero.dtype != np.uint8 or zero.shape or scale.shape:
        raise broken(node, "one scale and one uint8 zero point", f"{zero.dtype} of shape {zero.shape}")
    while (producer := graph.producers.get(tensor)) is not None and producer.op_type in SHARING and producer.input[0] in graph.dequantized:
        upstream = graph.producers[graph.dequantized[producer.input[0]].input[0]]
        if upstream.input[1] != node.input[1]:
            break
        tensor = upstream.input[0]
    name = tensor.removesuffix(OUTPUT_SUFFIX)
    if name not in ranges.tensors:
        raise broken(node, "a tensor with a calibrated range", name)
    wanted, exact = activation_parameters(ranges.tensors[name])
    if abs(float(scale) / wanted - 1) > TOLERANCE or abs(float(zero) - exact) > 0.5 + CODES * TOLERANCE:
        expected = f"scale {wanted:.9g} and zero point {exact:.2f} of {name} in the calibrated ranges"
        raise broken(node, expected, f"scale {float(scale):.9g}, zero point {int(zero)}")


def _verify_weight(graph: _Graph, node: onnx.NodeProto, original: onnx.NodeProto, floats: Mapping[str, np.ndarray], fitted: Rounded | None) -> None:
    """Codes and scales of the weight and the bias of one quantized node."""
    input_scale, _ = graph.parameters(graph.dequantized[node.input[0]])
    if original.input[1] not in floats:
        return
    weight, dequantize = floats[original.input[1]], graph.dequantized[node.input[1]]
    codes, (scale, zero) = graph.values[dequantize.input[0]], graph.parameters(dequantize)
    if codes.dtype != np.int8 or zero.dtype != np.int8 or zero.any():
        raise broken(dequantize, "int8 codes and zero points of 0", f"{codes.dtype} codes, zero points {np.unique(zero)[:4]}")
    axis = channel_axis(node) % weight.ndim
    wide = scale.reshape([-1 if place == axis else 1 for place in range(weight.ndim)]) if scale.ndim else scale
    bias = floats.get(original.input[2]) if len(original.input) > 2 else None
    if fitted is None:
        _verify_nearest(dequantize, weight, bias, axis, codes, scale, wide, input_scale)
    else:
        verify_fitted(dequantize, weight, codes, scale, channel_axis(node), fitted)
        bias = bias if fitted.bias is None else fitted.bias
    if bias is not None and len(node.input) < 3:
        _verify_added(graph, node, bias)
    elif bias is not None:
        _verify_bias(graph, node, bias, input_scale * scale)


def _verify_nearest(
    dequantize: onnx.NodeProto,
    weight: np.ndarray,
    bias: np.ndarray | None,
    axis: int,
    codes: np.ndarray,
    scale: np.ndarray,
    wide: np.ndarray,
    input_scale: np.ndarray,
) -> None:
    most = max(1, ROWS_OF * len(weight) // weight.size)
    for start in range(0, len(weight), most):
        rows = slice(start, start + most)
        step = wide[rows] if wide.shape[:1] == weight.shape[:1] else wide
        if (np.abs(weight[rows] - codes[rows] * step) > (0.5 + TOLERANCE * LEVELS) * step).any():
            raise broken(dequantize, "codes within half a step of the float weights", "codes further away")
    others = tuple(place for place in range(weight.ndim) if place != axis) if scale.ndim else None
    largest = np.maximum(weight.max(axis=others), -weight.min(axis=others)).astype(np.float64)
    wanted = np.where(largest > 0, largest, SAFE_MAGNITUDE) / LEVELS
    if bias is not None:
        needed = np.abs(bias.astype(np.float64)) if scale.ndim else np.abs(bias.astype(np.float64)).max()
        wanted = np.maximum(wanted, BIAS_MARGIN * 2 * needed / INT32_STEPS / input_scale)
    if not np.allclose(scale, wanted, rtol=TOLERANCE, atol=0):
        worst = float(np.abs(scale / wanted - 1).max())
        raise broken(dequantize, "absmax / 127 of each channel of the weight", f"scales off by up to {worst:.3g} of their value")


def _verify_bias(graph: _Graph, node: onnx.NodeProto, bias: np.ndarray, step: np.ndarray) -> None:
    dequantize = graph.dequantized.get(node.input[2])
    if dequantize is None:
        raise broken(node, "an int32 bias, which the INT8 kernels take", "a float bias")
    codes, (scale, zero) = graph.values[dequantize.input[0]], graph.parameters(dequantize)
    if codes.dtype != np.int32 or zero.any() or not np.allclose(scale, step, rtol=TOLERANCE, atol=0):
        raise broken(dequantize, "int32 codes at the product of input and weight scale", f"{codes.dtype} codes")
    if (np.abs(bias - codes * scale.astype(np.float64)) > (0.5 + TOLERANCE) * scale + TOLERANCE * np.abs(bias)).any():
        raise broken(dequantize, "codes within half a step of the float bias", "codes further away")


def _verify_added(graph: _Graph, node: onnx.NodeProto, bias: np.ndarray) -> None:
    """The bias of a MatMul, which an Add behind it holds in float."""
    added = [
        graph.values[name] for reader in graph.producers.values() if node.output[0] in reader.input for name in reader.input if name in graph.values
    ]
    if len(added) != 1 or not np.array_equal(added[0], bias.astype(np.float32)):
        raise broken(node, "the bias that was fitted in the Add behind it", "another")


def _check(model: onnx.ModelProto) -> None:
    import onnx

    try:
        onnx.checker.check_model(model if folder_of(model) is None else declared(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise QuantizeError(
            "The Q/DQ model is not valid ONNX", where="scheme cpu", expected="a model that onnx.checker accepts", got=str(error)
        ) from error
