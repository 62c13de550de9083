"""Layers whose weight is a matrix of codes: found in a Q/DQ graph, and seen as that matrix with the patches it multiplies."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.rounding.constants import constants_of
from calibration.scheme import channel_axis

if TYPE_CHECKING:
    import onnx

MATRICES = frozenset({"Conv", "Gemm", "MatMul"})
BLOCK = 2**24
"""Weights: 128 MiB as float64, of which fitting holds a dozen."""
Window = tuple[int, int, int, int, int]
"""One spatial axis of a convolution: kernel, stride, dilation, padding before and after."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A Conv, Gemm or MatMul with a constant weight that the Q/DQ graph holds in 8 bits.

    `codes` is the quantized activation, each code worth `step * (code - zero)`; `output` is the result in the float graph, with its bias.
    `weight` and `bias` name the constants, first in the float, then in the Q/DQ graph (behind its DequantizeLinear). A MatMul's bias is
    that of the Add behind it.
    """

    name: str
    operator: str
    codes: str
    step: float
    zero: int
    output: str
    weight: tuple[str, str]
    bias: tuple[str, str] | None
    groups: int
    windows: tuple[Window, ...]
    rows_first: bool

    def matrix(self, weight: np.ndarray) -> np.ndarray:
        """`weight` as (groups, outputs of a group, inputs of a group): a row times a patch is an output."""
        rows = weight if self.rows_first else weight.T
        return rows.reshape(self.groups, len(rows) // self.groups, -1)

    def weight_of(self, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """`matrix` back in the weight's own `shape`."""
        rows = matrix.reshape(-1, matrix.shape[-1])
        return rows.reshape(shape) if self.rows_first else np.ascontiguousarray(rows.T)

    def positions(self, result: np.ndarray, most: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """At most `most` output positions of each row of `result`, drawn anew for each: one index array an axis but the channels'."""
        sizes = (len(result), *(result.shape[2:] if self.operator == "Conv" else result.shape[1:-1]))
        inside = int(np.prod(sizes[1:]))
        flat = np.arange(sizes[0])[:, None] * inside
        flat = flat + (np.arange(inside) if inside <= most else random.integers(0, inside, (sizes[0], most)))
        return np.unravel_index(flat.ravel(), sizes)

    def outputs_at(self, result: np.ndarray, at: tuple[np.ndarray, ...], rows: slice) -> np.ndarray:
        """The outputs `rows` of each group at positions `at`: (groups, outputs of a group, positions)."""
        values = np.moveaxis(result, 1, -1)[at] if self.operator == "Conv" else result[at]
        return np.ascontiguousarray(values.T.reshape(self.groups, -1, len(values))[:, rows])

    def blocks(self, shape: tuple[int, ...]) -> list[slice]:
        """The outputs of a layer in blocks of at most `BLOCK` weights, which are fitted one after the other; those of groups stay together."""
        outputs = shape[0 if self.rows_first else 1]
        most = outputs if self.groups > 1 else max(1, BLOCK * outputs // math.prod(shape))
        return [slice(start, min(start + most, outputs)) for start in range(0, outputs, most)]

    def of_rows(self, weight: np.ndarray, rows: slice) -> np.ndarray:
        """The part of a weight that gives the outputs `rows`."""
        return weight[rows] if self.rows_first else weight[:, rows]

    def patches_at(self, codes: np.ndarray, at: tuple[np.ndarray, ...]) -> np.ndarray:
        """What the matrix is multiplied with at positions `at`, from a quantized activation: (groups, positions, inputs of a group)."""
        if self.operator == "Conv":
            chosen = np.moveaxis(self._windows(codes), 1, len(at))[at]  # (positions, channels, *kernel)
            chosen = chosen.reshape(len(chosen), self.groups, -1).transpose(1, 0, 2)
        else:
            chosen = codes[at][np.newaxis]
        patches = chosen.astype(np.float32, order="C")
        patches -= np.float32(self.zero)
        patches *= np.float32(self.step)
        return patches

    def _windows(self, codes: np.ndarray) -> np.ndarray:
        """(N, C, *positions, *kernel), without a copy where nothing is padded."""
        pads = [(0, 0), (0, 0), *((before, after) for _, _, _, before, after in self.windows)]
        padded = np.pad(codes, pads, constant_values=self.zero) if any(map(any, pads)) else codes
        spans = tuple((kernel - 1) * dilation + 1 for kernel, _, dilation, _, _ in self.windows)
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(2, padded.ndim)))
        strides = (slice(None, None, stride) for _, stride, _, _, _ in self.windows)
        dilations = (slice(None, None, dilation) for _, _, dilation, _, _ in self.windows)
        return windows[(slice(None), slice(None), *strides, *dilations)]


def layers_of(source: onnx.ModelProto, quantized: onnx.ModelProto) -> tuple[Layer, ...]:
    """The layers of both graphs, in the Q/DQ graph's order: equal node names, a constant weight in the float and 8-bit codes in the other.

    Left out: a weight that several nodes read (tied weights stay tied, so no single layer may choose its codes).
    """
    floats, _ = constants_of(source)
    values, moving = constants_of(quantized)
    originals = {node.name: node for node in source.graph.node}
    activations = {node.output[0]: node for node in moving if node.op_type == "DequantizeLinear"}
    weights = {name for node in quantized.graph.node if node.op_type == "DequantizeLinear" for name in node.output if name in values}
    uses = Counter(name for node in source.graph.node for name in node.input)
    found = []
    for node in moving:
        original = originals.get(node.name)
        if original is None or node.op_type not in MATRICES or original.input[1] not in floats or node.input[1] not in weights:
            continue
        shape, dequantize = floats.shape(original.input[1]), activations.get(node.input[0])
        attributes = {attribute.name: _value(attribute) for attribute in node.attribute}
        if dequantize is None or uses[original.input[1]] > 1 or not _known(node.op_type, shape, values[dequantize.input[1]], attributes):
            continue
        output, bias = _bias(original, node, source, quantized, uses)
        found.append(
            Layer(
                name=node.name,
                operator=node.op_type,
                codes=dequantize.input[0],
                step=float(values[dequantize.input[1]]),
                zero=int(values[dequantize.input[2]]),
                output=output,
                weight=(original.input[1], node.input[1]),
                bias=bias,
                groups=attributes.get("group", 1),
                windows=_windows(shape[2:], attributes) if node.op_type == "Conv" else (),
                rows_first=channel_axis(node) == 0,
            )
        )
    return tuple(found)


def _known(operator: str, weight: tuple[int, ...], step: np.ndarray, attributes: dict[str, Any]) -> bool:
    """Whether patches and matrix describe the node: one step for the activation, explicit padding, plain factors."""
    if step.size != 1:
        return False
    if operator == "Conv":
        return attributes.get("auto_pad", b"NOTSET") in {b"NOTSET", b"VALID"}
    plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA", 0)
    return len(weight) == 2 and plain


def _bias(
    original: onnx.NodeProto, node: onnx.NodeProto, source: onnx.ModelProto, quantized: onnx.ModelProto, uses: Counter[str]
) -> tuple[str, tuple[str, str] | None]:
    """The float result with its bias, and the names of that in both graphs, if it is a constant that nothing else reads."""
    result = original.output[0]
    if node.op_type != "MatMul":
        alone = len(node.input) > 2 and node.input[2] and uses[original.input[2]] == 1
        return result, (original.input[2], node.input[2]) if alone else None
    added = [_added(source, result), _added(quantized, node.output[0])]
    if added[0] is None or added[1] is None or uses[added[0][1]] > 1:
        return result, None
    return added[0][0], (added[0][1], added[1][1])


def _added(model: onnx.ModelProto, product: str) -> tuple[str, str] | None:
    """The sum and the name of the vector that an Add, alone in reading `product`, adds to it."""
    vectors = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 1}
    readers = [node for node in model.graph.node if product in node.input]
    if len(readers) != 1 or readers[0].op_type != "Add" or product in {value.name for value in model.graph.output}:
        return None
    return next(((readers[0].output[0], name) for name in readers[0].input if name in vectors), None)


def _value(attribute: Any) -> Any:
    import onnx

    return onnx.helper.get_attribute_value(attribute)


def _windows(kernel: tuple[int, ...], attributes: dict[str, Any]) -> tuple[Window, ...]:
    axes = len(kernel)
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    pads = attributes.get("pads", [0] * 2 * axes)
    return tuple((kernel[i], strides[i], dilations[i], pads[i], pads[axes + i]) for i in range(axes))
