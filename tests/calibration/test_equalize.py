"""Channel scales: where they may pass, that they change no answer, and what they gain in eight bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import calibration_of, model_of, prepared, run

from calibration.cpu_scheme import quantize
from calibration.rounding.channels import groups_of, scaled
from calibration.rounding.equalize import LEAST, equalized
from calibration.rounding.methods import Methods
from pipeline.decibels import sqnr_db
from pipeline.digests import sha256_file
from pipeline.records import AxisRange, Ranges

STREAM = """g (float[n, 3, 8, 8] x) => (float[n, 5] y)
{ [stem] a = Conv <pads = [1, 1, 1, 1]> (x, stem_w, stem_b) [up] b = Conv(a, up_w, up_b) [six] c = Clip(b, zero, six)
  [deep] d = Conv <group = 16, pads = [1, 1, 1, 1]> (c, deep_w, deep_b) [r] e = Relu(d) [down] f = Conv(e, down_w, down_b) [res] h = Add(f, a)
  [last] i = Conv(h, last_w, last_b) [r2] j = Relu(i) [pool] k = GlobalAveragePool(j) [flat] l = Flatten(k)
  [head] y = Gemm <transB = 1> (l, head_w, head_b) }"""
WEIGHTS = {
    "stem_w": (8, 3, 3, 3),
    "up_w": (16, 8, 1, 1),
    "deep_w": (16, 1, 3, 3),
    "down_w": (8, 16, 1, 1),
    "last_w": (12, 8, 1, 1),
    "head_w": (5, 12),
}


def stream() -> onnx.ModelProto:
    model = model_of(STREAM, WEIGHTS)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0), ("six", 6)))
    return model


def pictures(count: int = 64, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).uniform(0, 1, (count, 3, 8, 8)).astype(np.float32)}


def test_groups_are_the_residual_stream_and_what_a_relu_or_a_pool_lets_through() -> None:
    found = {frozenset(group.tensors): group for group in groups_of(stream())}
    assert set(found) == {frozenset("ahf"), frozenset("de"), frozenset("ijkl")}  # not b and c: a Clip at 6 is not homogeneous
    residual = found[frozenset("ahf")]
    assert (set(residual.writers), set(residual.readers), residual.channels) == ({"stem", "down"}, {"up", "last"}, 8)
    assert (found[frozenset("de")].writers, found[frozenset("de")].readers) == (("deep",), ("down",))
    assert (found[frozenset("ijkl")].writers, found[frozenset("ijkl")].readers) == (("last",), ("head",))


@pytest.mark.parametrize(
    ("text", "weights", "expected"),
    [
        (STREAM, WEIGHTS, 3),
        (
            """g (float[n, 8, 5, 5] x) => (float[n, 6, 5, 5] y) { [one] a = Conv(x, one_w, one_b) [r] b = LeakyRelu(a)
            [two] c = Conv <group = 4, pads = [1, 1, 1, 1]> (b, two_w, two_b) [r2] d = Relu(c) [three] y = Conv(d, three_w) }""",
            {"one_w": (8, 8, 1, 1), "two_w": (12, 2, 3, 3), "three_w": (6, 12, 1, 1)},
            2,
        ),
        (
            """g (float[n, 7, 8] x) => (float[n, 7, 4] y) { [norm] a = LayerNormalization(x, g, o) [up] b = MatMul(a, u) [plus] c = Add(b, v)
            [r] d = Relu(c) [down] y = MatMul(d, w) }""",
            {"g": (8,), "o": (8,), "u": (8, 10), "v": (10,), "w": (10, 4)},
            2,
        ),
        (
            "g (float[n, 8] x) => (float[n, 4] y) { [one] a = Gemm(x, u, v) [r] b = Relu(a) [two] y = Gemm <transB = 1> (b, w) }",
            {"u": (8, 10), "v": (10,), "w": (4, 10)},
            1,
        ),
    ],
    ids=["stream", "grouped", "norm and products", "gemm"],
)
def test_any_scales_leave_the_answers_as_they_are(text: str, weights: dict[str, tuple[int, ...]], expected: int) -> None:
    model = stream() if text is STREAM else model_of(text, weights)
    random = np.random.default_rng(4)
    value = model.graph.input[0].type.tensor_type.shape.dim
    rows = {"x": random.standard_normal((6, *(axis.dim_value for axis in value[1:]))).astype(np.float32)}
    groups = groups_of(model)
    assert len(groups) == expected
    other = scaled(model, [(group, np.exp(random.normal(0, 1, group.channels))) for group in groups])
    (wanted,), (got,) = (run(one, rows, "y") for one in (model, other))
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
    for group in groups:
        for name, axis in group.tensors.items():
            (before,), (after,) = (run(one, rows, name) for one in (model, other))
            sizes = [np.abs(tensor).max(axis=tuple(place for place in range(tensor.ndim) if place != axis)) for tensor in (before, after)]
            assert sizes[0].shape == (group.channels,)
            assert not np.allclose(sizes[0], sizes[1], rtol=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [s] b = Sigmoid(a) [two] y = Conv(b, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y, float[n, 4, 4, 4] a) { [one] a = Conv(x, one_w) [two] y = Conv(a, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [again] b = Conv(a, one_w) [two] y = Conv(b, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 4, 4, 4] y) { [one] a = Conv(x, one_w) [res] b = Add(a, x) [two] y = Conv(b, two_w) }",
        "g (float[n, 4, 4, 4] x) => (float[n, 8, 4, 4] y) { [one] a = Conv(x, one_w) [two] b = Conv(a, two_w) [join] y = Concat <axis = 1> (a, b) }",
    ],
    ids=["sigmoid", "graph output", "tied weight", "graph input", "concat"],
)
def test_what_is_seen_elsewhere_keeps_its_scale(text: str) -> None:
    assert groups_of(model_of(text, {"one_w": (4, 4, 1, 1), "two_w": (4, 4, 1, 1)})) == ()


def test_channels_of_very_different_sizes_gain_and_the_evidence_is_written(tmp_path: Path) -> None:
    model = stream()
    spread = np.exp(np.random.default_rng(2).normal(0, 1.2, 8))
    group = next(group for group in groups_of(model) if "a" in group.tensors)
    uneven = scaled(model, [(group, spread)])
    float_model = prepared(tmp_path / "float", uneven, pictures())
    equal = equalized(uneven, float_model.exported, float_model.ranges, calibration_of(pictures()), AxisRange(1, 4, 8))
    assert equal is not None
    sizes = np.abs(run(equal.model, pictures(), "a")[0]).max(axis=(0, 2, 3))
    before = np.abs(run(uneven, pictures(), "a")[0]).max(axis=(0, 2, 3))
    assert sizes.max() / sizes.min() < (before.max() / before.min()) ** 0.5 * (1 / LEAST) ** 0.5
    search, judged = pictures(32, seed=5), pictures(64, seed=6)
    (wanted,) = run(uneven, judged, "y")
    found = {}
    for equalization in (False, True):
        folder = tmp_path / str(equalization)
        record = float_model.quantized(quantize, folder, search, Methods(equalization=equalization))
        assert record.variant == "fitted"
        found[equalization] = sqnr_db(wanted, run(onnx.load(folder / "model.onnx"), judged, "y")[0])
        assert (folder / "ranges.json").is_file() == equalization
        assert (record.equalized_ranges_sha256 is not None) == equalization
        if equalization:
            own = Ranges.load(folder / "ranges.json", next="")
            assert own.digest() == record.equalized_ranges_sha256
            assert own.onnx_sha256 != float_model.exported.onnx_sha256 == sha256_file(float_model.path)
    assert found[True] is not None
    assert found[False] is not None
    assert found[True] > found[False] + 1
