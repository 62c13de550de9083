"""torch to ONNX on real torch and ONNX Runtime: folded, named, equal at several sizes, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch

from calibration.checkpoint import load_checkpoint, load_module
from calibration.export import export
from calibration.graph import nodes_that_fix
from calibration.parity import compare, points
from pipeline.config import ModelConfig
from pipeline.errors import ModelError
from pipeline.padding import fit
from pipeline.records import ExportedModel
from pipeline.tensors import AxisRange, Batch, TensorSpec

Make = Callable[..., ModelConfig]


@pytest.fixture(scope="module")
def exported(tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedModel]:
    folder = tmp_path_factory.mktemp("export") / "model"
    return folder, export(tiny_model(), tiny_root, folder, batch)


def test_the_record_says_what_is_on_disk(exported: tuple[Path, ExportedModel]) -> None:
    folder, record = exported
    assert sorted(path.name for path in folder.iterdir()) == ["exported.json", "model.onnx"]
    assert ExportedModel.load(folder / "exported.json") == record
    assert record.outputs == (TensorSpec("logits", "float32", ("batch", 3)),)
    assert record.macs == 64 * 16 * 9 + 64 * 16 * 16 * 9 + 16 * 3
    assert record.operators["Conv"] == 2


def test_parity_at_three_sizes_and_a_row_alone(exported: tuple[Path, ExportedModel]) -> None:
    sizes = Counter(entry.hop for entry in exported[1].parity)
    assert sizes == {"torch -> onnx": 3, "onnx -> simplified": 3, "smallest batch -> this batch, same rows": 2}
    assert {entry.sizes["batch"] for entry in exported[1].parity} == {1, 4, 8}
    assert all(entry.max_relative < 1e-5 for entry in exported[1].parity)


def test_no_batch_norm_is_left_and_names_are_torch_modules(exported: tuple[Path, ExportedModel]) -> None:
    graph = onnx.load(exported[0] / "model.onnx").graph
    names = [node.name for node in graph.node]
    assert "BatchNormalization" not in {node.op_type for node in graph.node}
    assert {"stem.0", "layer_scale.0".replace("_scale", ".scale"), "head"} <= set(names)
    assert len(set(names)) == len(names)
    assert not any("_scale" in output for node in graph.node for output in node.output)


def test_no_path_of_this_machine_is_in_the_file(exported: tuple[Path, ExportedModel], tiny_root: Path) -> None:
    content = (exported[0] / "model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert str(tiny_root).encode() not in content


def test_equal_inputs_give_equal_bytes(exported: tuple[Path, ExportedModel], tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path: Path) -> None:
    again = export(tiny_model(), tiny_root, tmp_path / "again", batch)
    assert again == exported[1]


@pytest.mark.parametrize("factory", ["build_fixed", "build_branch"])
def test_a_batch_that_is_fixed_in_truth_is_named(factory: str, tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="batch"):
        export(tiny_model(factory), tiny_root, tmp_path / "model", batch)
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.iterdir())


def test_a_row_that_depends_on_its_neighbours_is_refused(tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="same rows"):
        export(tiny_model("build_neighbours"), tiny_root, tmp_path / "model", batch)


def test_a_batch_of_one_size(tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path: Path) -> None:
    record = export(tiny_model(batch={"min": 2, "opt": 2, "max": 2}), tiny_root, tmp_path / "model", batch)
    assert record.outputs[0].shape == ("batch", 3)
    assert [entry.sizes for entry in record.parity] == [{"batch": 2}] * 2


@pytest.mark.parametrize(("factory", "got"), [("build_raising", "no such width"), ("build_number", "int")])
def test_a_factory_that_gives_no_module(factory: str, got: str, tiny_root: Path, tiny_model: Make) -> None:
    with pytest.raises(ModelError, match=got):
        load_module(tiny_model(factory), tiny_root)


def test_inputs_are_bound_by_name_or_refused(tiny_root: Path, tiny_model: Make, batch: Batch, tmp_path: Path) -> None:
    two = {"left": batch["image"], "right": batch["image"]}
    with pytest.raises(ModelError, match="told apart"):
        export(tiny_model(inputs=("left", "right")), tiny_root, tmp_path / "model", two)


def save(state: dict[str, torch.Tensor], path: Path) -> Path:
    safetensors.torch.save_file(state, path)
    return path


def test_a_checkpoint_that_does_not_fit_names_the_keys(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 2)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    cases = [
        ({"weight": state["weight"]}, "lacks: bias"),
        ({**state, "extra": torch.zeros(1)}, "does not have: extra"),
        ({**state, "weight": torch.zeros(2, 5)}, r"weight \(float32 \[2, 5\], the module has float32 \[2, 4\]\)"),
        ({**state, "bias": torch.zeros(2, dtype=torch.float16)}, "bias"),
        ({**state, "bias": torch.tensor([0.0, float("nan")])}, "not finite: bias"),
    ]
    for index, (broken, message) in enumerate(cases):
        with pytest.raises(ModelError, match=message):
            load_checkpoint(module, save(broken, tmp_path / f"{index}.safetensors"))
    with pytest.raises(ModelError, match="missing"):
        load_checkpoint(module, tmp_path / "none.safetensors")
    pickled = tmp_path / "pickled.pt"
    torch.save(state, pickled)
    with pytest.raises(ModelError, match="can run code"):
        load_checkpoint(module, pickled)


def test_the_node_that_fixes_an_axis_is_named() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 6] x) => (float[2, n] y) <int64[2] to = {2, -1}> {
          [keep] a = Relu(x)
          [turn] y = Reshape(a, to) }"""
    )
    assert nodes_that_fix(graph, "batch") == ["turn (Reshape)"]


def test_points_are_three_and_distinct_where_the_range_allows() -> None:
    assert [p["n"] for p in points({"n": AxisRange(1, 8, 16)})] == [1, 8, 16]
    assert [p["n"] for p in points({"n": AxisRange(1, 1, 16)})] == [1, 2, 16]
    assert [p["n"] for p in points({"n": AxisRange(4, 5, 5)})] == [4, 5]
    corners = points({"n": AxisRange(1, 2, 4), "m": AxisRange(3, 5, 9)})
    assert corners == [{"n": 1, "m": 3}, {"n": 2, "m": 5}, {"n": 4, "m": 9}, {"n": 1, "m": 9}, {"n": 4, "m": 3}]
    assert points({"n": AxisRange(2, 2, 2), "m": AxisRange(1, 2, 3)}) == [{"n": 2, "m": 1}, {"n": 2, "m": 2}, {"n": 2, "m": 3}]


def test_fit_crops_and_repeats() -> None:
    rows = {"x": np.arange(6).reshape(3, 2)}
    fitted = fit(rows, (TensorSpec("x", "int64", ("n", 2)),), {"n": 5})
    assert fitted["x"][:, 0].tolist() == [0, 2, 4, 0, 2]


def test_outputs_beyond_the_bound_are_refused() -> None:
    reference = {"y": np.linspace(-1, 1, 50, dtype=np.float32)}
    assert compare("hop", {"n": 1}, reference, reference)[0].sqnr_db is None
    for wrong in (reference["y"] * 1.01, reference["y"] + np.float32("nan"), reference["y"][:40]):
        with pytest.raises(ModelError, match="output y"):
            compare("hop", {"n": 1}, reference, {"y": wrong})
