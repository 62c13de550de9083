"""How runtime layers are matched to the model's nodes, on made-up layers."""

from __future__ import annotations

import onnx
import pytest
import tiny_onnx

from engines.census import UNCLAIMED, RuntimeLayer, row_sizes, take
from pipeline.records import AxisRange, TensorSpec

CONV0, CONV1, HEAD = 16 * 27 * 64, 16 * 144 * 64, 80


@pytest.fixture
def model(tmp_path):
    return onnx.load(tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="tensorrt"))


def layer(precision, *origins, operator="Convolution"):
    return RuntimeLayer(operator, precision, origins)


def share(model, *layers):
    return take(model, {"batch": 1}, layers).int8_share


def test_share_is_weighted_by_multiply_accumulates(model):
    layers = [layer("INT8", "conv0/WithoutBiases", "r0"), layer("FP32", "conv1"), layer("FP32", "logits")]
    assert share(model, *layers) == pytest.approx(CONV0 / (CONV0 + CONV1 + HEAD))


def test_an_unclaimed_node_counts_as_not_int8_and_is_listed(model):
    census = take(model, {"batch": 1}, [layer("INT8", "conv0"), layer("INT8", "head_gemm")])
    assert {entry.name: entry.precision for entry in census.layers} == {"conv0": "INT8", "conv1": UNCLAIMED, "head_gemm": "INT8"}
    assert census.int8_share == pytest.approx((CONV0 + HEAD) / (CONV0 + CONV1 + HEAD))


def test_a_layer_that_names_nothing_claims_nothing(model):
    assert share(model, layer("INT8", "Convolution_4711", "some/other")) == 0.0
    assert share(model, layer("INT8", "")) == 0.0


def test_a_node_that_two_layers_claim_is_int8_only_when_both_are(model):
    assert share(model, layer("INT8", "conv1"), layer("BF16", "conv1/split")) == 0.0
    assert share(model, layer("INT8", "conv1"), layer("INT8", "conv1/split")) > 0.8


def test_a_layer_named_after_a_fused_follower_claims_the_nearest_open_node_above(model):
    census = take(model, {"batch": 1}, [layer("INT8", "r1"), layer("INT8", "conv0")])
    assert {entry.name for entry in census.layers if entry.precision == "INT8"} == {"conv0", "conv1"}


def test_an_ambiguous_follower_claims_nothing(tmp_path):
    graph = tiny_onnx.GraphWriter(None)
    flat = graph.add("Flatten", ["image"], "flat")
    for name in ("left", "right"):
        graph.add("MatMul", [flat, graph.weight(f"w_{name}", (192, 5))], name)
    graph.add("Add", ["left", "right"], "logits")
    model = onnx.load(graph.save(tmp_path / "model.onnx"))
    assert share(model, layer("INT8", "logits")) == 0.0
    assert share(model, layer("INT8", "left"), layer("INT8", "logits")) == 1.0


def test_a_model_that_multiplies_nothing_has_no_share(tmp_path):
    graph = tiny_onnx.GraphWriter(None)
    graph.add("Relu", ["image"], "logits")
    model = onnx.load(graph.save(tmp_path / "model.onnx", outputs=(TensorSpec("logits", "float32", ("batch", 3, 8, 8)),)))
    census = take(model, {"batch": 1}, [])
    assert (census.layers, census.int8_share) == ((), 0.0)


def test_one_row_has_batch_one_and_other_axes_at_opt():
    specs = (TensorSpec("ids", "int64", ("batch", "tokens")),)
    assert row_sizes(specs, {"batch": AxisRange(1, 8, 16), "tokens": AxisRange(4, 32, 64)}) == {"batch": 1, "tokens": 32}
