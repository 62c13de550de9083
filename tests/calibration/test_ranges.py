"""Ranges against numpy on real ONNX Runtime, and every input that must not become a scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibration import observe
from calibration.observe import Observer, Seen
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


def ranges_of(model: tuple[Path, ExportedModel], rows: np.ndarray, batch_rows: int = 16, min_rows: int = 2, method: str = "max") -> Ranges:
    parts = ({"x": rows[start : start + batch_rows]} for start in range(0, len(rows), batch_rows))
    ids = [f"{i:07d}" for i in range(len(rows))]
    return collect(*model, parts, ids, calibration_root="r", preprocess_sha256="p", min_rows=min_rows, batch_rows=batch_rows, method=method)


ROWS = np.random.default_rng(2).normal(size=(37, 4)).astype(np.float32)


def test_ranges_are_those_of_numpy(model: tuple[Path, ExportedModel]) -> None:
    ranges = ranges_of(model, ROWS)
    assert set(ranges.tensors) == {"x", "e", "d", "r", "t", "b", "y"}
    assert (ranges.tensors["x"].low, ranges.tensors["x"].high) == (ROWS.min(), ROWS.max())
    assert ranges.tensors["t"].high == pytest.approx(np.exp(ROWS).max(), rel=1e-6)
    assert ranges.tensors["d"] == ranges.tensors["r"]  # a Relu and what it reads are one kernel
    halves = [np.abs(ROWS[:18]).max(), np.abs(ROWS[18:]).max()]
    assert ranges.tensors["x"].halves_ratio == pytest.approx(min(halves) / max(halves))
    assert ranges.calibration_rows == 37


@pytest.mark.parametrize("method", ["max", "percentile", "entropy", "mse"])
def test_batching_does_not_matter(model: tuple[Path, ExportedModel], method: str) -> None:
    rows = np.random.default_rng(3).normal(size=(1501, 4)).astype(np.float32)  # a prime: no multiple of any batch
    expected = ranges_of(model, rows, 16, method=method).tensors
    for batch_rows in (7, 1501):
        got = ranges_of(model, rows, batch_rows, method=method).tensors
        assert {name: entry for name, entry in got.items() if name != "t"} == {name: entry for name, entry in expected.items() if name != "t"}
        assert (got["t"].seen_magnitude, got["t"].halves_ratio) == (expected["t"].seen_magnitude, expected["t"].halves_ratio)  # no batch axis


@pytest.mark.parametrize("method", ["max", "mse"])
def test_all_rows_count_where_the_batch_is_fixed(tmp_path: Path, model: tuple[Path, ExportedModel], method: str) -> None:
    path = tmp_path / "fixed.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH.replace("batch, 4", "8, 4")), path)
    rows = np.random.default_rng(4).normal(size=(613, 4)).astype(np.float32)
    rows[-1, 2] = 9.0  # in the last, incomplete batch
    got = ranges_of((path, record_of(path, AxisRange(8, 8, 8))), rows, method=method).tensors
    assert got["x"].seen_magnitude == 9.0
    expected = ranges_of(model, rows, method=method).tensors
    assert {name: entry for name, entry in got.items() if name != "t"} == {name: entry for name, entry in expected.items() if name != "t"}


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
    with pytest.raises(RangeError, match="input x, row 0000011"):
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


def test_rows_and_their_names_must_agree(model: tuple[Path, ExportedModel]) -> None:
    for names in (30, 44):
        with pytest.raises(RangeError, match=f"{names} rows"):
            collect(*model, [{"x": ROWS}], ["id"] * names, calibration_root="r", preprocess_sha256="p", min_rows=2, batch_rows=37)


def test_a_method_that_does_not_exist_is_named(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match="max, percentile, entropy, mse"):
        ranges_of(model, ROWS, method="minmax")


def test_one_row_is_too_few(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match=r"quantize\.min_rows = 32") as caught:
        ranges_of(model, ROWS[:1], min_rows=32)
    assert caught.value.got == "1"


def test_ranges_that_have_not_converged_are_said(model: tuple[Path, ExportedModel]) -> None:
    rows = ROWS.copy()
    rows[:18] *= 5
    ranges = ranges_of(model, rows)
    assert ranges.tensors["x"].halves_ratio < 0.5
    assert "x" not in {entry.tensor for entry in ranges.outliers}
    assert any("not converged" in warning for warning in ranges.warnings)


def test_another_model_file_is_refused(model: tuple[Path, ExportedModel]) -> None:
    with pytest.raises(RangeError, match="not the one"):
        ranges_of((model[0], dataclasses.replace(model[1], onnx_sha256="0" * 64)), ROWS)


def test_stale_ranges_are_refused_by_what_differs(model: tuple[Path, ExportedModel]) -> None:
    digests = ("ab" * 32,)
    role = Role(source="main", rows=("0000000",), digests=digests, merkle_root=merkle_root(digests), labels={"a": 1}, labels_sha256="", groups=())
    roles = Roles({"main": RowSource("s", "", 1)}, "p", 0, ("a",), (), {}, (), {"calibration": role})
    ranges = dataclasses.replace(ranges_of(model, ROWS), calibration_root=role.merkle_root)
    check_bound(ranges, model[1], roles, method="max", batch_rows=16)
    others = {
        "onnx_sha256": ("0" * 64, "model"),
        "calibration_root": ("0" * 64, "calibration rows"),
        "preprocess_sha256": ("0" * 64, "preprocessing"),
        "method": ("mse", "method"),
        "parameters": ({"percent": 99.0}, "method"),
        "batch_rows": (8, "batch size"),
        "tools": (ranges.tools | {"numpy": "1.0"}, "version of numpy"),
    }
    for field, (value, name) in others.items():
        with pytest.raises(RangeError, match=f"another {'set of ' if name == 'calibration rows' else ''}{name}"):
            check_bound(dataclasses.replace(ranges, **{field: value}), model[1], roles, method="max", batch_rows=16)


def test_the_record_comes_back_from_disk(model: tuple[Path, ExportedModel], tmp_path: Path) -> None:
    rows = ROWS.copy()
    rows[4] = 60.0
    ranges = ranges_of(model, rows, method="percentile")
    ranges.save(tmp_path / "ranges.json")
    assert Ranges.load(tmp_path / "ranges.json") == ranges
    assert ranges.outliers[0].rows == ("0000004",)


@pytest.mark.parametrize("smallest", [1, 8])
def test_memory_holds_no_activations(tmp_path: Path, smallest: int) -> None:
    """96 activations of 8 MiB a batch: a collector that kept them would need 768 MiB more. A batch fixed at 8 is spread over several sessions."""
    import subprocess
    import sys

    nodes = " ".join(f"t{i + 1} = Abs(t{i})" for i in range(96))
    path = tmp_path / "deep.onnx"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 262144] t0) => (float[batch, 262144] t96) {{ {nodes} }}'),
        path,
    )
    script = f"""
import numpy as np
from pathlib import Path
from types import SimpleNamespace
from calibration.observe import Observer
from pipeline.tensors import AxisRange, TensorSpec
exported = SimpleNamespace(inputs=(TensorSpec("t0", "float32", ("batch", 262144)),), shapes={{"batch": AxisRange({smallest}, 8, 8)}})
observer = Observer(Path({str(path)!r}), exported)
rows = np.ones((16, 262144), dtype=np.float32)
def peak():  # not ru_maxrss: a child inherits its parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
taken = []
observer.run({{"t0": rows}}, [str(i) for i in range(16)], lambda name, seen: taken.extend([name] * len(seen.ids)))
assert len(taken) == 97 * 16, len(taken)
print((peak() - before) / 1024)
"""
    home = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=home, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 560


def test_the_observer_pads_below_the_smallest_batch(model: tuple[Path, ExportedModel]) -> None:
    found: dict[str, Seen] = {}
    Observer(*model).run({"x": ROWS[:1]}, ["0000000"], found.__setitem__)
    assert found["x"].values.tolist() == [ROWS[0].tolist()]
    assert (found["x"].low, found["x"].high, found["x"].ids) == (ROWS[0].min(), ROWS[0].max(), ("0000000",))
    assert found["t"].values.shape == (1, 8)  # no batch axis: one line that holds the padding too


@pytest.mark.parametrize("budget", [observe.BUDGET_BYTES, 1])
def test_what_the_body_of_an_if_reads_is_observed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """The If takes `d` from outside, so `d` is not the Relu's alone, and a graph that is cut for one session keeps what gives it."""
    monkeypatch.setattr(observe, "BUDGET_BYTES", budget)
    path = tmp_path / "if.onnx"
    graph = onnx.parser.parse_model(GRAPH)
    bodies = [
        onnx.helper.make_graph(
            [onnx.helper.make_node(operator, ["d"], [operator])], operator, [], [onnx.helper.make_tensor_value_info(operator, 1, ["batch", 4])]
        )
        for operator in ("Neg", "Abs")
    ]
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    graph.graph.node.append(onnx.helper.make_node("If", ["always"], ["z"], name="if", then_branch=bodies[0], else_branch=bodies[1]))
    graph.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["batch", 4]))
    onnx.save(graph, path)
    tensors = ranges_of((path, record_of(path)), ROWS).tensors
    assert tensors["d"].low == pytest.approx(ROWS.min() - 9)
    assert tensors["z"].high == pytest.approx(9 - ROWS.min())
