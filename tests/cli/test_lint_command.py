"""`qwarm lint` on files: exit codes, one error with a node and a way out, and what the real runtimes of a scheme execute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.app import app
from cli.lint import lint_file
from pipeline.errors import ConfigError, ModelError, Refused

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'


def lint(path: Path, scheme: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["lint", str(path), "--scheme", scheme, *options])


def conv_net(path: Path, *, unsigned: bool, scale: float = 0.01, float_weight: bool = False, behind: bool = True) -> Path:
    """x (batch, 16, 8, 8) -> Conv 16 -> Relu -> Conv 16 -> y, Q/DQ in front of each Conv and, with `behind`, of the output.

    With `float_weight` the first weight stays in float, its channels of very different size.
    """
    zero = "uint8" if unsigned else "int8"
    body = "[q0] a = QuantizeLinear(x, s, z) [d0] b = DequantizeLinear(a, s, z) [wd0] w = DequantizeLinear <axis = 0> (c0, ws, wz) "
    if float_weight:
        body = body.partition("[wd0]")[0]
    body += "[conv0] c = Conv <group = 16, pads = [1, 1, 1, 1]> (b, w) [relu] d = Relu(c) "
    body += "[q1] e = QuantizeLinear(d, s, z) [d1] f = DequantizeLinear(e, s, z) "
    body += "[wd1] v = DequantizeLinear <axis = 0> (c1, ws, wz) [conv1] g = Conv(f, v) "
    body += "[q2] h = QuantizeLinear(g, t, z) [d2] y = DequantizeLinear(h, t, z)" if behind else "[last] y = Identity(g)"
    model = onnx.parser.parse_model(f"{HEADER} g (float[batch, 16, 8, 8] x) => (float[batch, 16, 8, 8] y) {{ {body} }}")
    random = np.random.default_rng(0)
    scales = np.full(16, 0.02, np.float32)
    scales[3] = scale
    stored: dict[str, Any] = {
        "s": np.float32(0.05), "t": np.float32(0.4), "z": np.zeros((), zero), "ws": scales, "wz": np.zeros(16, np.int8),
        "c0": random.integers(-60, 60, (16, 1, 3, 3)).astype(np.int8), "c1": random.integers(-60, 60, (16, 16, 1, 1)).astype(np.int8),
    }  # fmt: skip
    if float_weight:
        del stored["c0"]
        stored["w"] = (random.standard_normal((16, 1, 3, 3)) * np.logspace(-3, 0.5, 16)[:, None, None, None]).astype(np.float32)
        stored["c1"] = (stored["c1"] * np.linspace(2, 0.02, 16)[None, :, None, None]).astype(np.int8)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("scheme", "unsigned", "targets"), [("cpu", True, {"onnxruntime-cpu", "openvino-cpu"}), ("tensorrt", False, {"openvino-cpu"})]
)
def test_a_right_model_really_runs_in_int8(tmp_path: Path, scheme: str, unsigned: bool, targets: set[str]) -> None:
    done = lint(conv_net(tmp_path / "model.onnx", unsigned=unsigned), scheme, "--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["verdict"], report["findings"]) == (0, "PASS", [])
    assert report["quantized_nodes"] == ["conv0", "conv1"]
    measured = {target for target, seen in report["runtimes"].items() if seen.get("int8_share", 0) > 0.99}
    assert measured == targets
    assert all(value > 30 for target in targets for value in report["runtimes"][target]["sqnr_db_to_as_written"].values() if value is not None)


def test_a_node_that_one_runtime_runs_in_float_is_a_warning_there(tmp_path: Path) -> None:
    report = lint_file(conv_net(tmp_path / "model.onnx", unsigned=True, behind=False), "cpu", {})
    assert report["verdict"] == "PASS"
    assert [(finding["rule"], finding["severity"], finding["node"]) for finding in report["findings"]] == [("runs-in-float", "warning", "conv1")]
    assert report["runtimes"]["onnxruntime-cpu"]["in_float"] == {"conv1": "FP32"}


def test_a_zero_scale_names_node_and_channel(tmp_path: Path) -> None:
    done = lint(conv_net(tmp_path / "model.onnx", unsigned=False, scale=0.0), "tensorrt", "--json")
    error = json.loads(done.stdout)
    assert done.exit_code == error["exit_code"] == 3
    assert "node wd0 (DequantizeLinear), channel 3" in error["where"]
    assert error["runtimes"] == {}
    assert "qwarm quantize" in error["next"]
    assert "A scale is zero" in done.stderr


def test_an_unsigned_model_is_refused_for_tensorrt_and_fine_for_cpu(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "model.onnx", unsigned=True)
    done = lint(path, "tensorrt")
    assert done.exit_code == 3
    assert "node q0 (QuantizeLinear)" in done.stderr
    assert "--scheme cpu" in done.stderr
    assert lint(path, "cpu").exit_code == 0


def test_a_pass_that_breaks_mixed_precision_is_told_and_the_target_is_right(tmp_path: Path) -> None:
    """ONNX Runtime's WeightBiasQuantization gives float weights one scale; the target's own options leave it out."""
    report = lint_file(conv_net(tmp_path / "model.onnx", unsigned=True, float_weight=True), "cpu", {})
    found = next(finding for finding in report["findings"] if finding["rule"] == "default-options")
    assert (found["severity"], found["node"]) == ("warning", "conv0 (Conv)")
    assert "WeightBiasQuantization" in found["what"]
    assert not [finding for finding in report["findings"] if finding["rule"] == "runtimes-part"]


def test_a_fixed_batch_is_named_by_its_node(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[batch, 4] x) => (float[batch, 4] y) {{ [turn] y = Reshape(x, to) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 4], np.int64), "to"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    done = lint(tmp_path / "model.onnx", "cpu")
    assert done.exit_code == 3
    assert "node turn (Reshape)" in done.stderr


def test_an_operator_that_no_runtime_has_is_named_with_a_way_out(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "model.onnx", unsigned=True)
    model = onnx.load(path)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type, relu.domain = "Shrug", "mine"
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    path.write_bytes(model.SerializeToString())
    done = lint(path, "cpu")
    assert done.exit_code == 3
    assert "Shrug" in done.stderr
    assert "replace the operator" in done.stderr


def test_a_dynamic_axis_needs_a_size_and_takes_one(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[batch, time, 4] x) => (float[batch, time, 4] y) {{ [r] y = Relu(x) }}")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="--size time=N"):
        lint_file(path, "cpu", {})
    assert lint_file(path, "cpu", {"time": 8})["findings"][0]["rule"] == "nothing-quantized"
    with pytest.raises(ConfigError, match="does not have"):
        lint_file(path, "cpu", {"time": 8, "width": 3})


def test_what_is_no_model_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "torn.onnx").write_bytes(b"\x08\x07\x12")
    for path in (tmp_path / "torn.onnx", tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(ModelError, match="model"):
            lint_file(path, "cpu", {})
    with pytest.raises(ConfigError, match="tensorrt or cpu"):
        lint_file(conv_net(tmp_path / "model.onnx", unsigned=True), "gpu", {})
    for wrong in ("time", "time=", "=4", "time=0", "time=-1", "time=x"):
        assert isinstance(lint(tmp_path / "model.onnx", "cpu", "--size", wrong).exception, ConfigError)


def test_the_shared_case_of_illegal_qdq(shared_case: Callable[[str], Path]) -> None:
    path = shared_case("illegal_qdq") / "model.onnx"
    done = lint(path, "tensorrt")
    assert (done.exit_code, "QuantizeLinear_0 (output xq)" in done.stderr) == (3, True)
    assert lint(path, "cpu").exit_code == 0


@pytest.mark.parametrize("scheme", ["tensorrt", "cpu"])
def test_the_shared_cases_of_a_zero_scale_and_of_nothing_quantized(shared_case: Callable[[str], Path], scheme: str) -> None:
    done = lint(shared_case("zero_scale") / "model.onnx", scheme)
    assert (done.exit_code, "DequantizeLinear_2 (output wd), channel 3" in done.stderr) == (3, True)
    done = lint(shared_case("zero_qdq") / "model.onnx", scheme)
    assert (done.exit_code, "No operator is quantized" in done.stderr, "only (MatMul)" in done.stderr) == (3, True, True)


def test_the_shared_case_of_swapped_weights(shared_case: Callable[[str], Path]) -> None:
    """Every file that a model refers to is hashed."""
    from pipeline.side_files import describe_files, verify_files

    folder = shared_case("external_data_swap")
    files = describe_files(folder / "good" / "model.onnx")
    assert set(files) == {"model.onnx", "weights.bin"}
    verify_files(folder / "good" / "model.onnx", files)
    with pytest.raises(Refused, match="weights.bin"):
        verify_files(folder / "swapped" / "model.onnx", files)
