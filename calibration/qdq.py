"""What a Q/DQ graph of the `tensorrt` scheme says, and whether it says what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.float_layers import NONE
from calibration.graph import tensor_shapes
from calibration.rounding.check import NOT_FITTED, verify_fitted
from calibration.rounding.reconstruct import Rounded
from calibration.scheme import Placement, broken, channel_axis, count
from pipeline.errors import QuantizeError, RangeError
from pipeline.records import ExportedModel, Ranges, TensorRange
from pipeline.weights import Values, value_of

if TYPE_CHECKING:
    import onnx

SCHEME_RULES = "symmetric S8, activations per tensor, convolution weights per channel"
LARGEST_HALF = 65504.0
LEVELS = 127
SAFE_SCALE = 1.0 / LEVELS
"""For a tensor or channel that is always zero: any positive scale is right, and zero is refused by every parser."""
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
LEAST_DIMENSION = 16
"""modelopt 0.47 leaves Gemm and MatMul with a smaller K or N, and most convolutions with fewer channels, in float: tensor cores need 16."""
WEIGHT_TOLERANCE = 1e-5


def activation_scale(entry: TensorRange) -> float:
    """The range's magnitude / 127 as float32, positive and normal also for a dead tensor.

    NVIDIA, "Achieving FP32 accuracy for INT8 inference using quantization aware training with TensorRT", 2021.
    Raises RangeError for a range that is not finite.
    """
    largest = entry.magnitude
    if not np.isfinite(largest):
        raise RangeError("A calibrated range is not finite", where="the ranges", expected="finite numbers", got=f"{entry.low} to {entry.high}")
    scale = float(np.float32(largest / LEVELS))
    return scale if scale >= SMALLEST_SCALE else float(np.float32(SAFE_SCALE))


def high_precision(ranges: Ranges) -> str:
    """What is not INT8, and why no 16-bit type: values of a float layer beyond float16's largest number would become infinite."""
    name, entry = max(ranges.tensors.items(), key=lambda item: item[1].seen_magnitude)
    if entry.seen_magnitude > LARGEST_HALF:
        return f"fp32 elsewhere: fp16 ends at {LARGEST_HALF:g}, and {name} reaches {entry.seen_magnitude:.4g}"
    return "fp32 elsewhere"


def describe(source: onnx.ModelProto, quantized: onnx.ModelProto, exported: ExportedModel, float_layers: Mapping[str, str] = NONE) -> Placement:
    """Count Q/DQ and sort the multiplying nodes of `quantized` into INT8 and float, with a reason for each of the latter: modelopt's, or ours."""
    shapes, originals = tensor_shapes(source), {node.name: node for node in source.graph.node}
    weights = {tensor.name for tensor in source.graph.initializer}
    typical = {name: axis.opt for name, axis in exported.shapes.items()}

    def reason(node: onnx.NodeProto, covered: list[bool]) -> str:
        original = originals.get(node.name)
        known = [shapes.get(name, ()) for name in original.input[:2]] if original is not None else []
        sizes = [tuple(typical.get(axis, 0) if isinstance(axis, str) else axis for axis in shape) for shape in known]
        return float_layers.get(node.name) or _reason(node, sizes, original is not None and original.input[1] in weights, covered)

    return count(quantized, reason)


def _reason(node: onnx.NodeProto, sizes: list[tuple[int, ...]], constant: bool, covered: list[bool]) -> str:
    if any(covered):
        return f"only its {'first' if covered[0] else 'second'} factor is quantized"
    if len(sizes) == 2 and all(len(shape) >= 2 for shape in sizes):
        first, second = sizes
        if node.op_type in {"Gemm", "MatMul"}:
            if 1 in (first[-2], second[-1], second[-2]):
                return f"a product of {first[-2:]} and {second[-2:]} has one row or column: modelopt leaves such vector products in float"
            if min(second[-2:]) < LEAST_DIMENSION:
                return f"its second factor is {second[-2:]}: modelopt leaves products with K or N below {LEAST_DIMENSION} in float"
        elif not constant:
            return "its weight is not a constant"
        elif min(second[:2]) < LEAST_DIMENSION:
            return f"its weight has {second[:2]} output and input channels: modelopt leaves such small convolutions in float"
    return "it stands in no pattern that modelopt's INT8 placement quantizes"


def verify(
    model: onnx.ModelProto, ranges: Ranges, placement: Placement, source: onnx.ModelProto | None = None, rounded: Mapping[str, Rounded] = NOT_FITTED
) -> None:
    """Raise QuantizeError unless the graph quantizes something and every scale is the one that was asked for.

    Checked on each QuantizeLinear and DequantizeLinear: constant float32 scale, finite and positive; int8 zero point of 0;
    an activation's scale equal to absmax / 127 of `ranges`; a weight's to absmax / 127 of the weight, channel by channel. The weights of
    `rounded` nodes are instead the int8 codes that were fitted, no farther than `MOST_MOVED` from those of `source`. No float16 or
    bfloat16 anywhere.
    """

    if not placement.quantized_nodes:
        reasons = "; ".join(f"{node.node} ({node.operator}): {node.reason}" for node in placement.float_nodes[:5])
        raise QuantizeError(
            "No operator was quantized",
            where="scheme tensorrt",
            expected="at least one Conv, ConvTranspose, Gemm or MatMul in INT8",
            got=reasons or "a model without such an operator",
            next="raise model.shapes.*.opt if the products are vectors, or release this model in float",
        )
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    _refuse_half(model)
    for node in model.graph.node:
        if node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
            continue
        if len(node.input) != 3 or node.input[1] not in constants or node.input[2] not in constants:
            raise broken(node, "a constant scale and a constant zero point", f"inputs {', '.join(node.input)}")
        scale, zero = (value_of(constants[name]) for name in node.input[1:])
        if scale.dtype != np.float32 or not np.isfinite(scale).all() or (scale <= 0).any():
            raise broken(node, "finite, positive float32 scales", f"{scale.dtype}, smallest {scale.min()}")
        if zero.dtype != np.int8 or zero.any():
            raise broken(node, "int8 zero points of 0 (symmetric)", f"{zero.dtype}, {np.unique(zero)[:4]}")
        if node.op_type == "DequantizeLinear":
            continue
        tensor = node.input[0]
        if tensor in constants:
            _verify_weight(node, value_of(constants[tensor]), scale)
        elif tensor not in ranges.tensors:
            raise broken(node, "a tensor with a calibrated range", tensor)
        elif scale.shape != () or float(scale) != activation_scale(ranges.tensors[tensor]):
            raise broken(node, f"scale {activation_scale(ranges.tensors[tensor])} from the calibrated ranges", str(scale))
    if source is not None:
        _verify_fitted(model, source, rounded)


def _verify_fitted(model: onnx.ModelProto, source: onnx.ModelProto, rounded: Mapping[str, Rounded]) -> None:
    values, floats = Values(model.graph.initializer), Values(source.graph.initializer)
    originals, producers = {node.name: node for node in source.graph.node}, {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.name in rounded:
            dequantize, weight = producers[node.input[1]], floats[originals[node.name].input[1]]
            if dequantize.op_type != "DequantizeLinear" or dequantize.input[0] not in values:
                raise broken(node, "a weight of constant int8 codes", f"{dequantize.op_type} of {dequantize.input[0]}")
            codes, scale = (values[name] for name in dequantize.input[:2])
            verify_fitted(dequantize, weight, codes, scale, channel_axis(node), rounded[node.name])


def _verify_weight(node: onnx.NodeProto, weight: np.ndarray, scale: np.ndarray) -> None:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    others = tuple(index for index in range(weight.ndim) if index != axis % weight.ndim) if scale.ndim else None
    largest = np.abs(weight).max(axis=others)
    used = largest / LEVELS >= SMALLEST_SCALE  # an all-zero channel takes any positive scale
    if largest.shape != scale.shape or not np.allclose(scale[used], largest[used] / LEVELS, rtol=WEIGHT_TOLERANCE, atol=0):
        worst = np.abs(scale - largest / LEVELS).max() if largest.shape == scale.shape else "other shape"
        raise broken(node, "absmax / 127 of the weight", f"scale of shape {scale.shape}, off by {worst}")


def _refuse_half(model: onnx.ModelProto) -> None:
    import onnx

    half = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    named = [tensor.name for tensor in model.graph.initializer if tensor.data_type in half]
    named += [node.name for node in model.graph.node if node.op_type == "Cast" and any(a.name == "to" and a.i in half for a in node.attribute)]
    if named:
        raise QuantizeError(
            "A 16-bit float type is in the Q/DQ model", where=named[0], expected="fp32 as the high-precision type", got=", ".join(named[:3])
        )
