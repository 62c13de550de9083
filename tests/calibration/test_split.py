"""Dead channels that repeat live ones: where they may, that no answer changes, what it gains, and that comparisons know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import model_of, prepared, run

from calibration.cpu_scheme import quantize
from calibration.layer_loss import layer_losses
from calibration.rounding.methods import Methods
from calibration.rounding.split import PROPERTY, _foldable, applied, chains_of, remembered, split
from pipeline.decibels import sqnr_db

CHAIN = """g (float[n, 3, 12, 12] x) => (float[n, 5] y)
{ [stem] a = Conv <pads = [1, 1, 1, 1]> (x, stem_w, stem_b) [six] b = Clip(a, zero, six)
  [deep] c = Conv <group = 8, pads = [1, 1, 1, 1]> (b, deep_w, deep_b) [six2] d = Clip(c, zero, six) [down] e = Conv(d, down_w, down_b)
  [r] f = Relu(e) [wide] h = Conv(f, wide_w, wide_b) [pool] k = GlobalAveragePool(h) [flat] l = Flatten(k)
  [head] y = Gemm <transB = 1> (l, head_w, head_b) }"""
WEIGHTS = {"stem_w": (8, 3, 3, 3), "deep_w": (8, 1, 3, 3), "down_w": (6, 8, 1, 1), "wide_w": (12, 6, 1, 1), "head_w": (5, 12)}
DEAD = (2, 5)


def chain() -> onnx.ModelProto:
    """Two channels of `stem` never wake; `deep` gives a constant for one of them; channel 0 has large weights behind it."""
    model = model_of(CHAIN, WEIGHTS)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0), ("six", 6)))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, change in (("stem_b", {2: -40.0, 5: -40.0}), ("deep_b", {2: 0.75, 5: -1.0}), ("stem_w", {}), ("deep_w", {})):
        value = onnx.numpy_helper.to_array(tensors[name]).copy()
        for place, number in change.items():
            value[place] = number
        if name == "deep_w":
            value[0] *= 12
            value[0] -= value[0].mean()
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(value, name))
    return model


def pictures(count: int = 64, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).uniform(-1, 1, (count, 3, 12, 12)).astype(np.float32)}


def test_chains_run_from_one_mixing_layer_to_the_next() -> None:
    found = [(one.writes.name, [node.name for node in one.between], one.reads.name, one.limit) for one in chains_of(chain())]
    assert found == [("stem", ["six", "deep", "six2"], "down", 6.0), ("down", ["r"], "wide", float("inf"))]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [s] b = Sigmoid(a) [two] y = Conv(b, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y, float[n, 4, 4, 4] b) { [one] a = Conv(x, one_w) [r] b = Relu(a) [two] y = Conv(b, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [r] b = Relu(a) [two] y = Conv(b, one_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [r] b = Relu(a) [two] c = Conv(b, two_w) [res] y = Add(c, b) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [two] y = Conv(a, two_w) }",
    ],
    ids=["sigmoid", "graph output", "tied weight", "read twice", "no cut"],
)
def test_what_is_seen_elsewhere_is_no_chain(text: str) -> None:
    assert chains_of(model_of(text, {"one_w": (4, 4, 1, 1), "two_w": (4, 4, 1, 1)})) == ()


def test_dead_channels_repeat_the_one_that_rounding_hurts_most_and_no_answer_changes(tmp_path: Path) -> None:
    model, rows = chain(), pictures()
    ranges = prepared(tmp_path, model, rows).ranges
    other = split(model, ranges, [rows])
    assert other is not None
    (wanted,), (got,) = (run(one, pictures(32, seed=7), "y") for one in (model, other))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    (before,), (after,) = (run(one, rows, "b") for one in (model, other))
    assert not before[:, list(DEAD)].any()
    for slot in DEAD:
        assert after[:, slot].any()
    live = [place for place in range(8) if place not in DEAD]
    np.testing.assert_array_equal(after[:, live], before[:, live])
    factor = after[:, 2].max() / before[:, 0].max()
    np.testing.assert_allclose(after[:, 2], before[:, 0] * factor, rtol=1e-4, atol=1e-5)  # channel 0 has the large weights
    assert abs(np.log(factor)) > 0.03
    assert after.max() <= 6
    again = remembered(other, model)
    assert again.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


def test_nothing_dead_and_no_room_change_nothing(tmp_path: Path) -> None:
    model, rows = model_of(CHAIN.replace("Clip(a, zero, six)", "Relu(a)").replace("Clip(c, zero, six)", "Relu(c)"), WEIGHTS), pictures()
    assert split(model, prepared(tmp_path, model, rows).ranges, [rows]) is None
    full = chain()
    tensors = {tensor.name: tensor for tensor in full.graph.initializer}
    tensors["six"].CopyFrom(onnx.numpy_helper.from_array(np.float32(1e-3), "six"))  # every channel is cut off
    made = split(full, prepared(tmp_path / "full", full, rows).ranges, [rows])
    assert made is None or "stem" not in json.loads(made.metadata_props[0].value)


def test_a_constant_behind_a_dead_channel_moves_into_a_bias_or_the_channel_stays() -> None:
    model = chain()
    (wanted,), (got,) = (run(one, pictures(), "e") for one in (model, applied(model, {"stem": {2: (0, 0.9)}})))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    next(node for node in model.graph.node if node.name == "down").attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    [padded, _] = chains_of(model)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert [_foldable(padded, values, slot) for slot in DEAD] == [False, True]  # a border of zeros is no constant; the other gives nothing at all


def test_it_gains_and_is_named_and_comparisons_know(tmp_path: Path) -> None:
    model = chain()
    float_model = prepared(tmp_path / "float", model, pictures())
    judged = pictures(64, seed=6)
    (wanted,) = run(model, judged, "y")
    found = {}
    for splitting in (False, True):
        folder = tmp_path / str(splitting)
        float_model.quantized(quantize, folder, pictures(32, seed=5), Methods(splitting=splitting, equalization=False))
        made = onnx.load(folder / "model.onnx")
        assert any(entry.key == PROPERTY for entry in made.metadata_props) == splitting
        found[splitting] = sqnr_db(wanted, run(made, judged, "y")[0])
    assert found[False] is not None
    assert found[True] is not None
    assert found[True] > found[False]
    losses = layer_losses(model, made, pictures(8, seed=9))
    assert losses
    assert all(entry.sqnr_db is None or entry.sqnr_db > 15 for entry in losses)
