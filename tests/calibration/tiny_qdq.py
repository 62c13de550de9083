"""Q/DQ models of a few nodes, right as they come; a test breaks one thing in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 16


def conv(scheme: str, **changes: Any) -> onnx.ModelProto:
    """x (batch, 3, 8, 8) -> Conv -> Relu -> y with Q/DQ in front of the Conv, and behind it in the scheme `cpu`.

    `changes` replaces a stored tensor by name: x_scale, x_zero, w_codes, w_scale, w_zero, b_codes, b_scale, b_zero (`cpu`) or b (`tensorrt`);
    None removes a zero point. `axis` is the axis of the weight's scales.
    """
    random = np.random.default_rng(0)
    unsigned = scheme == "cpu"
    stored: dict[str, Any] = {
        "x_scale": np.float32(0.03),
        "x_zero": np.uint8(117) if unsigned else np.int8(0),
        "w_codes": random.integers(-127, 128, (CHANNELS, 3, 3, 3)).astype(np.int8),
        "w_scale": np.linspace(0.001, 0.004, CHANNELS, dtype=np.float32),
        "w_zero": np.zeros(CHANNELS, np.int8),
    }
    if unsigned:
        stored["b_codes"] = random.integers(-900, 900, CHANNELS).astype(np.int32)
        stored["b_scale"] = (stored["w_scale"] * np.float32(0.03)).astype(np.float32)
        stored["b_zero"] = np.zeros(CHANNELS, np.int32)
        stored |= {"y_scale": np.float32(0.02), "y_zero": np.uint8(0)}
    else:
        stored["b"] = random.standard_normal(CHANNELS).astype(np.float32)
    axis = changes.pop("axis", 0)
    stored |= changes
    nodes: list[onnx.NodeProto] = []

    def add(operator: str, name: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, [each for each in inputs if stored.get(each, 0) is not None], [output], name=name, **attributes))
        return output

    def around(tensor: str, prefix: str) -> str:
        along = {"axis": 1} if np.ndim(stored[f"{prefix}_scale"]) else {}
        add("QuantizeLinear", f"{prefix}_q", [tensor, f"{prefix}_scale", f"{prefix}_zero"], f"{prefix}_quantized", **along)
        return add("DequantizeLinear", f"{prefix}_dq", [f"{prefix}_quantized", f"{prefix}_scale", f"{prefix}_zero"], f"{prefix}_back", **along)

    parts = [around("x", "x"), add("DequantizeLinear", "w_dq", ["w_codes", "w_scale", "w_zero"], "w", axis=axis)]
    parts.append(add("DequantizeLinear", "b_dq", ["b_codes", "b_scale", "b_zero"], "b", axis=0) if unsigned else "b")
    tensor = add("Relu", "relu", [add("Conv", "conv", parts, "c", pads=[1] * 4)], "r" if unsigned else "y")
    if unsigned:
        nodes[-1].output[0] = tensor
        around(tensor, "y")
        nodes[-1].output[0] = "y"
    sizes = ["batch", CHANNELS, 8, 8]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items() if value is not None],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)}
