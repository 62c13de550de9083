"""`qwarm compare`: overall, per class and per channel on models whose differences are known; and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.compare import compare_files
from cli.gate import gate_file
from engines.once import build_once
from pipeline.errors import ConfigError, DataError, QwarmError
from pipeline.tensors import AxisRange, TensorSpec
from release.breakdown import Breakdown, breakdown

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
CLASSES = 4


def linear(path: Path, factors: np.ndarray, shift: float = 0.0, batch: str = "batch") -> Path:
    """x (batch, 4) times a diagonal: the largest score is that of the largest scaled input."""
    model = onnx.parser.parse_model(f"{HEADER} g (float[{batch}, 4] x) => (float[{batch}, 4] y) {{ [m] a = Mul(x, f) [s] y = Add(a, b) }}")
    for name, value in (("f", factors.astype(np.float32)), ("b", np.full(CLASSES, shift, np.float32))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows whose label is their largest value, 20 a class; the second largest is four fifths of it."""
    random = np.random.default_rng(0)
    labels = np.arange(20 * CLASSES) % CLASSES
    rows = random.uniform(0, 0.5, (len(labels), CLASSES)).astype(np.float32)
    rows[np.arange(len(labels)), labels] = 1
    rows[np.arange(len(labels)), (labels + 1) % CLASSES] = 0.8
    np.savez(tmp_path / "data.npz", x=rows, label=labels)
    return tmp_path / "data.npz"


def test_a_lost_class_and_a_bad_channel_show(tmp_path: Path, data: Path) -> None:
    """Channel 2 at seven tenths loses class 2 to class 3, whose scores are four fifths there; the rest stays."""
    first, second = linear(tmp_path / "a.onnx", np.ones(4)), linear(tmp_path / "b.onnx", np.array([1, 1, 0.7, 1]))
    done = CliRunner().invoke(app, ["compare", str(first), str(second), "--data", str(data), "--json", "--pairs", str(tmp_path / "pairs.csv")])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["rows"]) == (0, 80)
    assert found["agreement"] == 0.75
    assert (found["top1"]["first"], found["top1"]["second"], found["top1"]["lost"], found["top1"]["gained"]) == (1.0, 0.75, 20, 0)
    assert {name: entry["second_right"] for name, entry in found["classes"].items()} == {"0": 1, "1": 1, "2": 0, "3": 1}
    channels = found["outputs"]["y"]["channel_sqnr_db"]
    assert channels[:2] + channels[3:] == [None] * 3
    assert channels[2] == pytest.approx(-20 * np.log10(0.3), abs=1e-4)
    gated = gate_file(tmp_path / "pairs.csv", 0.01)
    assert (gated["verdict"], gated["lost"], gated["interval"]) == ("FAIL", 20, [found["top1"]["interval_low"], found["top1"]["interval_high"]])
    text = CliRunner().invoke(app, ["compare", str(first), str(second), "--data", str(data)]).stdout
    assert "class 2: 20 rows, 1.000 to 0.000 right" in text
    assert "20 lost, 0 gained" in text
    assert Breakdown.from_json({key: value for key, value in found.items() if key in Breakdown.__dataclass_fields__}).agreement == 0.75


def test_equal_models_are_equal_and_class_names_are_used(tmp_path: Path, data: Path) -> None:
    path = linear(tmp_path / "a.onnx", np.ones(4))
    found, rows, pairs = compare_files(path, path, data, class_names=("ant", "bee", "cat", "dog"))
    assert found.outputs["y"].sqnr_db is None
    assert list(found.classes) == ["ant", "bee", "cat", "dog"]
    assert found.top1 is not None
    assert found.top1.drop == 0
    assert len(rows.ids) == 80
    assert pairs is not None
    assert pairs.count("1,1\n") == 80


def test_without_labels_there_is_agreement_and_no_top1(tmp_path: Path, data: Path) -> None:
    np.savez(tmp_path / "bare.npz", x=np.load(data)["x"])
    first, second = linear(tmp_path / "a.onnx", np.ones(4)), linear(tmp_path / "b.onnx", np.ones(4), shift=0.01)
    found, _, pairs = compare_files(first, second, tmp_path / "bare.npz")
    assert (found.agreement, found.top1, found.classes, pairs) == (1.0, None, {}, None)
    assert found.outputs["y"].max_absolute == pytest.approx(0.01, abs=1e-6)


def test_a_static_batch_and_an_engine_folder_run_every_row(tmp_path: Path, data: Path) -> None:
    """80 rows are no multiple of 3."""
    first, fixed = linear(tmp_path / "a.onnx", np.ones(4)), linear(tmp_path / "b.onnx", np.ones(4) * 0.99, batch="3")
    found, _, _ = compare_files(first, fixed, data)
    assert found.rows == 80
    assert found.outputs["y"].sqnr_db == pytest.approx(40, abs=0.1)
    work = tmp_path / "built"
    work.mkdir()
    specs = {"inputs": (TensorSpec("x", "float32", ("batch", 4)),), "outputs": (TensorSpec("y", "float32", ("batch", 4)),)}
    content = linear(tmp_path / "c.onnx", np.ones(4) * 0.9).read_bytes()
    build_once(content, "onnxruntime-cpu", **specs, shapes={"batch": AxisRange(1, 2, 4)}, folder=work, precision="float32")
    found, _, _ = compare_files(first, work / "engine", data)
    assert found.outputs["y"].sqnr_db == pytest.approx(20, abs=0.1)


def test_a_parquet_source_with_preprocessing(tmp_path: Path, data: Path) -> None:
    from datasets import Dataset

    arrays = np.load(data)
    Dataset.from_dict({"values": (arrays["x"] * 100).tolist(), "kind": arrays["label"].tolist()}).to_parquet(str(tmp_path / "rows.parquet"))
    mine = tmp_path / "mine.py"
    body = "return {'x': (np.asarray(raw['v']) / 100).astype(np.float32)}"
    mine.write_text(f"import numpy as np\nNAMES = ('a', 'b', 'c', 'd')\ndef prepare(raw):\n    {body}\n")
    first, second = linear(tmp_path / "a.onnx", np.ones(4)), linear(tmp_path / "b.onnx", np.array([1, 1, 0.7, 1]))
    options = ["--column", "v=values", "--preprocess", f"{mine}:prepare", "--label", "kind", "--classes", f"{mine}:NAMES"]
    done = CliRunner().invoke(app, ["compare", str(first), str(second), "--data", str(tmp_path / "rows.parquet"), "--json", *options])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["classes"]["c"]["second_right"] == 0


def two_inputs(path: Path) -> Path:
    text = "g (int64[batch, 5] ids, float[batch, 5] weights) => (float[batch, 5] y) { [c] a = Cast <to = 1> (ids) [m] y = Mul(a, weights) }"
    path.write_bytes(onnx.parser.parse_model(f"{HEADER} {text}").SerializeToString())
    return path


def test_swapped_names_dtypes_and_shapes_are_refused_by_name(tmp_path: Path) -> None:
    model = two_inputs(tmp_path / "two.onnx")
    ids, weights = np.ones((6, 5), np.int64), np.ones((6, 5), np.float32)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"ids": weights, "weights": ids}, r"(?s)swapped.*ids and weights"),
        ({"ids": ids.astype(np.int32), "weights": weights}, r"(?s)row 0, input ids.*int64.*int32"),
        ({"ids": ids, "weights": weights.astype(np.float64)}, r"(?s)input weights.*float32.*float64"),
        ({"ids": ids[:, :4], "weights": weights}, r"(?s)input ids.*\[5\].*\[4\]"),
        ({"ids": ids[:5], "weights": weights}, "different numbers of rows"),
        ({"ids": ids}, r"(?s)not the model's inputs.*ids, weights"),
        ({"ids": ids, "weights": weights, "more": weights}, r"(?s)not the model's inputs.*more"),
        ({"ids": ids[:0], "weights": weights[:0]}, "no rows"),
        ({"ids": ids, "weights": np.where(np.arange(6)[:, None] == 4, np.nan, weights).astype(np.float32)}, r"(?s)not finite.*row 4, input weights"),
    ]
    for arrays, message in bad:
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(DataError, match=message):
            compare_files(model, model, tmp_path / "bad.npz")
    np.savez(tmp_path / "good.npz", ids=ids, weights=weights)
    assert compare_files(model, model, tmp_path / "good.npz")[0].rows == 6


def test_what_does_not_belong_together(tmp_path: Path, data: Path) -> None:
    first = linear(tmp_path / "a.onnx", np.ones(4))
    with pytest.raises(ConfigError, match="other inputs"):
        compare_files(first, two_inputs(tmp_path / "two.onnx"), data)
    with pytest.raises(QwarmError, match="cannot be read"):
        compare_files(first, first, tmp_path / "absent.npz")
    with pytest.raises(QwarmError, match="engine.json"):
        compare_files(first, tmp_path, data)
    with pytest.raises(ConfigError, match="no such array"):
        compare_files(first, first, data, label="wrong")
    with pytest.raises(ConfigError, match="not preprocessed"):
        compare_files(first, first, data, preprocess="a.py:b")
    np.savez(tmp_path / "bare.npz", x=np.load(data)["x"])
    done = CliRunner().invoke(app, ["compare", str(first), str(first), "--data", str(tmp_path / "bare.npz"), "--pairs", str(tmp_path / "pairs.csv")])
    assert isinstance(done.exception, ConfigError)
    assert not (tmp_path / "pairs.csv").exists()


def test_breakdown_refuses_what_cannot_be_compared() -> None:
    scores = np.eye(4, dtype=np.float32)
    broken = scores.copy()
    broken[2, 1] = np.inf
    for second, labels, message in (
        ({"z": scores}, None, "other outputs"),
        ({"y": scores[:3]}, None, "another shape"),
        ({"y": broken}, None, "row 2, output y of the second"),
        ({"y": scores}, np.array([0, 1, 2, 4]), "row 3"),
        ({"y": scores}, np.array([0.0, 1, 2, 3]), "no class indices"),
    ):
        with pytest.raises(DataError, match=message):
            breakdown({"y": scores}, second, labels)
    with pytest.raises(DataError, match="nothing to compare"):
        breakdown({"y": scores[:0]}, {"y": scores[:0]})
    with pytest.raises(DataError, match="class scores"):
        breakdown({"y": scores[:, 0]}, {"y": scores[:, 0]}, np.arange(4))
    assert breakdown({"y": scores * 0}, {"y": scores}).outputs["y"].sqnr_db == -999
