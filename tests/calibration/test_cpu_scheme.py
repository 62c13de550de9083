"""ONNX Runtime's own Q/DQ with our ranges: placed where it fuses, verified, and really INT8 in both CPU runtimes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import engines
from calibration import cpu_scheme
from calibration.cpu_placement import place
from calibration.cpu_rules import activation_parameters, verify
from calibration.cpu_scheme import quantize
from calibration.export import export
from calibration.ranges import collect
from calibration.scheme import zero_channels
from pipeline.config import ModelConfig
from pipeline.errors import QuantizeError, RangeError
from pipeline.platforms import fingerprint
from pipeline.records import ExportedModel, QuantizedModel, Ranges, TensorRange
from pipeline.tensors import Batch

Prepared = tuple[Path, ExportedModel, Ranges]
HEADER = '<ir_version: 10, opset_import: ["" : 20]>'


@pytest.fixture(scope="module")
def tiny(tiny_root: Path, tiny_model: Callable[..., ModelConfig], batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """One all-zero weight channel is in it."""
    folder = tmp_path_factory.mktemp("cpu") / "model"
    exported = export(tiny_model("build_dead_channel"), tiny_root, folder, batch)
    ids = [str(i) for i in range(64)]
    ranges = collect(folder / "model.onnx", exported, [batch], ids, calibration_root="r", preprocess_sha256="p", min_rows=32, batch_rows=64)
    return folder / "model.onnx", exported, ranges


@pytest.fixture(scope="module")
def quantized(tiny: Prepared, batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, QuantizedModel]:
    folder = tmp_path_factory.mktemp("quantized") / "cpu"
    return folder, quantize(*tiny, folder, batch)


def test_the_record_says_what_is_on_disk(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    folder, record = quantized
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "quantized.json"]
    assert QuantizedModel.load(folder / "quantized.json") == record
    assert record.quantized_nodes == ("stem.0", "layer.scale.0", "head")
    assert record.float_nodes == ()
    assert record.zero_channels == {"stem.0.weight": (5,)}
    assert record.ranges_sha256 == tiny[2].digest()
    assert record.search_rows == 64
    assert record.search_sqnr_db is not None
    assert record.search_sqnr_db > 25
    assert record.search_agreement is not None
    assert record.search_agreement > 0.9


def test_every_scale_and_zero_point_is_ours(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    """Held to ranges.json here by a formula of its own: an interval that holds 0, in 255 steps."""
    graph = onnx.load(quantized[0] / "model.onnx").graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    seen = 0
    for node in graph.node:
        if node.op_type != "QuantizeLinear":
            continue
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        entry = tiny[2].tensors[node.input[0]]
        assert zero.dtype == np.uint8
        low, high = float(scale) * (0 - int(zero)), float(scale) * (255 - int(zero))
        assert low == pytest.approx(min(entry.low, 0), abs=float(scale) * 0.51)
        assert high == pytest.approx(max(entry.high, 0), abs=float(scale) * 0.51)
        assert float(scale) == pytest.approx((max(entry.high, 0) - min(entry.low, 0)) / 255, rel=1e-6)
        seen += 1
    assert seen == quantized[1].quantize_linear > 3


def test_weights_are_codes_and_a_dead_channel_keeps_its_bias(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    source = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(tiny[0]).graph.initializer}
    model = onnx.load(quantized[0] / "model.onnx")
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert not any(array.dtype == np.float32 and array.ndim == 4 for array in constants.values())
    assert constants["stem.0.weight_scale"][5] == pytest.approx(1 / 127)
    name = next(node for node in onnx.load(tiny[0]).graph.node if node.name == "stem.0").input[2]
    codes, scale = constants[f"{name}_quantized"], constants[f"{name}_quantized_scale"]
    assert codes.dtype == np.int32
    assert abs(source[name][5]) > 0.01
    np.testing.assert_allclose(codes * scale.astype(np.float64), source[name], atol=1e-4)


def test_logits_are_not_squeezed_into_eight_bits(quantized: tuple[Path, QuantizedModel]) -> None:
    graph = onnx.load(quantized[0] / "model.onnx").graph
    producer = next(node for node in graph.node if "logits" in node.output)
    assert producer.op_type == "Gemm"


def test_equal_inputs_give_equal_bytes_whatever_the_hash_seed(
    tiny: Prepared, quantized: tuple[Path, QuantizedModel], batch: Batch, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", **batch)  # type: ignore[arg-type]
    tiny[1].save(tmp_path / "exported.json")
    tiny[2].save(tmp_path / "ranges.json")
    code = (
        "import numpy as np; from pathlib import Path; from calibration.cpu_scheme import quantize\n"
        "from pipeline.records import ExportedModel, Ranges\n"
        f"here = Path({str(tmp_path)!r})\n"
        f"quantize(Path({str(tiny[0])!r}), ExportedModel.load(here / 'exported.json'), Ranges.load(here / 'ranges.json'), here / 'again',"
        " dict(np.load(here / 'rows.npz')))"
    )
    root = Path(cpu_scheme.__file__).parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "again" / "model.onnx").read_bytes() == (quantized[0] / "model.onnx").read_bytes()


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "openvino-cpu"])
def test_every_multiplication_runs_in_int8(tiny: Prepared, quantized: tuple[Path, QuantizedModel], batch: Batch, tmp_path: Path, target: str) -> None:
    backend = engines.backend(target)
    if reason := backend.unrunnable(target):
        pytest.skip(f"{target}: {reason}")
    _, exported, _ = tiny
    engine = backend.build(
        quantized[0] / "model.onnx", tmp_path / "engine", target=target, precision="int8", inputs=exported.inputs, outputs=exported.outputs,
        shapes=exported.shapes, platform=fingerprint(target, backend.platform_key(target), None),
    )  # fmt: skip
    assert engine.census is not None
    assert engine.census.int8_share > 0.99
    rows = {"image": batch["image"][:8]}
    with engines.open_engine(tmp_path / "engine") as session:
        got = session.run(rows)["logits"]
    wanted = np.asarray(onnx.reference.ReferenceEvaluator(onnx.load(tiny[0])).run(None, rows)[0])
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()) > 25


def test_a_process_with_modelopt_in_it_is_refused(tiny: Prepared, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelopt.onnx", sys)
    with pytest.raises(QuantizeError, match="patches ONNX Runtime"):
        quantize(*tiny, tmp_path / "out", batch)
    assert not (tmp_path / "out").exists()


def test_ranges_of_another_model_are_refused(tiny: Prepared, batch: Batch, tmp_path: Path) -> None:
    stale = dataclasses.replace(tiny[2], onnx_sha256="0" * 64)
    with pytest.raises(RangeError, match="another model"):
        quantize(tiny[0], tiny[1], stale, tmp_path / "out", batch)
    assert not (tmp_path / "out").exists()


def edit(model: onnx.ModelProto, name: str, value: np.ndarray) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    next(tensor for tensor in copy.graph.initializer if tensor.name == name).CopyFrom(onnx.numpy_helper.from_array(np.asarray(value), name))
    return copy


def test_verification_refuses_each_kind_of_wrong_parameter(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    source, model = onnx.load(tiny[0]), onnx.load(quantized[0] / "model.onnx")
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    verify(source, model, tiny[2])
    weight_scale, codes = constants["stem.0.weight_scale"], constants["stem.0.weight_quantized"]
    bias = next(node for node in source.graph.node if node.name == "stem.0").input[2]
    zeroed = weight_scale.copy()
    zeroed[5] = 0
    for name, value, message in (
        ("image_scale", constants["image_scale"] * np.float32(1.01), "in the calibrated ranges"),
        ("image_scale", np.float32("nan"), "finite, positive"),
        ("image_zero_point", np.uint8(constants["image_zero_point"] + 2), "in the calibrated ranges"),
        ("image_zero_point", np.int8(0), "uint8 zero point"),
        ("stem.0.weight_scale", zeroed, "finite, positive"),
        ("stem.0.weight_scale", weight_scale * 2, "half a step|absmax / 127"),
        ("stem.0.weight_quantized", np.roll(codes, 1, 0), "half a step"),
        ("stem.0.weight_quantized", codes.astype(np.uint8), "int8 codes"),
        (f"{bias}_quantized", constants[f"{bias}_quantized"] + 5000, "float bias"),
        (f"{bias}_quantized_scale", constants[f"{bias}_quantized_scale"] * 2, "product of input and weight scale"),
    ):
        with pytest.raises(QuantizeError, match=message):
            verify(source, edit(model, name, value), tiny[2])
    unseen = dataclasses.replace(tiny[2], tensors={name: entry for name, entry in tiny[2].tensors.items() if name != "image"})
    with pytest.raises(QuantizeError, match="calibrated range"):
        verify(source, model, unseen)


def test_parameters_of_one_sided_dead_and_infinite_ranges() -> None:
    assert activation_parameters(TensorRange(1.0, 2.0, 1.0)) == (2 / 255, 0)
    assert activation_parameters(TensorRange(-2.0, -1.0, 1.0)) == (2 / 255, 255)
    assert activation_parameters(TensorRange(0.0, 0.0, 1.0)) == (1.0, 0.0)
    with pytest.raises(RangeError, match="not finite"):
        activation_parameters(TensorRange(0.0, float("inf"), 1.0))


def parsed(text: str, weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    return model


def test_elementwise_operators_are_quantized_between_quantized_ones_only() -> None:
    model = parsed(
        """g (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] y, float[n, 4, 8, 8] z)
        { [c1] a = Conv(x, w1) [s] b = Sigmoid(a) [swish] c = Mul(a, b) [c2] d = Conv(c, w2) [res] e = Add(d, c) [r] f = Relu(e)
          [scaled] g = Mul(f, k) [mixed] h = Add(g, f) [c3] y = Conv(h, w3) [out] z = Relu(f) }""",
        {"w1": (4, 4, 1, 1), "w2": (4, 4, 1, 1), "w3": (4, 4, 1, 1), "k": (4, 1, 1)},
    )
    assert place(model).nodes == ("c1", "s", "swish", "c2", "res", "r", "c3")  # not: what meets a constant, what gives an output


def test_what_has_no_int8_kernel_stays_in_float_with_a_reason() -> None:
    model = parsed(
        """g (float[n, 4] x, float[4, 4] dynamic) => (float[n, 4] y)
        { [plain] a = Gemm(x, p, b) [beta] c = Gemm <beta = 0.5> (a, w, b) [scalar] d = Gemm(c, w, s) [moving] e = Gemm(d, dynamic, b)
          [left] f = MatMul(w, dynamic) [both] h = MatMul(e, f) [batched] k = MatMul(h, w3) [deep] m = ReduceSum(k) y = Add(h, m) }""",
        {"p": (4, 4), "w": (4, 4), "b": (4,), "s": (1,), "w3": (2, 4, 4)},
    )
    plan = place(model)
    assert plan.nodes == ("plain", "both", "batched")
    assert set(plan.refused) == {"beta", "scalar", "moving", "left"}
    assert plan.by_tensor == {"w3"}


def test_a_relu_behind_a_graph_output_is_left_alone() -> None:
    """ONNX Runtime's quantizer would give the output the range of the Relu, which cuts off all below zero."""
    model = parsed(
        "g (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] a, float[n, 4, 8, 8] y) { [c1] a = Conv(x, w) [r] b = Relu(a) [c2] y = Conv(b, w) }",
        {"w": (4, 4, 1, 1)},
    )
    assert place(model).nodes == ("c1", "c2")


def test_zero_channels_are_found_along_the_output_axis_of_each_operator() -> None:
    weights = {"conv": np.ones((3, 2, 1, 1), np.float32), "plain": np.ones((3, 2), np.float32), "turned": np.ones((2, 3), np.float32)}
    weights["conv"][1] = 0
    weights["plain"][:, 1] = 0
    weights["turned"][0] = 0
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[n, 2, 1, 1] x, float[n, 3] v) => (float[n, 2] y)"
        "{ [c] a = Conv(x, conv) [p] b = MatMul(v, plain) [t] y = Gemm <transB = 1> (v, turned) }"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    assert zero_channels(model, ["c", "p", "t"]) == {"conv": (0, 3, (1,)), "plain": (-1, 2, (1,)), "turned": (0, 2, (0,))}
