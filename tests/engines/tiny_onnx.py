"""Tiny ONNX models, written with onnx.helper: a few thousand multiply-accumulates each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pipeline.records import AxisRange, TensorSpec

INPUTS = (TensorSpec("image", "float32", ("batch", 3, 8, 8)),)
OUTPUTS = (TensorSpec("logits", "float32", ("batch", 5)),)
SHAPES = {"batch": AxisRange(1, 4, 8)}


def images(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((rows, 3, 8, 8)).astype(np.float32)}


class GraphWriter:
    """Collects nodes and initializers; with a `scheme` every weight and chosen activation goes through Q/DQ.

    Weights are symmetric S8 a channel. Activations are symmetric S8 in the scheme `tensorrt` and U8 with a zero point in `cpu`.
    """

    def __init__(self, scheme: str | None, seed: int = 0) -> None:
        self.scheme = scheme
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, name: str | None = None, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output if name is None else name, **attributes))
        return output

    def activation(self, tensor: str, scale: float = 0.05, zero: int = 100) -> str:
        """`zero` is the zero point in the scheme `cpu`: 0 behind a Relu."""
        if not self.scheme:
            return tensor
        point = np.uint8(zero) if self.scheme == "cpu" else np.int8(0)
        pair = [self.constant(f"{tensor}_scale", np.float32(scale)), self.constant(f"{tensor}_zero", point)]
        self.add("QuantizeLinear", [tensor, *pair], f"{tensor}_q")
        return self.add("DequantizeLinear", [f"{tensor}_q", *pair], f"{tensor}_dq")

    def weight(self, name: str, shape: tuple[int, ...], axis: int = 0) -> str:
        value = (self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        if not self.scheme:
            return self.constant(name, value)
        others = tuple(index for index in range(value.ndim) if index != axis)
        scale = (np.abs(value).max(axis=others) / 127).astype(np.float32)
        codes = np.round(value / np.expand_dims(scale, others)).astype(np.int8)
        self.constant(f"{name}_q", codes)
        pair = [self.constant(f"{name}_scale", scale), self.constant(f"{name}_zero", np.zeros(len(scale), np.int8))]
        return self.add("DequantizeLinear", [f"{name}_q", *pair], name, axis=axis)

    def bias(self, name: str, size: int) -> str:
        """Zeros; in the scheme `cpu` as int32 codes."""
        if self.scheme != "cpu":
            return self.constant(name, np.zeros(size, np.float32))
        parts = [self.constant(f"{name}_q", np.zeros(size, np.int32)), self.constant(f"{name}_scale", np.full(size, 1e-4, np.float32))]
        return self.add("DequantizeLinear", [*parts, self.constant(f"{name}_zero", np.zeros(size, np.int32))], name, axis=0)

    def save(self, path: Path, inputs: tuple[TensorSpec, ...] = INPUTS, outputs: tuple[TensorSpec, ...] = OUTPUTS) -> Path:
        kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        infos = [[helper.make_tensor_value_info(spec.name, kinds[spec.dtype], spec.shape) for spec in specs] for specs in (inputs, outputs)]
        model = helper.make_model(
            helper.make_graph(self.nodes, "tiny", *infos, self.initializers), opset_imports=[helper.make_opsetid("", 19)], ir_version=9
        )
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString())
        return path


def conv_net(path: Path, *, scheme: str | None, seed: int = 0) -> Path:
    """Two convolutions (27 648 + 147 456 multiply-accumulates a row), pooling and a Gemm (80) that stays in float.

    The scheme `cpu` quantizes the second convolution's output too, as ONNX Runtime wants it.
    """
    graph = GraphWriter(scheme, seed)
    tensor = graph.activation("image")
    tensor = graph.add("Conv", [tensor, graph.weight("w0", (16, 3, 3, 3)), graph.bias("b0", 16)], "c0", "conv0", pads=[1] * 4)
    tensor = graph.activation(graph.add("Relu", [tensor], "r0"), zero=0)
    tensor = graph.add("Conv", [tensor, graph.weight("w1", (16, 16, 3, 3)), graph.bias("b1", 16)], "c1", "conv1", pads=[1] * 4)
    tensor = graph.add("Relu", [tensor], "r1")
    if scheme == "cpu":
        tensor = graph.activation(tensor, 0.02, zero=0)
    tensor = graph.add("Flatten", [graph.add("GlobalAveragePool", [tensor], "pooled")], "flat")
    head = [graph.constant("head", graph.random.standard_normal((5, 16)).astype(np.float32)), graph.constant("head_bias", np.ones(5, np.float32))]
    graph.add("Gemm", [tensor, *head], "logits", "head_gemm", transB=1)
    return graph.save(path)


def exp_net(path: Path) -> Path:
    """Float; overflows to infinity for inputs above 88."""
    graph = GraphWriter(None)
    tensor = graph.add("Flatten", [graph.add("GlobalAveragePool", ["image"], "pooled")], "flat")
    tensor = graph.add("MatMul", [tensor, graph.constant("ones", np.full((3, 5), 1 / 3, np.float32))], "mean")
    graph.add("Exp", [tensor], "logits")
    return graph.save(path)


def awkward_net(path: Path) -> Path:
    """What makes matching names hard: slashes, unnamed nodes, depthwise, transposed, a bias in an Add of its own, a renamed last node."""
    graph = GraphWriter("tensorrt")
    tensor = graph.activation("image")
    tensor = graph.add("Conv", [tensor, graph.weight("w0", (16, 3, 3, 3))], "t0", "/stem/conv", pads=[1] * 4)
    skip = graph.activation(graph.add("Relu", [tensor], "t1", "/stem/relu"))
    tensor = graph.add("Conv", [skip, graph.weight("w1", (16, 1, 3, 3))], "t2", "/stem/conv/depthwise", pads=[1] * 4, group=16)
    tensor = graph.activation(graph.add("Add", [tensor, skip], "t3", "/stem/add"))
    tensor = graph.activation(graph.add("Conv", [tensor, graph.weight("w2", (8, 16, 1, 1))], "t4", ""))
    tensor = graph.add("ConvTranspose", [tensor, graph.weight("w3", (8, 8, 2, 2), axis=1)], "t5", "up", strides=[2, 2])
    tensor = graph.activation(graph.add("Flatten", [graph.add("GlobalAveragePool", [tensor], "t6")], "t7"))
    tensor = graph.add("MatMul", [tensor, graph.weight("w4", (8, 12), axis=1)], "t8", "linear/matmul")
    tensor = graph.activation(
        graph.add("Relu", [graph.add("Add", [tensor, graph.constant("b4", np.ones(12, np.float32))], "t9", "linear/bias")], "t10")
    )
    tensor = graph.add("MatMul", [tensor, graph.constant("w5", np.ones((12, 5), np.float32))], "t11", "float/matmul")
    graph.add("Add", [tensor, graph.constant("b5", np.ones(5, np.float32))], "logits", "float/bias")
    return graph.save(path)
