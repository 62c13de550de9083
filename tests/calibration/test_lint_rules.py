"""The lint's rules: what is right passes, each thing that is wrong is found at its node and channel, and TensorRT's own parser agrees."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
from tiny_qdq import CHANNELS, conv

from calibration.lint import lint
from calibration.lint_rules import Finding
from calibration.onnx_model import axis_ranges, describe
from pipeline.tensors import AxisRange


def findings(model: onnx.ModelProto, scheme: str) -> tuple[Finding, ...]:
    found = describe(model)
    return lint(model, scheme, found, axis_ranges(found, {}, batch=AxisRange(1, 2, 4)))[0]


def scales(channel: int, value: float) -> np.ndarray:
    changed = np.full(CHANNELS, 0.01, np.float32)
    changed[channel] = value
    return changed


@pytest.mark.parametrize("scheme", ["tensorrt", "cpu"])
def test_a_right_model_has_no_finding(scheme: str) -> None:
    assert findings(conv(scheme), scheme) == ()


BROKEN = [
    ("tensorrt", {"x_zero": np.uint8(117)}, "codes", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"x_zero": np.uint8(0)}, "codes", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"x_zero": None}, "codes", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"x_zero": np.int8(5)}, "codes", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"w_zero": np.arange(CHANNELS, dtype=np.int8) // 15}, "codes", "w_dq (DequantizeLinear)", (15,)),
    ("tensorrt", {"x_scale": np.full(3, 0.03, np.float32), "x_zero": np.zeros(3, np.int8)}, "activation-scales", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"w_scale": scales(3, 0)}, "zero-scale", "w_dq (DequantizeLinear)", (3,)),
    ("cpu", {"w_scale": scales(3, 0), "b_codes": np.zeros(CHANNELS, np.int32)}, "zero-scale", "w_dq (DequantizeLinear)", (3,)),
    ("tensorrt", {"w_scale": scales(4, -0.01)}, "negative-scale", "w_dq (DequantizeLinear)", (4,)),
    ("tensorrt", {"w_scale": scales(5, 1e-41)}, "subnormal-scale", "w_dq (DequantizeLinear)", (5,)),
    ("tensorrt", {"w_scale": scales(6, np.nan)}, "not-finite-scale", "w_dq (DequantizeLinear)", (6,)),
    ("tensorrt", {"x_scale": np.float32(np.inf)}, "not-finite-scale", "x_q (QuantizeLinear)", ()),
    ("tensorrt", {"b": np.full(CHANNELS, np.nan, np.float32)}, "not-finite", "conv (Conv)", ()),
    ("tensorrt", {"axis": 1, "w_scale": np.full(3, 0.01, np.float32), "w_zero": np.zeros(3, np.int8)}, "channel-axis", "w_dq (DequantizeLinear)", ()),
    ("cpu", {"axis": 1, "w_scale": np.full(3, 0.01, np.float32), "w_zero": np.zeros(3, np.int8)}, "channel-axis", "w_dq (DequantizeLinear)", ()),
    ("cpu", {"b_scale": np.full(CHANNELS, 0.01, np.float32)}, "bias-scale", "b_dq (DequantizeLinear)", tuple(range(CHANNELS))),
    ("cpu", {"b_codes": np.full(CHANNELS, -(2**31), np.int32)}, "bias-overflow", "b_dq (DequantizeLinear)", tuple(range(CHANNELS))),
    ("cpu", {"b_zero": np.ones(CHANNELS, np.int32)}, "zero-point", "b_dq (DequantizeLinear)", tuple(range(CHANNELS))),
]


@pytest.mark.parametrize(("scheme", "changes", "rule", "node", "channels"), BROKEN)
def test_what_is_wrong_is_named(scheme: str, changes: dict[str, Any], rule: str, node: str, channels: tuple[int, ...]) -> None:
    errors = [finding for finding in findings(conv(scheme, **changes), scheme) if finding.severity == "error"]
    assert (rule, node) in {(finding.rule, finding.node) for finding in errors}
    found = next(finding for finding in errors if finding.rule == rule)
    assert found.channels == channels


def test_a_scale_that_is_computed_is_refused() -> None:
    model = conv("tensorrt")
    model.graph.node.insert(0, onnx.helper.make_node("Abs", ["given"], ["x_scale"]))
    next(tensor for tensor in model.graph.initializer if tensor.name == "x_scale").name = "given"
    assert [(finding.rule, finding.node) for finding in findings(model, "tensorrt")] == [("not-constant", "x_q (QuantizeLinear)")]


def test_scales_that_do_not_fit_the_weight() -> None:
    model = conv("tensorrt", w_scale=np.full(CHANNELS - 1, 0.01, np.float32), w_zero=np.zeros(CHANNELS - 1, np.int8))
    assert {finding.rule for finding in findings(model, "tensorrt")} & {"scale-count", "invalid"}


def test_an_infinity_may_be_a_masks_and_a_half_scale_is_a_warning() -> None:
    model = conv("tensorrt")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "mask"))
    model.graph.node[-1].output[0] = "z"
    model.graph.node.append(onnx.helper.make_node("Max", ["z", "mask"], ["y"], name="mask"))
    assert [(finding.rule, finding.severity) for finding in findings(model, "tensorrt")] == [("not-finite", "warning")]


@pytest.mark.parametrize("scheme", ["tensorrt", "cpu"])
def test_a_float_model_is_refused_with_a_reason_for_each_node(scheme: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> g (float[1, 64] x) => (float[1, 16] y) { [only] y = MatMul(x, w) }')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 16), np.float32), "w"))
    (found,) = findings(model, scheme)
    assert (found.rule, found.severity, found.node) == ("nothing-quantized", "error", "only (MatMul)")
    assert {"tensorrt": "vector product", "cpu": "was not quantized"}[scheme] in found.got


def test_a_node_quantized_by_half_is_a_warning() -> None:
    model = conv("tensorrt")
    weight = onnx.numpy_helper.from_array(np.ones((CHANNELS, CHANNELS, 1, 1), np.float32), "second")
    model.graph.initializer.append(weight)
    model.graph.node[-1].output[0] = "z"
    parts = [("QuantizeLinear", "z", "z_q"), ("DequantizeLinear", "z_q", "z_dq")]
    model.graph.node.extend(onnx.helper.make_node(kind, [source, "x_scale", "x_zero"], [name], name=name) for kind, source, name in parts)
    model.graph.node.append(onnx.helper.make_node("Conv", ["z_dq", "second"], ["y"], name="half"))
    (found,) = findings(model, "tensorrt")
    assert (found.rule, found.severity, found.node) == ("half-quantized", "warning", "half (Conv)")


def test_what_onnx_calls_invalid_is_said_so() -> None:
    model = conv("tensorrt")
    model.graph.node[-1].op_type = "Reluu"
    assert any(finding.rule == "invalid" and "Reluu" in finding.got for finding in findings(model, "tensorrt"))


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed")
def test_the_parser_of_tensorrt_refuses_nothing_that_the_lint_lets_through() -> None:
    import tensorrt_rtx

    class Quiet(tensorrt_rtx.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            tensorrt_rtx.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            pass

    log = Quiet()
    builder = tensorrt_rtx.Builder(log)
    verdicts = []
    for changes in [{}, *(changes for scheme, changes, *_ in BROKEN if scheme == "tensorrt")]:
        model = conv("tensorrt", **changes)
        network = builder.create_network(0)  # the parser does not keep it alive
        parsed = tensorrt_rtx.OnnxParser(network, log).parse(model.SerializeToString())
        errors = [finding for finding in findings(model, "tensorrt") if finding.severity == "error"]
        assert parsed or errors, changes
        verdicts.append(parsed)
    assert verdicts[0]
    assert verdicts.count(False) >= 6
