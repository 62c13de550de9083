"""`qwarm quantize` on files: what is right is quantized and passes the lint; what would fail in silence is refused, and nothing is written."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from calibration.onnx_model import read_model
from calibration.rounding.methods import Methods
from cli.app import app
from cli.compare import compare_files
from cli.lint import lint_file
from cli.quantize import Asked, quantize_file
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, DataError, ModelError, QuantizeError, QwarmError, RangeError, Refused
from pipeline.side_files import save_model

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
CPU = Asked("cpu")
NEAREST = Methods(splitting=False, equalization=False, adaptation=False, rounding="nearest", bias_correction=False)


def weight(*shape: int, scale: float = 0.2) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)


def images(count: int, scale: float = 1.0, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, 3, 8, 8)) * scale).astype(np.float32)


def write(path: Path, text: str, **stored: Any) -> Path:
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    path.write_bytes(model.SerializeToString())
    return path


def conv_net(path: Path, *, scale: float = 0.2, act: str = "Relu", bias: float = 0.0, batch: str = "batch", channels: int = 16) -> Path:
    """x (batch, 3, 8, 8) -> Conv -> act -> global average -> Gemm -> y (batch, 4): what the shared cases are made of."""
    text = f"""g (float[{batch}, 3, 8, 8] x) => (float[{batch}, 4] y) {{ [conv1] c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) [act] a = {act}(c)
      [pool] p = GlobalAveragePool(a) [flat] f = Flatten(p) [fc] y = Gemm(f, w2, b2) }}"""
    stored = {"w1": weight(channels, 3, 3, 3, scale=scale), "b1": np.full(channels, bias, np.float32), "w2": weight(channels, 4, scale=1)}
    return write(path, text, **stored, b2=np.zeros(4, np.float32))


def rows(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def refused(tmp_path: Path, model: Path, data: Path, kind: type[QwarmError], message: str, asked: Asked = CPU) -> QwarmError:
    """The refusal; nothing may be at the final path, nor beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(kind, match=message) as caught:
        quantize_file(model, data, folder / "model.onnx", asked)
    assert not list(folder.iterdir())
    folder.rmdir()
    assert caught.value.exit_code != 0
    assert caught.value.next
    return caught.value


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quantize", *map(str, arguments)])


def test_a_model_and_rows_become_a_model_that_runs_in_int8(tmp_path: Path) -> None:
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(70))
    done = command(model, "--calibration", data, "--scheme", "cpu", "--out", tmp_path / "int8.onnx", "--json")
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    assert report["quantized_nodes"] == ["conv1", "fc"]
    assert (report["calibration_rows"], report["judged_rows"], report["left_out"], report["beyond_float16"]) == (70, 64, {}, {})
    assert report["sqnr_db"] > 30
    linted = lint_file(tmp_path / "int8.onnx", "cpu", {})
    assert linted["verdict"] == "PASS"
    assert all(seen["int8_share"] == 1 for seen in linted["runtimes"].values())
    validation = rows(tmp_path / "validation.npz", x=images(200, seed=9))
    assert (compare_files(model, tmp_path / "int8.onnx", validation)[0].outputs["y"].sqnr_db or 99) > 30
    text = command(model, "--calibration", data, "--scheme", "cpu", "--out", tmp_path / "int8.onnx").stdout
    assert "2 nodes in INT8; ranges by mse from 70 rows" in text
    assert "qwarm lint" in text


def test_a_row_that_is_not_finite_is_named_and_may_be_left_out(tmp_path: Path) -> None:
    broken = images(40)
    broken[7, 0, 0, 0] = np.nan
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=broken)
    refused(tmp_path, model, data, DataError, r"(?s)row 7, input x.*--quarantine")
    report = quantize_file(model, data, tmp_path / "int8.onnx", Asked("cpu", quarantine=True))
    assert report["calibration_rows"] == 39
    assert list(report["left_out"]) == ["7"]
    every = rows(tmp_path / "every.npz", x=np.full_like(broken, np.inf))
    refused(tmp_path, model, every, DataError, "(?s)no rows.*none of them finite", Asked("cpu", quarantine=True))


def test_an_overflow_inside_the_model_names_tensor_and_row(tmp_path: Path) -> None:
    large = images(40)
    large[11] *= 300
    error = refused(tmp_path, conv_net(tmp_path / "float.onnx", act="Exp"), rows(tmp_path / "rows.npz", x=large), RangeError, "not finite")
    assert "row 11" in error.where
    assert "tensor" in error.where


def test_constant_rows_are_refused_with_the_dead_tensors(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "float.onnx", bias=-1000)
    error = refused(tmp_path, model, rows(tmp_path / "rows.npz", x=np.full((32, 3, 8, 8), 5, np.float32)), RangeError, "(?s)degenerate.*input x")
    assert "zero throughout" in error.got


def test_too_few_rows_are_refused_and_allowed_with_a_warning(tmp_path: Path) -> None:
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(1, 0.05))
    refused(tmp_path, model, data, RangeError, "(?s)too few.*at least 32.*--min-rows 1")
    report = quantize_file(model, data, tmp_path / "int8.onnx", Asked("cpu", min_rows=1))  # one row: a fit to it has no variance to go by
    assert report["sqnr_db"] > 20
    assert any("have not converged" in warning for warning in report["warnings"])


def test_an_outlier_pixel_is_named_and_does_not_set_the_range(tmp_path: Path) -> None:
    bright = images(64)
    bright[20, 1, 3, 3] = 1e4
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=bright)
    report = quantize_file(model, data, tmp_path / "int8.onnx", CPU)
    assert any("x: row 20 reaches 1e+04" in warning for warning in report["warnings"])
    assert report["judged_rows"] == 63
    validation = rows(tmp_path / "validation.npz", x=images(256, seed=9))
    assert (compare_files(model, tmp_path / "int8.onnx", validation)[0].outputs["y"].sqnr_db or 99) > 25
    far = Asked("cpu", method="max", methods=NEAREST)
    refused(tmp_path, model, data, QuantizeError, r"(?s)too far from the float model.*10 dB.*row 20.*--method", far)
    loose = quantize_file(model, data, tmp_path / "int8.onnx", dataclasses.replace(far, min_sqnr_db=-1))
    assert loose["sqnr_db"] < 5


def test_ranges_are_kept_and_refused_for_another_model_and_other_rows(tmp_path: Path) -> None:
    first, second = conv_net(tmp_path / "first.onnx"), conv_net(tmp_path / "second.onnx", scale=6)
    data, kept = rows(tmp_path / "rows.npz", x=images(64)), tmp_path / "ranges.json"
    quantize_file(first, data, tmp_path / "a.onnx", Asked("cpu", save_ranges=kept))
    quantize_file(first, data, tmp_path / "b.onnx", Asked("cpu", ranges=kept))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    other = rows(tmp_path / "other.npz", x=images(64, seed=5))
    for model, given, asked, message in (
        (second, data, Asked("cpu", ranges=kept), "another model"),
        (first, other, Asked("cpu", ranges=kept), "another set of calibration rows"),
        (first, data, Asked("cpu", ranges=kept, method="max"), "another method"),
    ):
        refused(tmp_path, model, given, RangeError, message, asked)


def test_nothing_to_quantize_is_refused_with_a_reason_before_rows_are_counted(tmp_path: Path) -> None:
    model = write(tmp_path / "float.onnx", "g (float[1, 64] x) => (float[1, 16] y) { [only] y = MatMul(x, w) }", w=weight(64, 16))
    data = rows(tmp_path / "rows.npz", x=np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32))
    error = refused(tmp_path, model, data, QuantizeError, "No operator can be quantized", Asked("tensorrt"))
    assert "only (MatMul)" in error.got
    assert "vector product" in error.got
    plain = write(tmp_path / "plain.onnx", "g (float[batch, 64] x) => (float[batch, 64] y) { [r] y = Relu(x) }")
    for scheme in ("cpu", "tensorrt"):
        refused(tmp_path, plain, data, QuantizeError, "(?s)No operator can be quantized.*without such an operator", Asked(scheme))


def test_activations_beyond_float16_keep_float32_and_it_is_said(tmp_path: Path) -> None:
    """The scheme `tensorrt`, in a process of its own: modelopt must not be in this one afterwards."""
    model, data = conv_net(tmp_path / "float.onnx", scale=2e4), rows(tmp_path / "rows.npz", x=images(64))
    done = command(model, "--calibration", data, "--scheme", "tensorrt", "--out", tmp_path / "int8.onnx", "--json")
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    assert report["high_precision"] == "float32"
    assert set(report["beyond_float16"]) >= {"c"}
    assert report["sqnr_db"] > 30
    assert "modelopt.onnx" not in sys.modules
    types = {tensor.data_type for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT16 not in types
    assert lint_file(tmp_path / "int8.onnx", "tensorrt", {}, run=False)["verdict"] == "PASS"


def test_cpu_refuses_a_process_with_modelopt_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelopt.onnx", sys)
    refused(tmp_path, conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(40)), QuantizeError, "patches ONNX Runtime")


def test_a_fixed_batch_names_the_node(tmp_path: Path) -> None:
    text = "g (float[batch, 3, 8, 8] x) => (float[batch, 4] y) { [turn] r = Reshape(x, to) [head] y = MatMul(r, w) }"
    model = write(tmp_path / "float.onnx", text, to=np.array([2, 192], np.int64), w=weight(192, 4))
    error = refused(tmp_path, model, rows(tmp_path / "rows.npz", x=images(40)), ModelError, "does not follow")
    assert "turn (Reshape)" in error.where


def test_a_static_batch_uses_every_row(tmp_path: Path) -> None:
    """37 rows are no multiple of 5, and the largest value is in the last one."""
    late = images(37)
    late[36] *= 1.9
    model, data = conv_net(tmp_path / "float.onnx", batch="5"), rows(tmp_path / "rows.npz", x=late)
    report = quantize_file(model, data, tmp_path / "int8.onnx", Asked("cpu", method="max", save_ranges=tmp_path / "ranges.json"))
    assert (report["calibration_rows"], report["judged_rows"]) == (37, 37)
    low, high = (json.loads((tmp_path / "ranges.json").read_text())["tensors"]["x"][end] for end in ("low", "high"))
    assert max(-low, high) == float(np.abs(late[36]).max())


def test_integer_inputs_two_axes_and_weights_in_a_side_file(tmp_path: Path) -> None:
    text = """g (int64[batch, time] ids, float[batch, time] mask) => (float[batch, time, 24] each, float[batch, 24] pooled) {
      [embed] e = Gather(table, ids) [wide] m = Unsqueeze(mask, last) [hide] h = Mul(e, m) [inner] i = MatMul(h, w1) [act] j = Relu(i)
      [outer] each = MatMul(j, w2) [pool] pooled = ReduceMean <keepdims = 0> (each, one) }"""
    stored = {"table": weight(50, 32, scale=1), "last": np.array([-1]), "one": np.array([1])}
    model = write(tmp_path / "plain.onnx", text, **stored, w1=weight(32, 48), w2=weight(48, 24))
    save_model(read_model(model), tmp_path / "float.onnx", limit=1000)
    random = np.random.default_rng(0)
    mask = random.uniform(0.5, 1, (40, 7)).astype(np.float32)
    data = rows(tmp_path / "rows.npz", ids=random.integers(0, 50, (40, 7)), mask=mask)
    report = quantize_file(tmp_path / "float.onnx", data, tmp_path / "int8.onnx", CPU)
    assert report["quantized_nodes"] == ["inner", "outer"]
    assert report["agreement"] is None
    assert report["sqnr_db"] > 25
    assert lint_file(tmp_path / "int8.onnx", "cpu", {"time": 7})["verdict"] == "PASS"
    side = tmp_path / "float.onnx.data"
    side.write_bytes(side.read_bytes()[::-1])
    refused(tmp_path, tmp_path / "float.onnx", data, Refused, "float.onnx.data")


def test_a_model_that_is_quantized_already_is_refused_by_node(tmp_path: Path) -> None:
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(40))
    quantize_file(model, data, tmp_path / "int8.onnx", CPU)
    refused(tmp_path, tmp_path / "int8.onnx", data, QuantizeError, r"(?s)quantized already.*qwarm lint")


@pytest.mark.parametrize("asked", [Asked("gpu"), Asked("cpu", method="best"), Asked("cpu", min_rows=0)])
def test_what_does_not_exist_is_a_usage_error(tmp_path: Path, asked: Asked) -> None:
    with pytest.raises(ConfigError, match="--"):
        quantize_file(conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(40)), tmp_path / "int8.onnx", asked)


def test_an_output_must_be_a_file_of_its_own_and_an_old_one_stays_on_refusal(tmp_path: Path) -> None:
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(2))
    for out in (tmp_path, model):
        with pytest.raises(ConfigError, match="--out"):
            quantize_file(model, data, out, CPU)
    (tmp_path / "old.onnx").write_bytes(b"old")
    with pytest.raises(RangeError):
        quantize_file(model, data, tmp_path / "old.onnx", CPU)
    assert (tmp_path / "old.onnx").read_bytes() == b"old"


SHARED = [
    ("nan_row", "cpu", r"row 7, input x"),
    ("inf_activation", "cpu", r"tensor \w+, row 11"),
    ("constant_input", "cpu", "(?s)same in every row.*zero throughout"),
    ("one_dark_row", "cpu", "(?s)too few.*at least 32"),
    ("zero_qdq", "tensorrt", "(?s)No operator can be quantized.*only"),
]


@pytest.mark.parametrize(("case", "scheme", "message"), SHARED)
def test_the_shared_cases_that_are_refused(tmp_path: Path, shared_case: Callable[[str], Path], case: str, scheme: str, message: str) -> None:
    folder = shared_case(case)
    refused(tmp_path, folder / "model.onnx", folder / "calibration.npz", QwarmError, message, Asked(scheme))


def test_the_shared_cases_that_become_good_models(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    folder = shared_case("outlier_pixel")
    report = quantize_file(folder / "model.onnx", folder / "calibration.npz", tmp_path / "a.onnx", CPU)
    assert any("x: row 20" in warning for warning in report["warnings"])
    assert (compare_files(folder / "model.onnx", tmp_path / "a.onnx", folder / "validation.npz")[0].outputs["y"].sqnr_db or 99) > 25
    folder = shared_case("fp16_overflow")
    report = quantize_file(folder / "model.onnx", folder / "calibration.npz", tmp_path / "b.onnx", CPU)
    assert report["beyond_float16"]
    assert report["sqnr_db"] > 30


def test_the_shared_cases_of_stale_ranges_and_of_a_fixed_batch(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    folder = shared_case("stale_ranges")
    kept = tmp_path / "ranges.json"
    quantize_file(folder / "first.onnx", folder / "calibration.npz", tmp_path / "a.onnx", Asked("cpu", save_ranges=kept))
    refused(tmp_path, folder / "second.onnx", folder / "calibration.npz", RangeError, "another model", Asked("cpu", ranges=kept))
    folder = shared_case("fixed_batch")
    error = refused(tmp_path, folder / "model.onnx", rows(tmp_path / "rows.npz", x=images(40)), ModelError, "does not follow")
    assert "Reshape_0 (Reshape)" in error.where


def test_weights_are_fitted_as_in_the_pipeline_and_each_switch_is_heard(tmp_path: Path) -> None:
    model, data = conv_net(tmp_path / "float.onnx"), rows(tmp_path / "rows.npz", x=images(64))
    judges = rows(tmp_path / "judges.npz", x=images(64, seed=5))
    options = ("--calibration", data, "--search", judges, "--scheme", "cpu", "--out", tmp_path / "int8.onnx", "--json")
    fitted = json.loads(command(model, *options).stdout)
    assert (fitted["weights"], set(fitted["sqnr_db_by_weights"])) == ("fitted", {"nearest", "fitted"})
    assert fitted["sqnr_db"] == fitted["sqnr_db_by_weights"]["fitted"] > fitted["sqnr_db_by_weights"]["nearest"] + 1
    off = ("--rounding", "nearest", "--no-splitting", "--no-equalization", "--no-adaptation", "--no-bias-correction")
    plain = json.loads(command(model, *options, *off).stdout)
    assert plain["sqnr_db_by_weights"] == {"nearest": fitted["sqnr_db_by_weights"]["nearest"]}
    part = json.loads(command(model, *options, *off[:3]).stdout)
    assert plain["sqnr_db"] < part["sqnr_db_by_weights"]["fitted"] != fitted["sqnr_db"]
    with pytest.raises(ConfigError, match="compensated or nearest"):
        quantize_file(model, data, tmp_path / "other.onnx", Asked("cpu", methods=Methods(rounding="up")))


def test_weights_beyond_the_limit_lie_beside_the_model_under_its_name(tmp_path: Path) -> None:
    """The limit is lowered from 2 GiB."""
    model, data = conv_net(tmp_path / "float.onnx", channels=64), rows(tmp_path / "rows.npz", x=images(64))
    (tmp_path / "out").mkdir()
    report = quantize_file(model, data, tmp_path / "out" / "int8.onnx", CPU, limit=1000)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["int8.onnx", "int8.onnx.data"]
    assert report["sha256"] == sha256_file(tmp_path / "out" / "int8.onnx")
    assert lint_file(tmp_path / "out" / "int8.onnx", "cpu", {})["verdict"] == "PASS"
    whole = quantize_file(model, data, tmp_path / "whole.onnx", CPU)
    assert whole["sqnr_db"] == report["sqnr_db"]
