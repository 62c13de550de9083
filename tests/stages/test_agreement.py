"""The second runtime on a built target: agreement becomes a PASS, a broken engine a FAIL that names its node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engines
from engines import ort
from engines.once import build_once
from pipeline.digests import sha256_bytes
from pipeline.errors import ModelError
from pipeline.records import AxisRange, Engine, ExportedModel, QuantizedModel, TensorSpec
from pipeline.verdicts import Verdict
from release import gates
from release.agreement import agreement_check
from release.rebuild_check import rebuild_check
from stages import agreement, paths

INPUTS, OUTPUTS = (TensorSpec("x", "float32", ("batch", 8, 6, 6)),), (TensorSpec("y", "float32", ("batch", 8, 6, 6)),)
SHAPES = {"batch": AxisRange(1, 4, 8)}
ROWS = {"x": np.random.default_rng(1).standard_normal((20, 8, 6, 6)).astype(np.float32)}


def network(factor: float = 1.0) -> bytes:
    """x -> Q/DQ -> Conv -> Relu -> Q/DQ -> Conv -> Q/DQ -> y in the scheme `cpu`; the second weight's scale is `factor` times what it should be."""
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 8, 6, 6] x) => (float[batch, 8, 6, 6] y) {
      [q0] a = QuantizeLinear(x, s, m) [d0] b = DequantizeLinear(a, s, m) [w0] v = DequantizeLinear <axis = 0> (c0, ws, wz)
      [first] c = Conv(b, v) [relu] d = Relu(c) [q1] e = QuantizeLinear(d, s, z) [d1] f = DequantizeLinear(e, s, z)
      [w1] w = DequantizeLinear <axis = 0> (c1, us, wz) [second] g = Conv(f, w)
      [q2] h = QuantizeLinear(g, t, m) [d2] y = DequantizeLinear(h, t, m) }"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    stored: dict[str, Any] = {"s": np.float32(0.03), "t": np.float32(0.05), "z": np.uint8(0), "m": np.uint8(128), "wz": np.zeros(8, np.int8)}
    stored |= {"ws": np.full(8, 0.01, np.float32), "us": np.full(8, 0.01 * factor, np.float32)}
    stored |= {name: random.integers(-60, 60, (8, 8, 1, 1)).astype(np.int8) for name in ("c0", "c1")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    return model.SerializeToString()


def mixed() -> bytes:
    """x -> Q/DQ -> depthwise Conv in float -> Clip -> Q/DQ -> Conv -> Q/DQ -> y. One channel's weights are a hundred times the others'."""
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 8, 6, 6] x) => (float[batch, 8, 6, 6] y) {
      [q0] a = QuantizeLinear(x, s, m) [d0] b = DequantizeLinear(a, s, m)
      [deep] c = Conv <group = 8, pads = [1, 1, 1, 1]> (b, v) [clip] d = Clip(c, low, high)
      [q1] e = QuantizeLinear(d, s, m) [d1] f = DequantizeLinear(e, s, m)
      [w1] w = DequantizeLinear <axis = 0> (c1, us, wz) [point] g = Conv(f, w)
      [q2] h = QuantizeLinear(g, t, m) [d2] y = DequantizeLinear(h, t, m) }"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    deep, codes = random.standard_normal((8, 1, 3, 3)).astype(np.float32) / 3, random.integers(-60, 60, (8, 8, 1, 1)).astype(np.int8)
    deep[0] *= 100
    codes[:, 0] //= 60
    stored: dict[str, Any] = {"s": np.float32(1 / 40), "t": np.float32(1 / 60), "m": np.uint8(128)}
    stored |= {
        "low": np.float32(-3.2),
        "high": np.float32(3.175),
        "v": deep,
        "c1": codes,
        "us": np.full(8, 0.01, np.float32),
        "wz": np.zeros(8, np.int8),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    return model.SerializeToString()


def project(root: Path, target: str, built: bytes, scheme: str = "cpu", content: bytes = b"") -> ExportedModel:
    """A tree as the stages leave it: the right Q/DQ model (`content`), and an engine whose record names it, built from `built`."""
    folder = root / paths.CHOSEN / scheme
    folder.mkdir(parents=True)
    content = content or network()
    (folder / "model.onnx").write_bytes(content)
    QuantizedModel(scheme, sha256_bytes(content), "", "", "", 3, 5, (), (), 0, None, None, {}).save(folder / "quantized.json")
    work = root / paths.ENGINES / target / "int8"
    work.parent.mkdir(parents=True)
    scratch = root / "scratch"
    scratch.mkdir()
    engine = build_once(built, target, inputs=INPUTS, outputs=OUTPUTS, shapes=SHAPES, folder=scratch)
    (scratch / "engine").rename(work)
    record = engine.to_json() | {"model_sha256": sha256_bytes(content)}
    type(engine).from_json(record).save(work / "engine.json")
    return ExportedModel("", "", "", "", 20, INPUTS, OUTPUTS, SHAPES, (), 0, {})


@pytest.mark.parametrize(
    ("target", "scheme", "second"),
    [
        ("openvino-cpu", "cpu", "onnxruntime-cpu as deployed"),
        ("onnxruntime-cpu", "cpu", "openvino-cpu as deployed"),
        ("openvino-cpu", "tensorrt", "ONNX Runtime as written"),
    ],
)
def test_a_right_engine_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, scheme: str, second: str) -> None:
    exported = project(tmp_path, target, network(), scheme)
    monkeypatch.chdir(tmp_path)
    record = agreement.measure(target, exported, ROWS)
    check = agreement_check(record)
    assert (record.second, record.rows, record.agrees) == (second, 20, True)
    assert check.verdict is Verdict.PASS
    assert check.figure is None or check.figure > record.bound_db
    assert second in check.evidence


@pytest.mark.parametrize("target", ["openvino-cpu", "onnxruntime-cpu"])
def test_a_second_build_answers_like_the_first_and_another_model_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    project(tmp_path / "right", target, network())
    monkeypatch.chdir(tmp_path / "right")
    platform = engines.platform_here(target)
    same = agreement.rebuild(target, ROWS, platform, {})
    assert (same.rows, same.agreement) == (20, 1.0)
    assert rebuild_check(same, 40.0).verdict is Verdict.PASS
    project(tmp_path / "wrong", target, network(factor=1.5))
    monkeypatch.chdir(tmp_path / "wrong")
    other = agreement.rebuild(target, ROWS, platform, {})
    assert other.differing_files
    assert rebuild_check(other, 20.0).verdict is Verdict.FAIL


def test_an_engine_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is another one than its record says: what is deployed is run, not what it should have been built from."""
    exported = project(tmp_path, "openvino-cpu", network(factor=1.5))
    monkeypatch.chdir(tmp_path)
    record = agreement.measure("openvino-cpu", exported, ROWS)
    check = agreement_check(record)
    assert not record.agrees
    assert (check.verdict, check.limit, check.limit_is) == (Verdict.FAIL, record.bound_db, "min")
    assert check.figure is not None
    assert check.figure < record.bound_db
    assert check.decide


@pytest.mark.parametrize("turned_off", [True, False])
def test_a_pass_that_wrecks_a_mixed_precision_model_is_rejected_unless_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned_off: bool
) -> None:
    """ONNX Runtime's WeightBiasQuantization gives the float depthwise weights one scale: our sessions turn it off, and say so in the recipe."""
    assert "WeightBiasQuantization" in ort.DISABLED["int8"]
    if not turned_off:
        monkeypatch.setitem(ort.DISABLED, "int8", [name for name in ort.DISABLED["int8"] if name != "WeightBiasQuantization"])
    exported = project(tmp_path, "onnxruntime-cpu", mixed(), content=mixed())
    monkeypatch.chdir(tmp_path)
    check = agreement_check(agreement.measure("onnxruntime-cpu", exported, ROWS))
    recipe = Engine.load(paths.ENGINES / "onnxruntime-cpu" / "int8" / "engine.json").recipe
    assert ("WeightBiasQuantization" in recipe["settings"]["disabled_optimizers"]) == turned_off
    if turned_off:
        assert check.verdict is Verdict.PASS
    else:
        ships, refuses, reason = gates.outcome((check,), required=True, undecided="leave-out")
        assert (check.verdict, ships, refuses) == (Verdict.FAIL, False, True)
        assert "they part at deep (Conv)" in check.evidence
        assert "runtimes_agree is FAIL" in reason


def test_rows_of_one_size_are_taken_from_batches() -> None:
    batches = [{"ids": np.full((4, size), place)} for place, size in enumerate((16, 32, 16, 32, 32))]
    assert agreement.first_rows(batches, 6)["ids"].tolist() == [[0] * 16] * 4 + [[2] * 16] * 2
    assert agreement.first_rows(batches)["ids"].shape == (12, 32)


def test_a_broken_runtime_fails_and_names_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double for a runtime that breaks the graph: the second convolution is wrong also when it is looked into."""
    exported = project(tmp_path, "openvino-cpu", network(factor=1.5))
    monkeypatch.chdir(tmp_path)
    built = agreement.deployed

    def broken(target: str, *ports: Any) -> Any:
        def opened(model: onnx.ModelProto) -> Any:
            scale = next(tensor for tensor in model.graph.initializer if tensor.name == "us")
            scale.CopyFrom(onnx.numpy_helper.from_array(np.full(8, 0.015, np.float32), "us"))
            return built(target, *ports)(model)

        return opened if target == "openvino-cpu" else built(target, *ports)

    monkeypatch.setattr(agreement, "deployed", broken)
    record = agreement.measure("openvino-cpu", exported, ROWS)
    assert record.parted_at is not None
    assert record.parted_at.node == "second"
    assert "they part at second (Conv)" in agreement_check(record).evidence


def test_an_engine_of_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = project(tmp_path, "openvino-cpu", network())
    monkeypatch.chdir(tmp_path)
    (paths.CHOSEN / "cpu" / "quantized.json").unlink()
    with pytest.raises(ModelError, match="another Q/DQ model"):
        agreement.measure("openvino-cpu", exported, ROWS)


def test_the_journey_from_the_float_graph_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The float graph here has weights a tenth larger than the Q/DQ graph stands for: the loss is quantization's, not the engine's."""
    exported = project(tmp_path, "openvino-cpu", network())
    model = onnx.load_from_string(network())
    nodes = {node.name: node for node in model.graph.node}
    for name, source in (("first", "x"), ("second", "d")):
        nodes[name].input[0] = source
    nodes["second"].output[0] = "y"
    for name in ("q0", "d0", "q1", "d1", "q2", "d2"):
        model.graph.node.remove(nodes[name])
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "us")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.full(8, 0.011, np.float32), "us"))
    (tmp_path / paths.EXPORT).mkdir(parents=True)
    (tmp_path / paths.EXPORT / "model.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path)
    record = agreement.journey("openvino-cpu", exported, ROWS)
    assert [hop.hop for hop in record.hops] == ["simplified -> qdq", "qdq -> openvino-cpu"]
    assert record.blamed == "simplified -> qdq"
    assert record.hops[0].sqnr_db == pytest.approx(20 * np.log10(11), abs=1)
    assert record.parted_at is not None
    assert record.parted_at.node == "second"
