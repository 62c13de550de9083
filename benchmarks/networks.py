"""A network of ResNet-50's shape as ONNX, in FP32, FP16 and INT8 (Q/DQ as TensorRT fuses it), with made-up weights: for speed, not for answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the bottleneck blocks of each stage, as in He et al. 2015, table 1."""
WIDEN, CLASSES = 4, 1000
ACTIVATION_SCALE = 0.05


class Writer:
    """Collects nodes and weights. With `int8` every convolution and the classifier take Q/DQ on activation and weight."""

    def __init__(self, int8: bool) -> None:
        self.int8, self.random = int8, np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, operator: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _pair(self, tensor: str, scale: np.ndarray, axis: int | None = None) -> str:
        given = [self.constant(f"{tensor}_scale", scale), self.constant(f"{tensor}_zero", np.zeros(scale.shape, np.int8))]
        attributes = {} if axis is None else {"axis": axis}
        return self.node(
            "DequantizeLinear", [self.node("QuantizeLinear", [tensor, *given], f"{tensor}_q", **attributes), *given], f"{tensor}_dq", **attributes
        )

    def weighted(self, name: str, tensor: str, shape: tuple[int, ...]) -> list[str]:
        """The two inputs of a layer: activation and weight (output channels first)."""
        value = (self.random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        weight = self.constant(f"{name}_w", value)
        if not self.int8:
            return [tensor, weight]
        scale = (np.abs(value).reshape(shape[0], -1).max(axis=1) / 127).astype(np.float32)
        known = any(node.output[0] == f"{tensor}_dq" for node in self.nodes)
        return [f"{tensor}_dq" if known else self._pair(tensor, np.array(ACTIVATION_SCALE, np.float32)), self._pair(weight, scale, 0)]

    def conv(self, name: str, tensor: str, channels: tuple[int, int], kernel: int, stride: int = 1, relu: bool = True) -> str:
        given = self.weighted(name, tensor, (channels[1], channels[0], kernel, kernel))
        out = self.node("Conv", given, name, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        return self.node("Relu", [out], f"{name}_relu") if relu else out


def resnet50(path: Path, precision: str, side: int = 224, stages: tuple[tuple[int, int], ...] = STAGES) -> Path:
    """Write the network: input `image` (batch, 3, side, side) float32, output `logits` (batch, 1000). `precision`: float32, float16 or int8."""
    graph = Writer(precision == "int8")
    tensor = graph.conv("stem", "image", (3, 64), 7, 2)
    tensor, width = graph.node("MaxPool", [tensor], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for stage, (channels, blocks) in enumerate(stages):
        for block in range(blocks):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            inner = graph.conv(f"{name}_1", tensor, (width, channels), 1)
            inner = graph.conv(f"{name}_2", inner, (channels, channels), 3, stride)
            inner = graph.conv(f"{name}_3", inner, (channels, channels * WIDEN), 1, relu=False)
            skip = tensor if block else graph.conv(f"{name}_skip", tensor, (width, channels * WIDEN), 1, stride, relu=False)
            tensor, width = graph.node("Relu", [graph.node("Add", [inner, skip], f"{name}_add")], f"{name}_out"), channels * WIDEN
    flat = graph.node("Flatten", [graph.node("GlobalAveragePool", [tensor], "mean")], "flat")
    graph.node("Gemm", graph.weighted("classifier", flat, (CLASSES, width)), "logits", transB=1)
    values: Mapping[str, list[object]] = {"image": ["batch", 3, side, side], "logits": ["batch", CLASSES]}
    image, logits = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items())
    model = helper.make_model(
        helper.make_graph(graph.nodes, "resnet50", [image], [logits], graph.weights), opset_imports=[helper.make_opsetid("", 19)], ir_version=9
    )
    if precision == "float16":
        from onnxconverter_common import float16

        with warnings.catch_warnings():  # of weights too small for it, which made-up ones may be
            warnings.simplefilter("ignore")
            model = float16.convert_float_to_float16(model, keep_io_types=True)
    path.write_bytes(model.SerializeToString())
    return path
