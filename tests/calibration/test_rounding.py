"""Weights fitted to quantized activations: the matrix view of each operator, the codes, and what they do to a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tiny_quantize import HEADER, calibration_of, model_of, run

from calibration.cpu_placement import place
from calibration.cpu_rules import verify
from calibration.cpu_scheme import _quantized
from calibration.rounding import replay, solve, twin
from calibration.rounding.constants import constants_of
from calibration.rounding.layers import layers_of
from calibration.rounding.methods import Methods
from calibration.rounding.moments import Moments
from calibration.rounding.reconstruct import DAMPINGS, MOST_MOVED, Rounded, _invertible, moved, reconstruct
from calibration.rounding.target import adapted, damping
from calibration.rounding.write import written
from calibration.runtime import session
from pipeline.decibels import sqnr_db
from pipeline.errors import QuantizeError
from pipeline.records import AxisRange, Ranges, TensorRange
from pipeline.tensors import Batch

BATCH = AxisRange(1, 4, 8)
RESIDUAL = """g (float[n, 3, 8, 8] x) => (float[n, 5] y)
{ [stem] a = Conv <pads = [1, 1, 1, 1]> (x, stem_w, stem_b) [r1] b = Relu(a) [depthwise] c = Conv <group = 8, pads = [1, 1, 1, 1]> (b, deep_w, deep_b)
  [r2] d = Relu(c) [project] e = Conv(d, project_w, project_b) [res] f = Add(e, b) [pool] h = GlobalAveragePool(f) [flat] i = Flatten(h)
  [head] y = Gemm <transB = 1> (i, head_w, head_b) }"""
WEIGHTS = {"stem_w": (8, 3, 3, 3), "deep_w": (8, 1, 3, 3), "project_w": (8, 8, 1, 1), "head_w": (5, 8)}


def ranges_of(model: onnx.ModelProto, batch: Batch) -> Ranges:
    names = [name for node in model.graph.node for name in node.output]
    values = dict(zip(names, run(model, batch, *names), strict=True)) | dict(batch)
    tensors = {name: TensorRange(float(value.min()), float(value.max()), 1.0) for name, value in values.items()}
    return Ranges("m", "r", "p", "max", {}, 64, 64, {}, tensors, (), (), ())


def pictures(count: int = 64, seed: int = 1) -> Batch:
    return {"x": np.random.default_rng(seed).uniform(0, 1, (count, 3, 8, 8)).astype(np.float32)}


def prepared(source: onnx.ModelProto, rows: Batch) -> tuple[onnx.ModelProto, Ranges]:
    ranges = ranges_of(source, rows)
    return _quantized(source, ranges, place(source)), ranges


@pytest.fixture(scope="module")
def residual() -> tuple[onnx.ModelProto, onnx.ModelProto, Ranges]:
    source = model_of(RESIDUAL, WEIGHTS)
    return (source, *prepared(source, pictures()))


@pytest.mark.parametrize(
    ("text", "shape", "weight"),
    [
        ("Conv <pads = [1, 0, 2, 1], strides = [2, 1]>", (3, 4, 9, 8), (6, 4, 3, 3)),
        ("Conv <group = 2, dilations = [2, 3], pads = [2, 2, 2, 2]>", (3, 4, 9, 11), (6, 2, 3, 2)),
        ("Conv <group = 4>", (3, 4, 5, 5), (4, 1, 3, 3)),
        ("Conv <strides = [2], pads = [1, 1]>", (3, 4, 9), (6, 4, 3)),
        ("Gemm", (5, 4), (4, 6)),
        ("Gemm <transB = 1>", (5, 4), (6, 4)),
        ("MatMul", (3, 7, 4), (4, 6)),
    ],
)
def test_matrix_times_patches_is_what_the_operator_gives(text: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    operator, _, attributes = text.partition(" ")
    size = weight[0] if operator == "Conv" or "transB" in text else weight[1]
    dims = ", ".join(map(str, shape))
    bias = ", b" if operator != "MatMul" else ""
    body = f"g (float[{dims}] x) => (float y) {{ [before] r = Relu(x) [layer] y = {operator} {attributes} (r, w{bias}) }}"
    source = onnx.parser.parse_model(f"{HEADER} {body}")
    random = np.random.default_rng(3)
    for name, value in (("w", random.standard_normal(weight)), ("b", random.standard_normal(size))):
        source.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    body = body.replace("(r, w", "(v, u").replace("[layer]", "[q] c = QuantizeLinear(r, s, z) [d] v = DequantizeLinear(c, s, z) [layer]")
    body = body.replace("[before]", "[dw] u = DequantizeLinear(k, ws, wz) [before]")
    quantized = onnx.parser.parse_model(f"{HEADER} {body}")
    codes = random.integers(-127, 128, weight).astype(np.int8)
    constants = {"s": np.float32(0.02), "z": np.uint8(3), "k": codes, "ws": np.float32(0.1), "wz": np.int8(0), "b": random.random(size, np.float32)}
    quantized.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    (layer,) = layers_of(source, quantized)
    x = {"x": random.standard_normal(shape).astype(np.float32)}
    quantized.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.UINT8, None))
    result, activation = session(quantized.SerializeToString(), optimize=False).run(["y", "c"], x)
    at = layer.positions(result, 5, np.random.default_rng(0))
    found = layer.matrix(codes * np.float32(0.1)) @ layer.patches_at(activation, at).transpose(0, 2, 1)
    if bias:
        found = found + constants["b"].reshape(layer.groups, -1, 1)
    np.testing.assert_allclose(found, layer.outputs_at(result, at, slice(None)), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layer.weight_of(layer.matrix(codes), codes.shape), codes)


def correlated(groups: int, size: int, seed: int = 0) -> np.ndarray:
    """Positive definite second moments of inputs that depend on each other."""
    mixed = np.random.default_rng(seed).standard_normal((groups, 4 * size, size)) @ np.random.default_rng(seed + 1).standard_normal((size, size))
    return mixed.transpose(0, 2, 1) @ mixed / (4 * size)


def loss(codes: np.ndarray, scale: np.ndarray, target: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    away = codes * scale[..., None] - target
    found: np.ndarray = ((away @ hessian) * away).sum(axis=-1)
    return found


@pytest.mark.parametrize(("groups", "rows", "size"), [(1, 12, 100), (6, 1, 9), (2, 3, 130)])
def test_compensated_codes_lose_less_than_the_nearest_and_descent_never_adds(groups: int, rows: int, size: int) -> None:
    weight, hessian = np.random.default_rng(5).standard_normal((groups, rows, size)), correlated(groups, size)
    scale = solve.largest_scale(weight, 1.0) * 8  # few levels, so that rounding matters
    simple = loss(solve.nearest(weight, scale), scale, weight, hessian)
    codes = solve.error_compensated(weight, scale, solve.factor(hessian))
    assert loss(codes, scale, weight, hessian).sum() < 0.8 * simple.sum()
    better = solve.descended(codes, weight, scale, hessian, 8)
    assert (loss(better, scale, weight, hessian) <= loss(codes, scale, weight, hessian) * (1 + 1e-9)).all()
    assert (better != codes).any() == (size > 50)
    assert np.abs(better).max() <= 127
    np.testing.assert_array_equal(better, np.rint(better))


def test_moments_that_float32_leaves_without_an_inverse_are_damped_until_they_have_one() -> None:
    random = np.random.default_rng(0)
    patches = (random.standard_normal((1, 4000, 96)) * 1e-3).astype(np.float32)
    patches[..., 0] += 3000  # one input of a large mean: its sums hold the others' variances no longer
    moments = Moments.zero(1, 4, 96)
    for part in np.array_split(patches, 8, axis=1):
        moments.add(part, np.zeros((1, 4, part.shape[1]), np.float32))
    hessian, _ = moments.covariances(centred=True)
    with pytest.raises(np.linalg.LinAlgError):
        solve.factor(hessian + damping(hessian, moments.power * 0, DAMPINGS[0]))
    damped, inverse = _invertible(hessian, moments.power)
    assert np.isfinite(inverse.upper).all()
    assert np.linalg.eigvalsh(damped)[0, 0] > 0


def test_a_row_of_zeros_takes_the_safe_scale() -> None:
    assert solve.largest_scale(np.array([[[0.0, 0.0], [-2.54, 1.0]]]), 0.25).tolist() == [[0.25, 0.02]]


def halves_of(patches: np.ndarray, wanted: np.ndarray) -> tuple[Moments, Moments]:
    halves = Moments.zero(1, wanted.shape[0], patches.shape[1]), Moments.zero(1, wanted.shape[0], patches.shape[1])
    for half in (0, 1):
        halves[half].add(patches[None, half::2], wanted[None, :, half::2])
    return halves


def test_weights_adapt_to_what_quantization_takes_away_and_stay_where_there_is_only_noise() -> None:
    random = np.random.default_rng(2)
    weight, inputs = random.standard_normal((1, 3, 6)), random.standard_normal((4000, 6))
    halved = inputs * np.array([0.5, 1, 1, 1, 1, 1])  # the first input arrives at half its size
    found = adapted(weight, halves_of(halved, weight[0] @ inputs.T), centred=False)
    assert (np.abs(found[..., 0] - 2 * weight[..., 0]) < 0.5 * np.abs(weight[..., 0])).all()
    few = random.standard_normal((16, 6))
    noise = weight[0] @ few.T + random.standard_normal((3, 16)) * 5
    np.testing.assert_array_equal(adapted(weight, halves_of(few, noise), centred=False), weight)
    alone = halves_of(few[:1], noise[:, :1])
    np.testing.assert_array_equal(adapted(weight, alone, centred=True), weight)


def test_fitted_weights_bring_the_network_closer_on_rows_they_never_saw(residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges]) -> None:
    source, quantized, ranges = residual
    rounded = reconstruct(source, quantized, calibration_of(pictures()), BATCH, int32_bias=True)
    assert list(rounded) == ["stem", "depthwise", "project", "head"]
    fitted = written(source, quantized, rounded)
    verify(source, fitted, ranges, rounded)
    unseen = pictures(64, seed=9)
    (wanted,), (plain,), (got,) = (run(model, unseen, "y") for model in (source, quantized, fitted))
    before, after = sqnr_db(wanted, plain), sqnr_db(wanted, got)
    assert before is not None
    assert after is not None
    assert after > before + 1
    assert len(fitted.SerializeToString()) == len(quantized.SerializeToString())


def test_bias_correction_alone_takes_the_mean_error_away(residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges]) -> None:
    source, quantized, ranges = residual
    methods = Methods(equalization=False, adaptation=False, rounding="nearest")
    rounded = reconstruct(source, quantized, calibration_of(pictures(), methods=methods), BATCH, int32_bias=True)
    fitted = written(source, quantized, rounded)
    verify(source, fitted, ranges, rounded)
    (wanted,), (plain,), (got,) = (run(model, pictures(), "y") for model in (source, quantized, fitted))
    assert np.abs((got - wanted).mean(0)).max() < 0.1 * np.abs((plain - wanted).mean(0)).max()


def test_less_memory_gives_the_same_codes(residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges], monkeypatch: pytest.MonkeyPatch) -> None:
    source, quantized, _ = residual

    def codes() -> list[np.ndarray]:
        found = reconstruct(source, quantized, calibration_of(pictures()), BATCH, int32_bias=True)
        return [array for entry in found.values() for array in (entry.codes, entry.scale, entry.bias) if array is not None]

    much = codes()
    for kept in (0, 64 * 8 * 8 * 8 + 64 * 3 * 8 * 8 * 4):
        monkeypatch.setattr(replay, "KEPT_BYTES", kept)
        for left, right in zip(much, codes(), strict=True):
            np.testing.assert_array_equal(left, right)


def test_rows_that_fill_no_batch_are_all_used(residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges]) -> None:
    source, quantized, _ = residual
    for allowed, size in ((AxisRange(4, 4, 4), 16), (AxisRange(1, 4, 5), 7)):
        seen = replay.Replay(twin.build(source, quantized), calibration_of(pictures(18), size), allowed)
        parts = [part["x"] for part in seen.batches()]
        assert all(allowed.min <= len(part) <= allowed.max for part in parts)
        assert {row.tobytes() for part in parts for row in part} == {row.tobytes() for row in pictures(18)["x"]}


def test_tied_weights_stay_tied_and_unfitted() -> None:
    text = """g (float[n, 4, 6, 6] x) => (float[n, 4, 6, 6] y)
    { [first] a = Conv(x, w, w1) [r] b = Relu(a) [second] c = Conv(b, w, w2) [last] y = Conv(c, last_w, last_b) }"""
    source = model_of(text, {"w": (4, 4, 1, 1), "last_w": (4, 4, 1, 1)})
    source.graph.initializer.extend(onnx.numpy_helper.from_array(np.full(4, 0.1, np.float32), name) for name in ("w1", "w2"))
    rows = {"x": np.random.default_rng(0).standard_normal((32, 4, 6, 6)).astype(np.float32)}
    quantized, ranges = prepared(source, rows)
    rounded = reconstruct(source, quantized, calibration_of(rows), BATCH, int32_bias=True)
    assert list(rounded) == ["last"]
    fitted = written(source, quantized, rounded)
    verify(source, fitted, ranges, rounded)
    codes = {node.input[0] for node in fitted.graph.node if node.op_type == "DequantizeLinear" and node.input[0].startswith("w_")}
    assert len(codes) == 1
    assert len(fitted.SerializeToString()) == len(quantized.SerializeToString())


def test_the_bias_behind_a_matmul_is_corrected() -> None:
    text = "g (float[n, 5, 16] x) => (float[n, 5, 24] y) { [product] a = MatMul(x, w) [bias] y = Add(a, c) }"
    source = model_of(text, {"w": (16, 24)})
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 24).astype(np.float32), "c"))
    rows = {"x": np.random.default_rng(0).gamma(1, 1, (32, 5, 16)).astype(np.float32)}
    quantized, ranges = prepared(source, rows)
    methods = Methods(equalization=False, adaptation=False, rounding="nearest")
    rounded = reconstruct(source, quantized, calibration_of(rows, methods=methods), BATCH, int32_bias=True)
    fitted = written(source, quantized, rounded)
    verify(source, fitted, ranges, rounded)
    (wanted,), (plain,), (got,) = (run(model, rows, "y") for model in (source, quantized, fitted))
    assert np.abs((got - wanted).mean((0, 1))).max() < 0.05 * np.abs((plain - wanted).mean((0, 1))).max()


def test_a_bias_that_int32_could_not_hold_raises_the_scale() -> None:
    """A channel of tiny weights and a bias of 3: at absmax / 127 the codes of the bias would pass 2^31."""
    text = """g (float[n, 4, 6, 6] x) => (float[n, 4, 6, 6] y)
    { [first] a = Conv(x, first_w, first_b) [r] b = Relu(a) [last] y = Conv(b, last_w, last_b) }"""
    source = model_of(text, {"first_w": (4, 4, 1, 1), "last_w": (4, 4, 1, 1)})
    values = {tensor.name: tensor for tensor in source.graph.initializer}
    weight, bias = (onnx.numpy_helper.to_array(values[name]).copy() for name in ("first_w", "first_b"))
    weight[2] *= 1e-9
    weight[3] = 0
    bias[2:] = 3
    for name, value in (("first_w", weight), ("first_b", bias)):
        values[name].CopyFrom(onnx.numpy_helper.from_array(value, name))
    rows = {"x": np.random.default_rng(0).standard_normal((32, 4, 6, 6)).astype(np.float32)}
    quantized, ranges = prepared(source, rows)
    rounded = reconstruct(source, quantized, calibration_of(rows), BATCH, int32_bias=True)
    fitted = written(source, quantized, rounded)
    verify(source, fitted, ranges, rounded)
    (wanted,), (got,) = (run(model, rows, name) for model, name in ((source, "b"), (fitted, "b")))
    np.testing.assert_allclose(got[:, 2:], wanted[:, 2:], atol=1e-3)
    assert (rounded["first"].scale > 0).all()


def test_layers_that_would_move_too_far_are_rounded_to_the_nearest(
    residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, quantized, ranges = residual
    monkeypatch.setattr("calibration.rounding.reconstruct.adapted", lambda weight, *_: weight * 2)
    rounded = reconstruct(source, quantized, calibration_of(pictures()), BATCH, int32_bias=True)
    values, _ = constants_of(source)
    for layer in layers_of(source, quantized):
        assert moved(layer, values[layer.weight[0]], rounded[layer.name]) < 0.02 < MOST_MOVED
    verify(source, written(source, quantized, rounded), ranges, rounded)


def change(entry: Rounded) -> list[tuple[Rounded, str]]:
    return [
        (dataclasses.replace(entry, codes=np.roll(entry.codes, 1, 0)), "fitted"),
        (dataclasses.replace(entry, scale=entry.scale * np.float32(1.01)), "fitted"),
        (dataclasses.replace(entry, bias=entry.bias + 1 if entry.bias is not None else None), "half a step"),
    ]


def test_verification_refuses_what_was_not_fitted_and_what_is_far_from_the_trained_weights(
    residual: tuple[onnx.ModelProto, onnx.ModelProto, Ranges],
) -> None:
    source, quantized, ranges = residual
    rounded = reconstruct(source, quantized, calibration_of(pictures()), BATCH, int32_bias=True)
    fitted = written(source, quantized, rounded)
    for entry, message in change(rounded["project"]):
        with pytest.raises(QuantizeError, match=message):
            verify(source, fitted, ranges, rounded | {"project": entry})
    far = rounded | {"project": change(rounded["project"])[0][0]}
    with pytest.raises(QuantizeError, match="of the norm"):
        verify(source, written(source, quantized, far), ranges, far)
    with pytest.raises(QuantizeError, match="half a step|absmax"):
        verify(source, fitted, ranges)


def test_a_graph_with_a_branch_is_left_as_it_is() -> None:
    body = """g (float[n, 4] x, bool c) => (float[n, 4] y) { [fc] a = Gemm(x, w, b)
      [choice] y = If (c) <then_branch = t () => (float[n, 4] p) { p = Relu(a) }, else_branch = e () => (float[n, 4] q) { q = Neg(a) }> }"""
    source = model_of(body, {"w": (4, 4)})
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4, np.float32), "b"))
    assert reconstruct(source, source, calibration_of(pictures()), BATCH, int32_bias=True) == {}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fewer positions: the networks are tiny."""
    monkeypatch.setattr("calibration.rounding.reconstruct.FEWEST", 1024)
    return lambda: None
