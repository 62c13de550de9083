"""Models whose weights no message holds, from ranges to a Q/DQ model: equal to those of small models, and never all in memory."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import BATCH, calibration_of, model_of, prepared

from calibration import cpu_scheme, tensorrt_scheme
from calibration.lint import lint
from calibration.onnx_model import axis_ranges, describe, read_lean, read_model
from calibration.rounding.methods import Methods
from calibration.rounding.reconstruct import reconstruct
from calibration.runtime import run_session, session
from calibration.variants import Job, variants
from pipeline.errors import QuantizeError
from pipeline.side_files import MAX_INSIDE
from pipeline.weights import folder_of

TEXT = """g (float[n, 16, 8, 8] x) => (float[n, 40] y) {
  [one] a = Conv <pads = [1, 1, 1, 1]> (x, one_w, one_b) [relu] b = Relu(a) [two] c = Conv <pads = [1, 1, 1, 1]> (b, two_w, two_b)
  [joined] d = Add(a, c) [again] e = Relu(d) [three] f = Conv(e, three_w, three_b) [pool] p = GlobalAveragePool(f) [flat] q = Flatten(p)
  [wide] r = Gemm <transB = 1> (q, wide_w, wide_b) [last] s = MatMul(r, last_w) [bias] y = Add(s, last_b) }"""
WEIGHTS = {"one_w": (16, 16, 3, 3), "two_w": (16, 16, 3, 3), "three_w": (32, 16, 1, 1), "wide_w": (300, 32), "last_w": (300, 40)}
ROWS = {"x": np.random.default_rng(2).standard_normal((32, 16, 8, 8)).astype(np.float32)}


@pytest.fixture
def network() -> onnx.ModelProto:
    model = model_of(TEXT.replace("last_b", "last_c"), WEIGHTS)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 40).astype(np.float32), "last_c"))
    wide = next(tensor for tensor in model.graph.initializer if tensor.name == "wide_w")
    value = onnx.numpy_helper.to_array(wide).copy()
    value[7] = 0  # a channel that needs a safe scale
    wide.CopyFrom(onnx.numpy_helper.from_array(value, "wide_w"))
    return model


def arrays(path: Path) -> dict[str, bytes]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in read_model(path).graph.initializer}


@pytest.mark.parametrize("scheme", [cpu_scheme, tensorrt_scheme])
@pytest.mark.parametrize("limit", [1000, MAX_INSIDE])
def test_a_lean_model_is_quantized_as_one_that_is_held(
    network: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: object, limit: int
) -> None:
    quantize = scheme.quantize  # type: ignore[attr-defined]
    held = prepared(tmp_path / "held", network, ROWS)
    wanted = held.quantized(quantize, tmp_path / "wanted", ROWS)
    monkeypatch.setattr("pipeline.weights.HELD", 1000)
    large = prepared(tmp_path / "large", network, ROWS, limit=limit)
    got = large.quantized(quantize, tmp_path / "got", ROWS)
    assert held.ranges.tensors == large.ranges.tensors
    assert arrays(tmp_path / "wanted" / "model.onnx") == arrays(tmp_path / "got" / "model.onnx")
    assert (wanted.variants, wanted.variant, wanted.float_nodes) == (got.variants, got.variant, got.float_nodes)


def test_no_message_of_a_lean_job_holds_its_weights(network: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.weights.HELD", 1000)
    ready = prepared(tmp_path / "large", network, ROWS)
    job = Job(ready.path, ready.exported, ready.ranges, ROWS, calibration_of(ROWS))
    found = variants(cpu_scheme.RULES, job)
    assert sorted(found) == ["fitted", "nearest"]
    floats = sum(np.prod(shape) * 4 for shape in WEIGHTS.values())
    for variant in found.values():
        for graph in (variant.source, variant.model):
            assert folder_of(graph) == job.scratch.path
            assert graph.ByteSize() < floats / 5


@pytest.mark.parametrize("weight", ["MatMul(x, w)", "Gemm <transB = 1> (x, w)", "Gemm(x, w, c)", "Conv(x, w, c)"])
def test_a_layer_fitted_in_blocks_of_its_outputs_is_the_layer_fitted_at_once(weight: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without adaptation, whose strength is chosen for what is fitted together."""
    axes, sizes = (", 6, 6", (24, 16, 1, 1)) if weight.startswith("Conv") else ("", (24, 16) if "transB" in weight else (16, 24))
    source = model_of(f"g (float[n, 16{axes}] x) => (float[n, 24{axes}] y) {{ [layer] y = {weight} }}", {"w": sizes})
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 24).astype(np.float32), "c"))
    shape = (64, 16, 6, 6) if axes else (64, 16)
    rows = {"x": np.random.default_rng(0).gamma(1, 1, shape).astype(np.float32)}
    methods = Methods(adaptation=False)
    quantized = cpu_scheme._quantized(source, _ranges(source, rows), cpu_scheme.place(source))
    once, blocks = (_fitted(source, quantized, rows, methods, most, monkeypatch) for most in (2**24, 16 * 7))
    assert once.codes.shape == blocks.codes.shape == sizes
    np.testing.assert_array_equal(once.scale, blocks.scale)
    assert np.mean(once.codes == blocks.codes) > 0.99  # another shape may be summed in another order
    if once.bias is not None:
        np.testing.assert_allclose(once.bias, blocks.bias, rtol=1e-2, atol=1e-2)


def _ranges(source: onnx.ModelProto, rows: dict[str, np.ndarray]) -> object:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return prepared(Path(folder), source, rows).ranges


def _fitted(source, quantized, rows, methods, most, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr("calibration.rounding.layers.BLOCK", most)
    return reconstruct(source, quantized, calibration_of(rows, methods=methods), BATCH, int32_bias=True)["layer"]


def test_a_session_reads_the_weights_of_a_lean_graph_where_they_are(
    network: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.weights.HELD", 1000)
    onnx.save(network, tmp_path / "model.onnx")
    (tmp_path / "scratch").mkdir()
    lean = read_lean(tmp_path / "model.onnx", tmp_path / "scratch")
    few = {"x": ROWS["x"][:4]}
    for optimize in (True, False):
        wanted, got = (run_session(session(model, optimize=optimize), few)["y"] for model in (network, lean))
        np.testing.assert_array_equal(wanted, got)


def test_the_lint_of_a_lean_graph_still_finds_what_is_not_valid(network: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pipeline.weights.HELD", "calibration.lint.HELD"):
        monkeypatch.setattr(name, 1000)
    found = describe(network)
    shapes = axis_ranges(found, {}, batch=BATCH)
    (tmp_path / "scratch").mkdir()
    rules = []
    for dims in ((300, 32), (600, 16)):
        network.graph.initializer[6].dims[:] = dims
        onnx.save(network, tmp_path / "model.onnx")
        findings, _ = lint(read_lean(tmp_path / "model.onnx", tmp_path / "scratch"), "cpu", found, shapes)
        rules.append({finding.rule for finding in findings})
    assert "invalid" not in rules[0]
    assert "invalid" in rules[1]


def test_a_killed_modelopt_is_said_to_lack_memory(network: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = prepared(tmp_path / "float", network, ROWS)
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, "", "")
    monkeypatch.setattr("calibration.tensorrt_scheme.subprocess.run", lambda *_, **__: killed)
    with pytest.raises(QuantizeError, match="memory") as error:
        ready.quantized(tensorrt_scheme.quantize, tmp_path / "out", ROWS)
    assert "--scheme cpu" in (error.value.next or "")
