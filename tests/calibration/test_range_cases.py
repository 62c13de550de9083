"""Small models and rows that break calibration elsewhere: each made here, and taken from shared/cases where that is beside this repository."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from calibration import cpu_scheme
from calibration.ranges import collect
from pipeline.digests import sha256_file
from pipeline.errors import RangeError
from pipeline.records import ExportedModel, Ranges
from pipeline.tensors import AxisRange, TensorSpec

SHARED = Path(__file__).resolve().parents[2].parent / "shared/cases/make_cases.py"
HISTOGRAMS = ["percentile", "entropy", "mse"]
METHODS = ["max", *HISTOGRAMS]
Make = Callable[[str], Path]


def network(path: Path, weight_scale: float = 0.2, activation: str = "Relu", bias: float | None = None) -> None:
    """x (batch, 3, 8, 8) -> Conv to 8 channels -> activation -> mean over the picture -> Gemm -> y (batch, 4)."""
    random = np.random.default_rng(0)
    weights = {"w1": random.normal(size=(8, 3, 3, 3)) * weight_scale, "w2": random.normal(size=(8, 4)), "b2": np.zeros(4)}
    if bias is not None:
        weights["b1"] = np.full(8, bias)
    nodes = [
        helper.make_node("Conv", ["x", "w1", *(["b1"] if bias is not None else [])], ["c"], pads=[1] * 4, name="conv1"),
        helper.make_node(activation, ["c"], ["a"], name="act"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], name="fc"),
    ]
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ["batch", 3, 8, 8]), ("y", ["batch", 4]))]
    constants = [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def rows(count: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(1).normal(size=(count, 3, 8, 8)) * scale).astype(np.float32)


def own(case: str, folder: Path) -> None:
    folder.mkdir()
    data = rows(32)
    if case == "nan_row":
        data[7, 0, 0, 0] = np.nan
    elif case == "inf_activation":
        data[11] *= 300
    elif case == "constant_input":
        data[:] = 5
    elif case == "one_dark_row":
        data = rows(1, 0.05)
    elif case == "outlier_pixel":
        data = rows(64)
        data[20, 1, 3, 3] = 1e4
    np.savez(folder / "calibration.npz", x=data)
    np.savez(folder / "validation.npz", x=rows(256)[::-1])
    if case == "stale_ranges":
        network(folder / "first.onnx")
        network(folder / "second.onnx", 6.0)
        return
    scale = 4e3 if case == "fp16_overflow" else 0.2
    network(folder / "model.onnx", scale, "Exp" if case == "inf_activation" else "Relu", -1000 if case == "constant_input" else None)


@pytest.fixture(params=["own", "shared"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """`make(case)` gives a folder with model.onnx, calibration.npz and, for some, validation.npz."""

    def build(case: str) -> Path:
        folder = tmp_path / case
        if request.param == "own":
            own(case, folder)
            return folder
        if not SHARED.is_file():
            pytest.skip("shared/cases is not beside this repository")
        spec = importlib.util.spec_from_file_location("make_cases", SHARED)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        getattr(module, case)(folder)
        return folder

    return build


def record_of(path: Path) -> ExportedModel:
    specs = (TensorSpec("x", "float32", ("batch", 3, 8, 8)),), (TensorSpec("y", "float32", ("batch", 4)),)
    return ExportedModel(sha256_file(path), "", "", "", 17, *specs, {"batch": AxisRange(1, 4, 8)}, (), 0, {})


def ranges_of(folder: Path, method: str, model: str = "model.onnx", min_rows: int = 32) -> Ranges:
    data, path = np.load(folder / "calibration.npz")["x"], folder / model
    parts = ({"x": data[start : start + 16]} for start in range(0, len(data), 16))
    ids = [str(number) for number in range(len(data))]
    return collect(path, record_of(path), parts, ids, calibration_root="r", preprocess_sha256="p", min_rows=min_rows, batch_rows=16, method=method)


def decibels(folder: Path, ranges: Ranges, model: str = "model.onnx") -> float:
    """SQNR of the scheme `cpu` on the validation rows."""
    path, data = folder / model, np.load(folder / "validation.npz")["x"]
    quantized = cpu_scheme.quantize(path, record_of(path), ranges, folder / "quantized", {"x": data})
    assert quantized.search_sqnr_db is not None
    return quantized.search_sqnr_db


@pytest.mark.parametrize("method", METHODS)
def test_nan_row(make: Make, method: str) -> None:
    with pytest.raises(RangeError, match="input x, row 7"):
        ranges_of(make("nan_row"), method)


@pytest.mark.parametrize("method", METHODS)
def test_inf_activation(make: Make, method: str) -> None:
    with pytest.raises(RangeError, match="tensor a, row 11") as caught:
        ranges_of(make("inf_activation"), method)
    assert "inf" in caught.value.got


@pytest.mark.parametrize("method", METHODS)
def test_constant_input(make: Make, method: str) -> None:
    with pytest.raises(RangeError, match="degenerate") as caught:
        ranges_of(make("constant_input"), method)
    assert caught.value.where == "input x"
    assert "zero throughout: a, " in caught.value.got


def test_dead_tensors_are_reported_and_take_no_part_in_a_scale(make: Make) -> None:
    """The same dead ReLU under rows that do vary: ranges of nothing, and never a scale of zero."""
    folder = make("constant_input")
    np.savez(folder / "calibration.npz", x=rows(32))
    for method in METHODS:
        ranges = ranges_of(folder, method)
        assert "a" in ranges.dead
        assert (ranges.tensors["a"].low, ranges.tensors["a"].high, ranges.tensors["a"].magnitude) == (0, 0, 0)
        assert any("zero for every row: a" in warning for warning in ranges.warnings)
        cpu_scheme.quantize(
            folder / "model.onnx", record_of(folder / "model.onnx"), ranges, folder / "quantized", {"x": np.load(folder / "validation.npz")["x"]}
        )
        constants = onnx.load(folder / "quantized/model.onnx").graph.initializer
        scales = [onnx.numpy_helper.to_array(tensor) for tensor in constants if tensor.name.endswith("_scale")]
        assert scales
        assert all(np.isfinite(scale).all() and (scale >= np.finfo(np.float32).tiny).all() for scale in scales)


@pytest.mark.parametrize("method", METHODS)
def test_one_dark_row(make: Make, method: str) -> None:
    folder = make("one_dark_row")
    with pytest.raises(RangeError, match=r"quantize\.min_rows = 32"):
        ranges_of(folder, method)
    assert any("not converged" in warning for warning in ranges_of(folder, method, min_rows=1).warnings)


@pytest.mark.parametrize("method", METHODS)
def test_outlier_pixel_is_named(make: Make, method: str) -> None:
    ranges = ranges_of(make("outlier_pixel"), method)
    found = {entry.tensor: entry for entry in ranges.outliers}
    assert {"x", "a"} <= set(found)
    assert found["x"].rows == ("20",)
    assert found["x"].magnitude == 1e4
    assert found["x"].others < 6
    assert any("x: row 20 reaches 1e+04" in warning for warning in ranges.warnings)
    assert ranges.tensors["x"].seen_magnitude == 1e4


def test_outlier_pixel_leaves_the_histogram_methods_their_decibels(make: Make) -> None:
    folder = make("outlier_pixel")
    for method in HISTOGRAMS:
        ranges = ranges_of(folder, method)
        assert decibels(folder, ranges) >= 25
        assert min(entry.halves_ratio for entry in ranges.tensors.values()) > 0.8
    assert decibels(folder, ranges_of(folder, "max")) < 5  # what the case is about


def test_stale_ranges(make: Make) -> None:
    folder = make("stale_ranges")
    ranges = ranges_of(folder, "mse", "first.onnx")
    rows_there = {"x": np.load(folder / "calibration.npz")["x"]}
    with pytest.raises(RangeError, match="another model"):
        cpu_scheme.quantize(folder / "second.onnx", record_of(folder / "second.onnx"), ranges, folder / "quantized", rows_there)
    assert not (folder / "quantized").exists()


@pytest.mark.parametrize("method", METHODS)
def test_fp16_overflow_can_be_seen_in_the_record(make: Make, method: str) -> None:
    ranges = ranges_of(make("fp16_overflow"), method)
    assert ranges.tensors["a"].seen_magnitude > 65504
    assert ranges.tensors["x"].seen_magnitude < 65504
