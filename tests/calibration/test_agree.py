"""Two runtimes on one Q/DQ model: they agree within rounding, and where one is wrong the node is named. And which hop loses what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from calibration.agree import BOUND_DB, agree, decibel, part
from calibration.exposing import Run, as_written, by_default, cuts, expose, float_tensors, run_rows
from calibration.hops import Station, attribute, unscaled
from calibration.onnx_model import describe
from calibration.rounding.channels import Group
from calibration.runtime import run_session, session
from engines.once import deployed
from pipeline.decibels import sqnr_db
from pipeline.errors import ModelError
from pipeline.records import Agreement, Attribution
from pipeline.tensors import AxisRange

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
BATCH = AxisRange(1, 4, 8)
LAYERS = 6


def rows(count: int, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 8, 6, 6)).astype(np.float32)}


def chain(quantized: bool, float_weight: int | None = None) -> onnx.ModelProto:
    """Six depthwise convolutions, a pointwise one behind each; with Q/DQ as the scheme `cpu` has them, one depthwise weight in float if told.

    The first channel of a depthwise weight is a hundred times as large as the others, saturates, and counts little: one scale for all channels
    would leave the others nothing.
    """
    random = np.random.default_rng(0)
    body: list[str] = []
    stored: dict[str, Any] = {"s": np.float32(1 / 40), "z": np.uint8(128), "low": np.float32(-3.2), "high": np.float32(3.175)}

    def activation(tensor: str) -> str:
        if not quantized:
            return tensor
        body.append(f"[{tensor}_q] {tensor}_c = QuantizeLinear({tensor}, s, z) [{tensor}_d] {tensor}_b = DequantizeLinear({tensor}_c, s, z)")
        return f"{tensor}_b"

    tensor = activation("x")
    for layer in range(LAYERS):
        for kind, shape, attributes in (("deep", (8, 1, 3, 3), "<group = 8, pads = [1, 1, 1, 1]>"), ("point", (8, 8, 1, 1), "")):
            name = f"{kind}{layer}"
            weight = (random.standard_normal(shape) / np.sqrt(shape[1] * shape[2] * shape[3])).astype(np.float32)
            if kind == "deep":
                weight[0] *= 100
            else:
                weight[:, 0] *= 0.01
            source, scale = f"{name}_w", np.abs(weight).reshape(8, -1).max(axis=1) / 127
            if quantized and not (kind == "deep" and layer == float_weight):
                stored |= {
                    f"{name}_k": np.round(weight / scale[:, None, None, None]).astype(np.int8),
                    f"{name}_s": scale,
                    f"{name}_z": np.zeros(8, np.int8),
                }
                body.append(f"[{name}_wd] {source} = DequantizeLinear <axis = 0> ({name}_k, {name}_s, {name}_z)")
            else:
                stored[source] = weight
            body.append(f"[{name}] {name}_r = Conv {attributes} ({tensor}, {source}) [{name}_clip] {name}_y = Clip({name}_r, low, high)")
            tensor = activation(f"{name}_y")
    body.append(f"[end] y = Identity({tensor})")
    model = onnx.parser.parse_model(f"{HEADER} g (float[batch, 8, 6, 6] x) => (float[batch, 8, 6, 6] y) {{ {' '.join(body)} }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    return model


def worse(scale: onnx.TensorProto) -> onnx.TensorProto:
    array = onnx.numpy_helper.to_array(scale)
    return onnx.numpy_helper.from_array((array * np.linspace(0.2, 2, len(array))).astype(np.float32), scale.name)


@contextlib.contextmanager
def wrong(model: onnx.ModelProto, *, node: str, only_alone: bool = False) -> Iterator[Run]:
    """A runtime that computes one node wrongly: a double for one that rewrites a graph badly. `only_alone`: not when many tensors are looked at."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if not (only_alone and len(model.graph.output) > 2):
        weight = next(each for each in copy.graph.node if each.name == node).input[1]
        scale = next(each for each in copy.graph.node if weight in each.output).input[1]
        tensor = next(tensor for tensor in copy.graph.initializer if tensor.name == scale)
        tensor.CopyFrom(worse(tensor))
    runtime = session(copy, optimize=False)
    yield lambda batch: run_session(runtime, batch)


def test_right_runtimes_agree_within_rounding() -> None:
    model = chain(True)
    found = describe(model)
    openvino, onnxruntime = (deployed(target, found.inputs, {"batch": BATCH}) for target in ("openvino-cpu", "onnxruntime-cpu"))
    for first, second in ((openvino, as_written), (onnxruntime, openvino)):
        record = agree(model, "0" * 64, rows(20), BATCH, ("one", first), ("two", second))
        assert record.agrees
        assert record.parted_at is None
        assert record.rows == 20
        assert all(value is None or value > BOUND_DB + 5 for value in record.sqnr_db_by_output.values())
        assert Agreement.from_json(record.to_json()) == record


@pytest.mark.parametrize("layer", [0, 3, 5])
def test_the_pass_that_wrecks_mixed_precision_is_caught_at_its_node(layer: int) -> None:
    """ONNX Runtime with its default options re-quantizes the one float weight per tensor; our session does not let it."""
    model = chain(True, float_weight=layer)
    found = describe(model)
    openvino = deployed("openvino-cpu", found.inputs, {"batch": BATCH})
    record = agree(model, "0" * 64, rows(16), BATCH, ("default options", by_default), ("openvino-cpu", openvino))
    assert not record.agrees
    assert record.parted_at is not None
    assert (record.parted_at.node, record.parted_at.operator) == (f"deep{layer}", "Conv")
    ours = deployed("onnxruntime-cpu", found.inputs, {"batch": BATCH})
    assert agree(model, "0" * 64, rows(16), BATCH, ("ours", ours), ("openvino-cpu", openvino)).agrees


@pytest.mark.parametrize("only_alone", [False, True])
def test_a_wrong_runtime_is_named_by_its_node_also_where_looking_at_all_tensors_mends_it(only_alone: bool) -> None:
    model = chain(True)
    opened = lambda graph: wrong(graph, node="point2", only_alone=only_alone)  # noqa: E731
    record = agree(model, "0" * 64, rows(8), BATCH, ("wrong", opened), ("right", as_written))
    assert not record.agrees
    assert record.parted_at is not None
    assert record.parted_at.node == "point2"
    assert record.parted_at.sqnr_db < BOUND_DB


def test_values_that_are_not_finite_on_one_side_never_agree() -> None:
    array = np.ones((2, 3), np.float32)
    broken = array.copy()
    broken[1, 1] = np.nan
    masked = np.where(np.arange(3) == 2, np.finfo(np.float32).min, array)
    assert decibel(masked, masked * np.float32(0.9)) == pytest.approx(20, abs=0.1)  # the mask drowns nothing
    assert decibel(masked, array) == -999
    assert decibel(array, array) is None
    assert decibel(broken, broken) is None
    assert decibel(array, broken) == decibel(broken, array) == decibel(array, array[:1]) == -999


def test_cuts_leave_out_what_a_kernel_fuses() -> None:
    model = chain(True, float_weight=0)
    seen = cuts(model)
    assert {"x_b", "deep0_y_b", "point5_y_b", "y"} <= set(seen)
    assert not {"deep0_r", "deep0_y", "point5_r", "point5_y"} & set(seen)
    assert {"deep0_r", "point5_y"} <= set(float_tensors(model))
    plain = chain(False)
    assert cuts(plain) == float_tensors(plain)


def test_rows_that_are_no_multiple_of_a_static_batch_all_run() -> None:
    with as_written(chain(False)) as run:
        whole = run(rows(7))["y"]
        parts = run_rows(run, rows(7), AxisRange(3, 3, 3))["y"]
    assert whole.shape == parts.shape
    np.testing.assert_allclose(whole, parts, atol=1e-5)


def test_a_loss_is_blamed_on_the_hop_that_made_it() -> None:
    plain, quantized = chain(False), chain(True)
    openvino = deployed("openvino-cpu", describe(quantized).inputs, {"batch": BATCH})
    stations = [
        Station("onnx", as_written, plain),
        Station("simplified", as_written, chain(False)),
        Station("qdq", as_written, quantized),
        Station("openvino-cpu", openvino, quantized, rewrites=True),
    ]
    record = attribute(stations, rows(12), BATCH)
    assert [hop.hop for hop in record.hops] == ["onnx -> simplified", "simplified -> qdq", "qdq -> openvino-cpu"]
    assert record.hops[0].sqnr_db is None
    assert record.blamed == "simplified -> qdq"
    with as_written(plain) as first, as_written(quantized) as second:
        wanted = sqnr_db(first(rows(8))["y"], second(rows(8))["y"])
    assert wanted is not None
    assert record.hops[1].sqnr_db == pytest.approx(wanted, abs=2)
    assert record.whole[0].hop == "onnx -> openvino-cpu"
    assert record.whole[0].sqnr_db == pytest.approx(record.hops[1].sqnr_db, abs=2)
    assert Attribution.from_json(record.to_json()) == record


def test_a_broken_engine_is_blamed_and_its_node_named() -> None:
    plain, quantized = chain(False), chain(True)
    stations = [
        Station("onnx", as_written, plain),
        Station("qdq", as_written, quantized),
        Station("engine", lambda graph: wrong(graph, node="deep4"), quantized, rewrites=True),
    ]
    record = attribute(stations, rows(8), BATCH)
    assert record.blamed == "qdq -> engine"
    assert record.parted_at is not None
    assert record.parted_at.node == "deep4"


def test_a_broken_quantization_is_blamed_and_its_layer_named() -> None:
    plain, quantized = chain(False), chain(True)
    scale = next(tensor for tensor in quantized.graph.initializer if tensor.name == "point1_s")
    scale.CopyFrom(worse(scale))
    record = attribute([Station("onnx", as_written, plain), Station("qdq", as_written, quantized)], rows(8), BATCH)
    assert record.blamed == "onnx -> qdq"
    assert record.parted_at is not None
    assert record.parted_at.node == "point1"


def test_channels_at_other_scales_are_no_loss() -> None:
    """What equalization does to a tensor is undone before it is compared: a group's own factors, and no more."""
    random = np.random.default_rng(0)
    scale = np.array([0.25, 1, 4, 1], np.float32)
    wanted = {"a": random.standard_normal((2, 4, 5, 5)).astype(np.float32), "b": random.standard_normal((2, 7, 4)).astype(np.float32)}
    got = {"a": wanted["a"] * scale[:, None, None], "b": wanted["b"] * scale}
    group = Group({"real_a": 1, "b": 2}, 4, (), (), ())
    level = unscaled(wanted, got, {"a": "real_a", "b": "b"}, [group])
    for name, array in wanted.items():
        np.testing.assert_allclose(level[name], array, rtol=1e-5)
    assert unscaled(wanted, got, {"a": "real_a", "b": "b"}, [])["a"] is got["a"]
    one = unscaled(wanted, {"a": got["a"], "b": wanted["b"] * 2}, {"a": "real_a", "b": "b"}, [group])
    assert (decibel(wanted["b"], one["b"]) or 999) < 20  # the tensors do not have one factor


def test_equal_stations_blame_nothing_and_one_is_refused() -> None:
    plain = Station("onnx", as_written, chain(False))
    record = attribute([plain, plain], rows(4), BATCH)
    assert (record.blamed, record.parted_at) == (None, None)
    with pytest.raises(ModelError, match="no hop"):
        attribute([plain], rows(4), BATCH)
    other = Station("other", as_written, expose(chain(False), ["deep0_y"]))
    with pytest.raises(ModelError, match="output deep0_y"):
        attribute([other, plain], rows(4), BATCH)


def test_parting_is_null_where_nothing_can_be_seen() -> None:
    model = chain(False)
    assert part(model, {}, rows(2), as_written, as_written) is None
