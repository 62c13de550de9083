"""`qwarm compare` and `qwarm lint` on a per-tensor build, as a peer makes it: refused, and the layers that cause it are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from calibration.layer_loss import layer_losses
from calibration.onnx_model import read_model
from cli.app import app
from cli.lint import lint_file
from cli.quantize import Asked, quantize_file

TEXT = """<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 16, 8, 8] x) => (float[batch, 4] y) {
  [stem] s = Conv <pads = [1, 1, 1, 1]> (x, stem_w, stem_b) [stem_relu] t = Relu(s)
  [deep] d = Conv <group = 16, pads = [1, 1, 1, 1]> (t, deep_w, deep_b) [deep_clip] e = Clip(d, low, high)
  [point] p = Conv (e, point_w, point_b) [point_relu] q = Relu(p)
  [pool] a = GlobalAveragePool(q) [flat] f = Flatten(a) [head] y = Gemm(f, head_w, head_b) }"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One depthwise channel has weights a thousand times as large as the others', saturates, and counts little."""
    folder = tmp_path_factory.mktemp("network")
    random = np.random.default_rng(0)
    shapes = {"stem": (16, 16, 3, 3), "deep": (16, 1, 3, 3), "point": (16, 16, 1, 1), "head": (16, 4)}
    stored = {f"{name}_w": random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    stored |= {f"{name}_b": np.zeros(4 if name == "head" else 16) for name in shapes}
    stored["deep_w"][3] *= 1000
    stored["point_w"][:, 3] *= 0.01
    stored |= {"low": np.array(-3.0), "high": np.array(3.0)}
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items())
    onnx.save(model, folder / "float.onnx")
    np.savez(folder / "rows.npz", x=random.standard_normal((64, 16, 8, 8)).astype(np.float32))
    return folder


def per_tensor(network: Path, out: Path) -> Path:
    """The build of `quantize_static` without per-channel scales."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = iter([{"x": np.load(network / "rows.npz")["x"]}])

        def get_next(self) -> Any:
            return next(self.batches, None)

    quantize_static(str(network / "float.onnx"), str(out), Reader(), per_channel=False, weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8)
    return out


def test_a_per_tensor_build_is_refused_and_its_layer_named(network: Path, tmp_path: Path) -> None:
    bad = per_tensor(network, tmp_path / "per_tensor.onnx")
    arguments = ["compare", str(network / "float.onnx"), str(bad), "--data", str(network / "rows.npz")]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"]) == (3, "FAIL")
    assert (found["layers"][0]["node"], found["layers"][0]["operator"]) == ("deep", "Conv")
    assert found["layers"][0]["before_db"] > found["layers"][0]["sqnr_db"] + 10
    assert list(found["coarse_weights_db"]) == ["deep"]
    text = CliRunner().invoke(app, arguments).stdout
    assert "verdict: FAIL; output y:" in text
    assert "loses most: deep (Conv):" in text
    assert "weights too coarse: deep:" in text
    linted = [finding for finding in lint_file(bad, "cpu", {})["findings"] if finding["rule"] == "one-scale"]
    assert [(finding["node"], finding["severity"], len(finding["channels"])) for finding in linted] == [("deep (Conv)", "warning", 15)]


def test_a_per_channel_build_passes(network: Path, tmp_path: Path) -> None:
    quantize_file(network / "float.onnx", network / "rows.npz", tmp_path / "int8.onnx", Asked("cpu"))
    done = CliRunner().invoke(
        app, ["compare", str(network / "float.onnx"), str(tmp_path / "int8.onnx"), "--data", str(network / "rows.npz"), "--json"]
    )
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"], found["reasons"], found["coarse_weights_db"]) == (0, "PASS", [], {})


def test_equal_graphs_have_no_losing_layer(network: Path) -> None:
    model = read_model(network / "float.onnx")
    assert layer_losses(model, model, {"x": np.load(network / "rows.npz")["x"][:4]}) == ()
