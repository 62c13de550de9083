"""`qwarm quantize --float-layer --max-drift` on files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.quantize import Asked, quantize_file
from pipeline.errors import ConfigError, QuantizeError

TEXT = """<ir_version: 10, opset_import: ["" : 20]> g (float[n, 3, 8, 8] x) => (float[n, 4] y) {
    [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) [r1] b = Relu(a) [body] c = Conv <pads = [1, 1, 1, 1]> (b, w2, b2) [r2] d = Relu(c)
    [pool] e = GlobalAveragePool(d) [flat] f = Flatten(e) [fc] y = Gemm(f, w3, b3) }"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A model of three layers, and 48 rows."""
    monkeypatch.setenv("QWARM_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (16, 4), "b3": (4,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array((random.standard_normal(shape) * 0.2).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "rows.npz", x=random.standard_normal((48, 3, 8, 8)).astype(np.float32))
    return tmp_path / "net.onnx", tmp_path / "rows.npz"


def test_a_named_layer_stays_in_float(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    arguments = ["quantize", str(model), "--calibration", str(data), "--scheme", "cpu", "--out", str(tmp_path / "int8.onnx"), "--float-layer", "stem"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["float_nodes"] == [{"node": "stem", "operator": "Conv", "reason": "named in --float-layer"}]
    assert report["quantized_nodes"] == ["body", "fc"]


def test_a_layer_that_there_is_not_is_named_with_the_nearest(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean stem") as caught:
        quantize_file(*files, tmp_path / "int8.onnx", Asked("cpu", float_layers=("stme",)))
    assert "--float-layer" in str(caught.value)
    assert not (tmp_path / "int8.onnx").exists()


def test_layers_go_back_to_float_until_the_drift_is_met(files: tuple[Path, Path], tmp_path: Path) -> None:
    plain = 10 ** (-quantize_file(*files, tmp_path / "plain.onnx", Asked("cpu"))["sqnr_db"] / 10)
    report = quantize_file(*files, tmp_path / "int8.onnx", Asked("cpu", max_drift=plain / 1.2))
    assert report["float_nodes"]
    assert all(node["reason"].startswith("search: +") for node in report["float_nodes"])
    assert 10 ** (-report["sqnr_db"] / 10) <= plain / 1.2


def test_a_drift_that_no_choice_meets_is_refused_and_nothing_written(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="farther from float than was asked for"):
        quantize_file(*files, tmp_path / "int8.onnx", Asked("cpu", max_drift=1e-12))
    assert not (tmp_path / "int8.onnx").exists()


@pytest.mark.parametrize("drift", [0.0, -0.1, 1.0, float("nan")])
def test_a_drift_that_is_no_part_is_refused(files: tuple[Path, Path], tmp_path: Path, drift: float) -> None:
    with pytest.raises(ConfigError, match="--max-drift"):
        quantize_file(*files, tmp_path / "int8.onnx", Asked("cpu", max_drift=drift))
