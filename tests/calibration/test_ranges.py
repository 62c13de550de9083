"""Ranges against numpy on real ONNX Runtime, and every input that must not become a scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibration.observe import Observer
from calibration.ranges import check_bound, collect
from pipeline.digests import merkle_root, sha256_file
from pipeline.errors import RangeError
from pipeline.records import ExportedModel, Ranges, Role, Roles, RowSource
from pipeline.tensors import AxisRange, TensorSpec

GRAPH = """<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 4] x) => (float[batch, 4] y) <float minus = {-9.0}> {
  [exp] e = Exp(x)
  [down] d = Add(x, minus)
  [relu] r = Relu(d)
  [turn] t = Transpose<perm = [1, 0]>(e)
  [back] b = Transpose<perm = [1, 0]>(t)
  [out] y = Add(b, r)
}"""


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, ExportedModel]:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH), path)
    return path, record_of(path)


def record_of(path: Path, batch: AxisRange = AxisRange(2, 4, 8)) -> ExportedModel:  # noqa: B008  frozen
    specs = (TensorSpec("x", "float32", ("batch", 4)),), (TensorSpec("y", "float32", ("batch", 4)),)
    return ExportedModel(sha256_file(path), "", "", "", 20, *specs, {"batch": batch}, (), 0, {})


def ranges_of(model: tuple[Path, ExportedModel], rows: np.ndarray, batch_rows: int = 16, min_rows: int = 2) -> Ranges:
    parts = ({"x": rows[start : start + batch_rows]} for start in range(0, len(rows), batch_rows))
    ids = [f"{i:07d}" for i in range(len(rows))]
    return collect(*model, parts, ids, calibration_root="r", preprocess_sha256="p", min_rows=min_rows, batch_rows=batch_rows)


ROWS = np.random.default_rng(2).normal(size=(37, 4)).astype(np.float32)


def test_ranges_are_those_of_numpy(model: tuple[Path, ExportedModel]) -> None:
    ranges = ranges_of(model, ROWS)
    assert set(ranges.tensors) == {"x", "e", "d", "r", "t", "b", "y"}
    assert (ranges.tensors["x"].low, ranges.tensors["x"].high) == (ROWS.min(), ROWS.max())
    assert ranges.tensors["t"].high == pytest.approx(np.exp(ROWS).max(), rel=1e-6)
    halves = [np.abs(ROWS[0::2]).max(), np.abs(ROWS[1::2]).max()]
    assert ranges.tensors["x"].halves_ratio == pytest.approx(min(halves) / max(halves))
    assert ranges.calibration_rows == 37


@pytest.mark.parametrize("batch_rows", [1, 5, 8, 37])
def test_batching_does_not_matter(model: tuple[Path, ExportedModel], batch_rows: int) -> None:
    got, expected = ranges_of(model, ROWS, batch_rows).tensors, ranges_of(model, ROWS).tensors
    assert {name: (entry.low, entry.high) for name, entry in got.items()} == {name: (entry.low, entry.high) for name, entry in expected.items()}
    assert got["y"] == expected["y"]  # t has no batch axis: its halves are whole batches


def test_older_opsets_too(tmp_path: Path, model: tuple[Path, ExportedModel]) -> None:
    path = tmp_path / "old.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH.replace('"" : 20', '"" : 13').replace("ir_version: 10", "ir_version: 7")), path)
    assert ranges_of((path, record_of(path)), ROWS).tensors == ranges_of(model, ROWS).tensors


def test_dead_tensors_are_listed(model: tuple[Path, ExportedModel]) -> None:
    ranges = ranges_of(model, ROWS)
    assert ranges.dead == ("r",)
    assert any("r" in warning and "zero" in warning for warning in ranges.warnings)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_names_row_and_tensor(model: tuple[Path, ExportedModel], value: float) -> None:
    rows = ROWS.copy()
    rows[11, 2] = value
    with pytest.raises(RangeError, match="tensor x, row 0000011"):
        ranges_of(model, rows)


def test_an_activation_that_overflows_names_row_and_tensor(model: tuple[Path, ExportedModel]) -> None:
    rows = ROWS.copy()
    rows[23, 1] = 200.0  # exp(200) is beyond float32
    with pytest.raises(RangeError, match="tensor e, row 0000023"):
        ranges_of(model, rows)


def test_every_row_the_same_is_degenerate(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match="degenerate"):
        ranges_of(model, np.full((40, 4), 0.25, dtype=np.float32))
    with pytest.raises(RangeError, match="degenerate"):
        ranges_of(model, np.repeat(ROWS[:1], 40, axis=0))


def test_one_row_is_too_few(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match=r"quantize\.min_rows = 32") as caught:
        ranges_of(model, ROWS[:1], min_rows=32)
    assert caught.value.got == "1"


def test_ranges_that_have_not_converged_are_said(model: tuple[Path, ExportedModel]) -> None:
    rows = ROWS.copy()
    rows[4] = 60.0  # one outlier row in the even half
    ranges = ranges_of(model, rows)
    assert ranges.tensors["x"].halves_ratio < 0.1
    assert any("not converged" in warning for warning in ranges.warnings)


def test_another_model_file_is_refused(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match="not the one"):
        ranges_of((model[0], dataclasses.replace(model[1], onnx_sha256="0" * 64)), ROWS)


def test_stale_ranges_are_refused_by_what_differs(model: tuple[Path, ExportedModel]) -> None:
    digests = ("ab" * 32,)
    role = Role(source="main", rows=("0000000",), digests=digests, merkle_root=merkle_root(digests), labels={"a": 1}, groups=())
    roles = Roles({"main": RowSource("s", "", 1)}, "p", 0, ("a",), (), {}, (), {"calibration": role})
    ranges = dataclasses.replace(ranges_of(model, ROWS), calibration_root=role.merkle_root)
    check_bound(ranges, model[1], roles)
    for field, name in (("onnx_sha256", "model"), ("calibration_root", "rows"), ("preprocess_sha256", "preprocessing"), ("method", "method")):
        with pytest.raises(RangeError, match=name):
            check_bound(dataclasses.replace(ranges, **{field: "0" * 64}), model[1], roles)


def test_memory_holds_no_activations(tmp_path: Path) -> None:
    """48 activations of 8 MiB a batch: a collector that kept them would need 384 MiB more than one that frees them."""
    import subprocess
    import sys

    nodes = " ".join(f"t{i + 1} = Relu(t{i})" for i in range(48))
    path = tmp_path / "deep.onnx"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 262144] t0) => (float[batch, 262144] t48) {{ {nodes} }}'),
        path,
    )
    script = f"""
import resource, sys, numpy as np
from pathlib import Path
from types import SimpleNamespace
from calibration.observe import Observer
from pipeline.tensors import AxisRange, TensorSpec
exported = SimpleNamespace(inputs=(TensorSpec("t0", "float32", ("batch", 262144)),), shapes={{"batch": AxisRange(1, 8, 8)}})
observer = Observer(Path({str(path)!r}), exported)
rows = np.ones((8, 262144), dtype=np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
observer.run({{"t0": rows}}, [str(i) for i in range(8)])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    home = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=home, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150


def test_the_observer_pads_below_the_smallest_batch(model: tuple[Path, ExportedModel]) -> None:
    low, high = Observer(*model).run({"x": ROWS[:1]}, ["0000000"])["x"]
    assert (low.tolist(), high.tolist()) == ([ROWS[0].min()], [ROWS[0].max()])
