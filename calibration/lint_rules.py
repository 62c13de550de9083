"""What must hold at each QuantizeLinear, DequantizeLinear, multiplying node and stored tensor of a Q/DQ graph: one function a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from calibration.lint_view import View, axis_of
from calibration.scheme import channel_axis
from pipeline.macs import MULTIPLYING
from pipeline.strict import Record

if TYPE_CHECKING:
    import onnx

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
SHOWN = 4
"""How many channels or values a finding names."""
FEW_CODES = 8
"""A channel whose codes end below has less than four bits."""
BIAS_TOLERANCE = 1e-3
BIAS_LIMIT = 2**31 - 1
ERROR, WARNING = "error", "warning"
HALF = frozenset({"float16", "bfloat16"})
EIGHT_BITS = {"tensorrt": ("int8",), "cpu": ("uint8", "int8")}


@dataclasses.dataclass(frozen=True)
class Finding(Record):
    """One thing at one node, in some `channels` or all (empty): an `error` makes the model unfit for its scheme, a `warning` costs something."""

    rule: str
    severity: str
    node: str
    channels: tuple[int, ...]
    what: str
    expected: str
    got: str


def of_node(view: View, node: onnx.NodeProto, scheme: str) -> Iterator[Finding]:
    """Every finding at one node. A DequantizeLinear right behind a QuantizeLinear with the same parameters is judged with it."""
    if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
        before = view.producers.get(node.input[0])
        if before is not None and before.op_type == "QuantizeLinear" and before.input[1:] == node.input[1:]:
            return  # the same parameters, judged there
        scale, zero = view.parameters(node)
        if scale is None or zero is None:
            which = "scale" if scale is None else "zero point"
            expected, got = f"a {which} stored in the model", f"one that is computed: {', '.join(node.input[1:])}"
            yield _found(view, node, "not-constant", ERROR, f"A {which} is not a constant", expected, got)
            return
        yield from _scale(view, node, scale)
        yield from _codes(view, node, zero, scheme)
        yield from _shape(view, node, scale, scheme)
    elif node.op_type in MULTIPLYING:
        yield from _channel_axis(view, node)
        yield from one_scale(view, node)
        yield from _bias(view, node, scheme)


def _found(view: View, node: onnx.NodeProto, rule: str, severity: str, what: str, expected: str, got: str, channels: tuple[int, ...] = ()) -> Finding:
    return Finding(rule, severity, view.label(node), channels, what, expected, got)


def _scale(view: View, node: onnx.NodeProto, scale: np.ndarray) -> Iterator[Finding]:
    """Finite, positive, normal: each of the others gives zeros, infinities or a mirrored channel, in some runtimes without a word."""
    if str(scale.dtype) in HALF:
        what = "A scale is a 16-bit float, and so is what it gives"
        yield _found(view, node, "half-scale", WARNING, what, "float32: activations above 65504 overflow, and CPUs convert", str(scale.dtype))
    elif scale.dtype != np.float32:
        yield _found(view, node, "scale-type", ERROR, "A scale has the wrong type", "float32", str(scale.dtype))
        return
    flat = scale.astype(np.float64).reshape(-1)
    kinds = (
        ("not-finite-scale", "is not finite", ~np.isfinite(flat)),
        ("zero-scale", "is zero", flat == 0),
        ("negative-scale", "is negative", np.isfinite(flat) & (flat < 0)),
        ("subnormal-scale", "is subnormal, which runtimes flush to zero", (flat > 0) & (flat < SMALLEST_SCALE)),
    )
    for rule, what, bad in kinds:
        places = tuple(int(place) for place in np.flatnonzero(bad))
        if places:
            shown = ", ".join(f"channel {place}: {flat[place]:g}" for place in places[:SHOWN]) if scale.ndim else f"{flat[0]:g}"
            more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
            expected = "finite, positive, normal scales (a channel that is zero throughout takes any)"
            yield _found(view, node, rule, ERROR, f"A scale {what}", expected, shown + more, places if scale.ndim else ())


def _codes(view: View, node: onnx.NodeProto, zero: np.ndarray, scheme: str) -> Iterator[Finding]:
    """Type and zero point of the codes."""
    codes = view.array(node.input[0]) if node.op_type == "DequantizeLinear" else None
    kind, wanted = str((codes if codes is not None else zero).dtype), EIGHT_BITS[scheme]
    places = tuple(int(place) for place in np.flatnonzero(zero.reshape(-1))) if zero.ndim else ()
    point = ", ".join(str(value) for value in np.unique(zero)[:SHOWN])
    if kind == "int32" and scheme == "tensorrt":
        what = "A bias goes through DequantizeLinear, which TensorRT takes for 8 bits only"
        yield _found(view, node, "int32-bias", ERROR, what, "a float bias", "int32 codes")
    elif kind == "int32":
        if codes is not None and (over := np.flatnonzero(np.abs(codes.astype(np.int64)).reshape(-1) >= BIAS_LIMIT)).size:
            what, expected = "A bias is cut off at the end of int32", "codes within int32: a larger weight scale, or this bias in float"
            yield _found(view, node, "bias-overflow", ERROR, what, expected, f"{over.size} codes at the limit", tuple(map(int, over)))
        if zero.any():
            yield _found(view, node, "zero-point", ERROR, "A bias has a zero point", "0", point, places)
    elif kind not in wanted or (scheme == "tensorrt" and zero.any()):
        what = "TensorRT takes symmetric, signed codes only" if scheme == "tensorrt" else "The codes have a type that no INT8 kernel takes"
        expected = "int8 with zero points of 0" if scheme == "tensorrt" else " or ".join(wanted)
        yield _found(view, node, "codes", ERROR, what, expected, f"{kind} with zero point {point}", places)
    elif zero.dtype == np.int8 and zero.any() and view.weight(node) is not None:
        what = "A signed weight has a zero point, which costs the INT8 kernels time"
        yield _found(view, node, "weight-zero-point", WARNING, what, "symmetric weights: zero points of 0", point, places)


def _shape(view: View, node: onnx.NodeProto, scale: np.ndarray, scheme: str) -> Iterator[Finding]:
    """Scales a channel are for weights, and as many as there are channels."""
    if scale.size <= 1:
        return
    weight = view.weight(node)
    if weight is None:
        if node.op_type == "QuantizeLinear":
            severity = ERROR if scheme == "tensorrt" else WARNING
            what = "An activation has a scale for each channel, which INT8 convolutions and products cannot take"
            yield _found(view, node, "activation-scales", severity, what, "one scale for the tensor", f"{scale.size} scales")
        return
    axis = axis_of(node)
    if scale.ndim != 1 or not -weight.ndim <= axis < weight.ndim or weight.shape[axis] != scale.size:
        expected = f"one scale for each of the channels along axis {axis} of a weight of shape {list(weight.shape)}"
        yield _found(view, node, "scale-count", ERROR, "The scales do not fit the weight", expected, f"scales of shape {list(scale.shape)}")


def _channel_axis(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    """Along any other axis the scales cannot be taken out of the sum, so there is no INT8 kernel, and some runtimes read them as output channels."""
    dequantize = view.dequantizer(node.input[1]) if len(node.input) > 1 else None
    if dequantize is None:
        return
    scale, weight = view.parameters(dequantize)[0], view.weight(dequantize)
    if scale is None or weight is None or scale.size <= 1:
        return
    wanted, axis = channel_axis(node) % weight.ndim, axis_of(dequantize) % weight.ndim
    if axis != wanted:
        expected = f"scales along the output channels, axis {wanted} of the weight of a {node.op_type}"
        yield _found(view, dequantize, "channel-axis", ERROR, "The scales run along the wrong axis", expected, f"axis {axis}")


def one_scale(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    """Output channels of a weight whose largest code is small, because one scale serves channels of very different size."""
    dequantize = view.dequantizer(node.input[1]) if len(node.input) > 1 else None
    if dequantize is None:
        return
    scale, weight = view.parameters(dequantize)[0], view.weight(dequantize)
    if scale is None or weight is None or scale.size > 1 or weight.ndim < 2:
        return
    codes = weight.astype(np.float64) / (1 if weight.dtype.kind in "iu" else float(scale.reshape(-1)[0]))
    largest = np.abs(np.moveaxis(codes, channel_axis(node), 0).reshape(weight.shape[channel_axis(node)], -1)).max(axis=1)
    places = tuple(int(place) for place in np.flatnonzero(largest < FEW_CODES))
    if places:
        got = ", ".join(f"channel {place}: {largest[place]:.0f}" for place in places[:SHOWN])
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        what = "One scale serves channels of very different size, and leaves some a few codes"
        expected = "a scale for each output channel, so that each reaches 127"
        yield _found(view, node, "one-scale", WARNING, what, expected, f"largest code of {got}{more}, of 127", places)


def _bias(view: View, node: onnx.NodeProto, scheme: str) -> Iterator[Finding]:
    """The INT8 kernels add int32 codes to the accumulator: their scale must be input scale x weight scale (Jacob et al., 2018)."""
    if scheme != "cpu" or len(node.input) < 3:
        return
    parts = [view.dequantizer(name) for name in node.input[:3]]
    bias = parts[2]
    if any(part is None for part in parts) or bias is None or (codes := view.array(bias.input[0])) is None or codes.dtype != np.int32:
        return
    first, second, third = (view.parameters(part)[0] for part in parts if part is not None)
    if first is None or second is None or third is None or first.size != 1:
        return
    product, given = first.reshape(-1).astype(np.float64) * second.reshape(-1), third.reshape(-1).astype(np.float64)
    if product.size not in {1, given.size} or not (product > 0).all():
        return
    ratio = np.abs(given / product - 1)
    used = codes.reshape(-1) != 0 if codes.size == ratio.size else np.ones(ratio.size, bool)
    places = tuple(int(place) for place in np.flatnonzero(used & ~(ratio <= BIAS_TOLERANCE)))
    if places:
        expected = "the product of input and weight scale, which the INT8 kernels take for granted"
        got = f"channel {places[0]}: {given[places[0] % given.size]:g} where the product is {np.broadcast_to(product, given.shape)[places[0]]:g}"
        yield _found(view, bias, "bias-scale", ERROR, "A bias has another scale", expected, got, places)


def of_constants(view: View) -> Iterator[Finding]:
    """Stored floats that are not finite; an infinity outside a weight may be a mask's."""
    weights = {name for node in view.nodes if node.op_type in MULTIPLYING for name in node.input[1:]}
    readers = {name: node for node in reversed(view.nodes) for name in node.input}
    for name in view.stored:
        value = view.array(name)
        if value is None or value.dtype.kind != "f" or np.isfinite(value).all() or name not in readers:
            continue
        if readers[name].op_type in {"QuantizeLinear", "DequantizeLinear"} and name != readers[name].input[0]:
            continue  # a scale: said above
        nan = int(np.isnan(value).sum())
        severity = ERROR if nan or name in weights else WARNING
        got = f"{nan} NaN and {int(np.isinf(value).sum())} infinite values of {value.size} in {name}"
        yield _found(view, readers[name], "not-finite", severity, "A stored tensor is not finite", "finite numbers", got)
