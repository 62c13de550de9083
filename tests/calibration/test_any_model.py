"""What a model of any kind brings: no classes, rows of different lengths, integer inputs, masks in front of a Softmax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.export import export
from calibration.graph import before_softmax, mask_nodes
from calibration.input_watch import InputWatch
from calibration.observe import Observer, Seen
from calibration.prepared import prepare_row
from calibration.roles import ALL, draw, prove_disjoint
from calibration.rows import batches
from calibration.sources import open_parquet
from pipeline.config import ModelConfig
from pipeline.errors import DataError, ModelError, RangeError
from pipeline.records import AxisRange, ExportedModel, TensorSpec

SIZES = {"train": 20, "calibration": 10, "search": 6, "warmup": 4, "validation": "rest"}
SHAPES = {"batch": AxisRange(1, 2, 4), "time": AxisRange(1, 4, 8)}
SPECS = (TensorSpec("ids", "int64", ("batch", "time"), 0.0), TensorSpec("mask", "int64", ("batch", "time"), 0.0))


def prepare(raw: Any) -> dict[str, np.ndarray]:
    ids = np.array([1 + len(word) for word in str(raw["text"]).split()], np.int64)
    return {"ids": ids, "mask": np.ones_like(ids)}


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., Path]:
    def write(labels: list[Any] | None = None, rows: int = 60) -> Path:
        from datasets import Dataset

        columns: dict[str, list[Any]] = {"sentence": [" ".join(["w" * (1 + i % 7), *(["x"] * (i % 8)), f"n{i}"][:8]) for i in range(rows)]}
        if labels is not None:
            columns["amount"] = labels
        path = tmp_path / "texts.parquet"
        Dataset.from_dict(columns).to_parquet(str(path))
        return path

    return write


@pytest.mark.parametrize("labels", [None, [0.5 * i for i in range(60)], [f"tag {i}" for i in range(60)]], ids=["none", "numbers", "text"])
def test_rows_without_classes(texts: Callable[..., Path], labels: list[Any] | None) -> None:
    """A text column becomes two integer inputs of different lengths, padded in each batch; labels are any scalar or absent."""
    columns = {"text": "sentence", **({"label": "amount"} if labels is not None else {})}
    source = open_parquet(texts(labels), columns, ())
    roles = draw(source, prepare, SPECS, sizes=SIZES, seed=0, preprocess_sha256="0" * 64, shapes=SHAPES)
    prove_disjoint(roles)
    assert roles.class_names == ()
    assert {name: role.labels for name, role in roles.roles.items()}["search"] == {ALL[0]: 6}
    got = list(batches(source, roles, "calibration", prepare, SPECS, 4, SHAPES))
    assert [batch["ids"].shape[0] for batch, _ in got] == [4, 4, 2]
    for batch, found in got:
        assert batch["ids"].shape == batch["mask"].shape
        assert np.array_equal(batch["ids"] != 0, batch["mask"] == 1)
        assert (found is None) == (labels is None)
    if labels is not None:
        together = [label for _, found in got if found is not None for label in found.tolist()]
        assert together == [labels[int(row)] for row in roles.roles["calibration"].rows]


@pytest.mark.parametrize("label", [float("nan"), None, [1.0, 2.0]])
def test_a_label_that_is_no_scalar_names_the_row(texts: Callable[..., Path], label: Any) -> None:
    labels: list[Any] = [[1.0, 1.0]] * 60 if isinstance(label, list) else [1.0] * 60
    labels[7] = label
    with pytest.raises(DataError, match=r"no finite number and no text") as caught:
        list(open_parquet(texts(labels), {"text": "sentence", "label": "amount"}, ()).rows())
    assert "row 00000" in caught.value.where


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [(9, 9, "(?s)size beyond the declared range.*1 to 8.*cut"), (3, 4, "disagree on an axis"), (0, 0, "size beyond")],
)
def test_a_row_that_is_too_long_empty_or_torn_is_named(ids: int, mask: int, message: str) -> None:
    result = {"ids": np.ones(ids, np.int64), "mask": np.ones(mask, np.int64)}
    with pytest.raises(DataError, match=message) as caught:
        prepare_row("0000003", {}, lambda _: result, SPECS, SHAPES)
    assert "row 0000003" in caught.value.where


def test_a_mask_may_be_constant_and_an_input_may_not() -> None:
    watch = InputWatch()
    ids = np.arange(8).reshape(4, 2)
    watch.add({"ids": ids, "mask": np.ones((4, 2), np.int64), "image": np.random.default_rng(0).random((4, 2), np.float32)})
    watch.refuse_constant(4)
    assert watch.warnings(4) == []
    watch = InputWatch()
    watch.add({"ids": np.ones((4, 2), np.int64), "mask": np.ones((4, 2), np.int64)})
    with pytest.raises(RangeError, match="degenerate"):
        watch.refuse_constant(4)


MASKED = '''
import torch
from torch import nn


class Masked(nn.Module):
    """Attention of one head over embedded ids; `heeds` says whether what is padded is left out of the mean."""

    def __init__(self, heeds=True):
        super().__init__()
        self.heeds = heeds
        self.tokens, self.query, self.out = nn.Embedding(16, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, ids, mask):
        x = self.tokens(ids)
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask == 0, float("-inf"))
        scores = self.query(x) @ x.transpose(1, 2) / 5 + bias[:, None, :]
        y = self.out(scores.softmax(-1) @ x)
        if not self.heeds:
            return y.mean(1), y
        weights = mask.to(x.dtype)[:, :, None]
        return (y * weights).sum(1) / weights.sum(1), y * weights


def build():
    torch.manual_seed(0)
    return Masked()


def build_heedless():
    torch.manual_seed(0)
    return Masked(heeds=False)
'''


def masked_model(folder: Path, factory: str = "build", pad: float | None = 0.0) -> ModelConfig:
    import safetensors.torch

    from pipeline.loading import load_object

    (folder / "model.py").write_text(MASKED, encoding="utf-8")
    safetensors.torch.save_file(load_object(f"model.py:{factory}", folder)().state_dict(), folder / "c.safetensors")
    inputs = {name: {"shape": ["batch", "time"], "dtype": "int64", "pad": pad} for name in ("ids", "mask")}
    shapes = {"batch": {"min": 1, "opt": 2, "max": 4}, "time": {"min": 2, "opt": 4, "max": 8}}
    described = {"factory": f"model.py:{factory}", "checkpoint": "c.safetensors", "inputs": inputs, "outputs": ["pooled", "each"], "shapes": shapes}
    return ModelConfig.model_validate(described)


ROWS = {"ids": np.arange(1, 16).reshape(3, 5), "mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedModel]:
    root = tmp_path_factory.mktemp("masked")
    return root / "export" / "model.onnx", export(masked_model(root), root, root / "export", ROWS)


def test_two_dynamic_axes_two_outputs_and_padding_are_proven(exported: tuple[Path, ExportedModel]) -> None:
    _, record = exported
    assert [spec.shape for spec in record.outputs] == [("batch", 32), ("batch", "time", 32)]
    assert [spec.pad for spec in record.inputs] == [0.0, 0.0]
    hops = {point.hop for point in record.parity}
    assert hops == {"torch -> onnxruntime-cpu", "smallest batch -> this batch, same rows", "time 4 -> padded to 8"}
    assert {point.output for point in record.parity if "padded" in point.hop} == {"pooled", "each"}
    assert ExportedModel.from_json(record.to_json()) == record


def test_a_model_that_looks_at_what_is_padded_is_refused_unless_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"(?s)Padding the axis 'time' changes.*model.inputs.ids.pad, model.inputs.mask.pad"):
        export(masked_model(tmp_path, "build_heedless"), tmp_path, tmp_path / "export", ROWS)
    assert not (tmp_path / "export").exists()
    record = export(masked_model(tmp_path, "build_heedless", pad=None), tmp_path, tmp_path / "export", ROWS)
    assert not [point for point in record.parity if "padded" in point.hop]


def test_a_masks_infinities_have_no_range_and_stay_in_float(exported: tuple[Path, ExportedModel]) -> None:
    import onnx

    path, record = exported
    graph = onnx.load(path)
    masked = before_softmax(graph)
    observer = Observer(path, record)
    found: dict[str, Seen] = {}
    observer.run(ROWS, ["a", "b", "c"], found.__setitem__)
    assert observer.masked
    assert observer.masked <= masked
    assert not observer.masked & set(found)
    assert all(np.isfinite(seen.values).all() for seen in found.values())
    operators = {node.name: node.op_type for node in graph.graph.node}
    assert "Add" in {operators[name] for name in mask_nodes(graph)}
    assert not {"MatMul", "Gemm"} & {operators[name] for name in mask_nodes(graph)}
    everything = {"ids": ROWS["ids"], "mask": np.ones_like(ROWS["mask"])}
    again = Observer(path, record)
    again.run(everything, ["a", "b", "c"], found.__setitem__)
    assert not again.masked  # nothing is hidden, so nothing is infinite
