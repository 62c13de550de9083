"""What a model or its rows may bring that must not pass unseen into a quantized one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import calibration_of, model_of, prepared, run

from calibration import cpu_scheme, tensorrt_scheme
from calibration.cpu_placement import place
from calibration.cpu_rules import verify
from calibration.float_operators import EMBEDDING
from calibration.qdq import high_precision
from calibration.rounding.check import coarse_layers
from calibration.rounding.methods import Methods
from pipeline.decibels import sqnr_db
from pipeline.errors import QuantizeError

CONVNET = """g (float[n, 3, 8, 8] x) => (float[n, 8, 8, 8] y)
{ [one] a = Conv <pads = [1, 1, 1, 1]> (x, one_w, one_b) [r] b = Relu(a) [two] y = Conv <pads = [1, 1, 1, 1]> (b, two_w, two_b) }"""
SIZES = {"one_w": (8, 3, 3, 3), "two_w": (8, 8, 3, 3)}


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)}


def replaced(model: onnx.ModelProto, name: str, change: object) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    value = onnx.numpy_helper.to_array(tensor).copy()
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(change(value), np.float32), name))  # type: ignore[operator]


@pytest.mark.parametrize("methods", [None, Methods()], ids=["nearest", "fitted"])
def test_one_burnt_pixel_costs_no_accuracy(tmp_path: Path, methods: Methods | None) -> None:
    model, calibration = model_of(CONVNET, SIZES), rows(64)
    calibration["x"][20, 1, 3, 3] = 1e4
    float_model = prepared(tmp_path / "float", model, calibration, method="mse")
    assert {name for entry in float_model.ranges.outliers for name in entry.rows} == {"20"}
    record = float_model.quantized(cpu_scheme.quantize, tmp_path / "cpu", rows(32, 1), methods)
    judged = rows(256, 2)
    found = sqnr_db(run(model, judged, "y")[0], run(onnx.load(tmp_path / "cpu/model.onnx"), judged, "y")[0])
    assert found is not None
    assert found > 25
    assert record.variant == ("nearest" if methods is None else "fitted")


def test_rows_that_are_left_out_are_not_fitted_on(tmp_path: Path) -> None:
    calibration = rows(64)
    calibration["x"][20, 1, 3, 3] = 1e4
    float_model = prepared(tmp_path / "float", model_of(CONVNET, SIZES), calibration, method="mse")
    kept = calibration_of(calibration).without_outliers(float_model.ranges)
    assert (kept.count, kept.used[19:21]) == (63, ["19", "21"])
    found = np.concatenate([batch["x"] for batch in kept.batches()])
    np.testing.assert_array_equal(found, np.delete(calibration["x"], 20, axis=0))


def test_a_channel_of_zeros_gets_a_safe_scale_and_is_listed(tmp_path: Path) -> None:
    model = model_of(CONVNET, SIZES)
    replaced(model, "one_w", lambda weight: np.where(np.arange(8).reshape(-1, 1, 1, 1) == 3, 0, weight))
    float_model = prepared(tmp_path / "float", model, rows(64))
    record = float_model.quantized(cpu_scheme.quantize, tmp_path / "cpu", rows(32, 1), Methods(splitting=False))
    assert record.zero_channels == {"one_w": (3,)}
    assert float_model.quantized(cpu_scheme.quantize, tmp_path / "used", rows(32, 1)).zero_channels == {}  # it repeats another one
    for tensor in onnx.load(tmp_path / "cpu/model.onnx").graph.initializer:
        if tensor.name.endswith("_scale"):
            value = onnx.numpy_helper.to_array(tensor)
            assert (value > np.finfo(np.float32).tiny).all()


def test_a_model_without_an_operator_to_quantize_is_refused_with_the_way_out(tmp_path: Path) -> None:
    model = model_of("g (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] y) { [r] a = Relu(x) [s] y = Sigmoid(a) }", {})
    float_model = prepared(tmp_path / "float", model, rows(32))
    with pytest.raises(QuantizeError, match="No operator was quantized") as caught:
        float_model.quantized(cpu_scheme.quantize, tmp_path / "out", rows(32, 1))
    assert "float" in caught.value.next
    assert not (tmp_path / "out").exists()


def test_values_beyond_float16_keep_float32_and_say_so(tmp_path: Path) -> None:
    model = model_of(CONVNET, SIZES)
    assert high_precision(prepared(tmp_path / "small", model, rows(64)).ranges) == "fp32 elsewhere"
    replaced(model, "one_w", lambda weight: weight * 2e5)
    assert "fp16 ends at 65504, and" in high_precision(prepared(tmp_path / "large", model, rows(64)).ranges)


TIED = """g (int64[n, 6] ids) => (float[n, 6, 32] y)
{ [embed] a = Gather(table, ids) [one] b = MatMul(a, one_w) [r] c = Relu(b) [head] y = MatMul(c, table) }"""


@pytest.mark.parametrize("quantize", [cpu_scheme.quantize, tensorrt_scheme.quantize], ids=["cpu", "tensorrt"])
def test_tied_weights_stay_tied_and_the_file_does_not_grow(tmp_path: Path, quantize: object) -> None:
    model = model_of(TIED, {"table": (32, 32), "one_w": (32, 32)})
    ids = {"ids": np.random.default_rng(0).integers(0, 32, (32, 6))}
    float_model = prepared(tmp_path / "float", model, ids)
    record = float_model.quantized(quantize, tmp_path / "out", ids)  # type: ignore[arg-type]
    found = onnx.load(tmp_path / "out/model.onnx").graph
    weights = [tensor for tensor in found.initializer if tuple(tensor.dims) == (32, 32)]
    assert sum(len(tensor.raw_data) for tensor in weights) <= 2 * 32 * 32 * 4
    assert sum(tensor.data_type == onnx.TensorProto.FLOAT for tensor in weights) >= 1
    gather = next(node for node in found.node if node.op_type == "Gather")
    assert sum(onnx.numpy_helper.to_array(tensor).shape == (32, 32) and tensor.name == gather.input[0] for tensor in weights) == 1
    if quantize is cpu_scheme.quantize:
        reasons = {node.node: node.reason for node in record.float_nodes}
        assert reasons == {"head": "its weight is tied to embed (Gather), which stays in float", "embed": EMBEDDING}


def test_a_transposed_convolution_has_its_channels_on_its_second_axis(tmp_path: Path) -> None:
    text = """g (float[n, 16, 6, 6] x) => (float[n, 16, 12, 12] y) { [one] a = Conv(x, one_w, one_b) [r] b = Relu(a)
    [up] c = ConvTranspose <strides = [2, 2]> (b, up_weights) [r2] d = Relu(c) [last] y = Conv(d, last_w, last_b) }"""
    model = model_of(text, {"one_w": (32, 16, 1, 1), "up_weights": (32, 24, 2, 2), "last_w": (16, 24, 1, 1)})
    replaced(model, "up_weights", lambda weight: weight * np.geomspace(1e-3, 1, 24).reshape(1, -1, 1, 1))
    assert place(model).refused == {"up": "ONNX Runtime has no INT8 kernel for ConvTranspose on a CPU"}
    values = {"x": np.random.default_rng(0).standard_normal((32, 16, 6, 6)).astype(np.float32)}
    float_model = prepared(tmp_path / "float", model, values)
    record = float_model.quantized(tensorrt_scheme.quantize, tmp_path / "trt", values)
    assert "up" in record.quantized_nodes
    assert record.search_sqnr_db is not None
    assert record.search_sqnr_db > 25
    graph = onnx.load(tmp_path / "trt/model.onnx").graph
    up = next(node for node in graph.node if node.op_type == "ConvTranspose")
    dequantize = next(node for node in graph.node if up.input[1] in node.output)
    scale = next(onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == dequantize.input[1])
    assert scale.shape == (24,)
    assert [attribute.i for attribute in dequantize.attribute if attribute.name == "axis"] == [1]


def test_a_per_tensor_build_is_refused_and_its_layers_are_named(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        batches = iter([rows(32)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    model = model_of(CONVNET, SIZES)
    replaced(model, "two_w", lambda weight: weight * np.geomspace(1e-3, 1, 8).reshape(-1, 1, 1, 1))
    replaced(model, "one_w", lambda weight: weight / np.abs(weight).max(axis=(1, 2, 3), keepdims=True))
    float_model = prepared(tmp_path / "float", model, rows(64))
    path = tmp_path / "per_tensor.onnx"
    quantize_static(
        str(float_model.path), str(path), Reader(), quant_format=QuantFormat.QDQ, per_channel=False,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    assert [name for name, _ in coarse_layers(model, onnx.load(path))] == ["two"]
    with pytest.raises(QuantizeError, match=r"absmax / 127 of each channel|codes within half a step|in the calibrated ranges"):
        verify(model, onnx.load(path), float_model.ranges)
    float_model.quantized(cpu_scheme.quantize, tmp_path / "cpu", rows(32, 1), None)
    assert coarse_layers(model, onnx.load(tmp_path / "cpu/model.onnx")) == []
