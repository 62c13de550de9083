"""Multiply-accumulates against hand counts, float and Q/DQ alike."""

from __future__ import annotations

import onnx
import pytest

from pipeline.errors import ModelError
from pipeline.macs import macs_by_node


def parse(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {body}')


def test_each_operator_by_hand() -> None:
    model = parse(
        """(float[n, 4, 10, 10] x, float[8, 2, 3, 3] w, float[8, 3, 2, 2] u, float[n, 6] a, float[5, 6] b, float[n, 7, 6] m, float[6, 9] k)
        => (float[n, 3, s, t] y, float[n, 5] g, float[n, 7, 9] p) {
          [conv] c = Conv<group = 2, strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)
          [up] y = ConvTranspose<strides = [2, 2]>(c, u)
          [gemm] g = Gemm<transB = 1>(a, b)
          [product] p = MatMul(m, k) }"""
    )
    expected = {"conv": 3 * 8 * 5 * 5 * 2 * 9, "up": 3 * 8 * 5 * 5 * 3 * 4, "gemm": 3 * 5 * 6, "product": 3 * 7 * 9 * 6}
    assert macs_by_node(model, {"n": 3}) == expected


def test_weights_behind_dequantize_and_nodes_without_names() -> None:
    model = parse(
        """(float[n, 4, 8, 8] x) => (float[n, 16, 8, 8] y) <int8[16, 4, 1, 1] w, float s = {0.5}, int8 z = {0}> {
          q = QuantizeLinear(x, s, z)
          d = DequantizeLinear(q, s, z)
          f = DequantizeLinear(w, s, z)
          y = Conv(d, f) }"""
    )
    model.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT8, [16, 4, 1, 1], b"\x01" * 64, raw=True))
    assert macs_by_node(model, {"n": 1}) == {"Conv_3": 64 * 16 * 4}


def test_an_axis_without_a_size_is_named() -> None:
    model = parse("(float[n, 4] a, float[4, 2] b) => (float[n, 2] y) { y = MatMul(a, b) }")
    with pytest.raises(ModelError, match="input a, axis 0"):
        macs_by_node(model, {"batch": 1})


def test_arithmetic_inside_control_flow_is_refused() -> None:
    then = onnx.parser.parse_graph("t () => (float[2, 2] r) { r = MatMul(a, a) }")
    model = parse("(bool c, float[2, 2] a) => (float[2, 2] y) { [branch] y = If(c) }")
    for name in ("then_branch", "else_branch"):
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, then))
    with pytest.raises(ModelError, match="branch"):
        macs_by_node(model, {})
