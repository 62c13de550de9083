"""Exports that are easy to get wrong: BatchNorm everywhere, tied weights, training mode, TorchScript, integer inputs, side files, corners."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch

from calibration.checkpoint import load_module
from calibration.export import export
from calibration.onnx_model import read_model
from calibration.runtime import run_session, session
from calibration.tied import untie
from engines.once import opened_once
from pipeline.config import ModelConfig
from pipeline.errors import ModelError, Refused
from pipeline.loading import load_object
from pipeline.records import ExportedModel

MODELS = '''
import torch
import torch.nn.functional as F
from torch import nn


class Norms(nn.Module):
    """BatchNorm behind a Conv, a ConvTranspose and a Linear, and in front of all, where there is no weight to fold it into."""

    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.conv, self.conv_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.up, self.up_norm = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2), nn.BatchNorm2d(6)
        self.head, self.head_norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        for part in (self.first, self.conv_norm, self.up_norm, self.head_norm):
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)

    def forward(self, x):
        x = self.conv_norm(self.conv(self.first(x)))
        x = self.up_norm(self.up(x))
        return self.head_norm(self.head(x.mean((2, 3))))


class Tied(nn.Module):
    """Three integer-fed tensors of one weight: an embedding, and a head that is its transpose; `twice` is the same layer again."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(200, 32)
        self.twice = nn.Linear(32, 32)
        self.head = nn.Linear(32, 200, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, mask):
        x = self.tokens(ids) * mask.unsqueeze(-1)
        x = self.twice(torch.tanh(self.twice(x)))
        return self.head(x), x.sum(1), mask.sum(1)


class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Stuck(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.BatchNorm2d(3)

    def train(self, mode=True):
        return super().train(True)

    def forward(self, x):
        return self.inner(x)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, track_running_stats=False)

    def forward(self, x):
        return self.norm(x)


class Leaky(nn.Module):
    """nn.RReLU, for which torch.export has no ONNX operator and TorchScript has: in evaluation mode it is a LeakyRelu."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.RReLU())
        self.head, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.head(self.block(x).mean((2, 3))))


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


class Unknown(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x.flatten(2))[1]


class Wrong(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)), "name"


def build(kind):
    torch.manual_seed(0)
    return kind()


def norms(): return build(Norms)
def tied(): return build(Tied)
def drops(): return build(Drops)
def noise(): return build(Noise)
def stuck(): return build(Stuck)
def bare(): return build(Bare)
def leaky(): return build(Leaky)
def branch(): return build(Branch)
def unknown(): return build(Unknown)
def wrong(): return build(Wrong)
'''
IMAGES = {"x": np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)}
TOKENS = {
    "ids": np.random.default_rng(0).integers(0, 200, (4, 6)),
    "mask": np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "model.py").write_text(MODELS, encoding="utf-8")
    return folder


def declared(root: Path, factory: str, *, outputs: tuple[str, ...] = ("y",), **changes: Any) -> ModelConfig:
    """The model section for one factory; its checkpoint is written as `save_model` does, tied weights once."""
    checkpoint = root / f"{factory}.safetensors"
    if not checkpoint.exists():
        safetensors.torch.save_model(load_object(f"model.py:{factory}", root)(), str(checkpoint))
    described: dict[str, Any] = {
        "factory": f"model.py:{factory}",
        "checkpoint": checkpoint.name,
        "inputs": {"x": {"shape": ["batch", 3, 8, 8]}},
        "outputs": list(outputs),
        "shapes": {"batch": {"min": 1, "opt": 2, "max": 4}},
    }
    return ModelConfig.model_validate(described | changes)


def text(root: Path, **changes: Any) -> ModelConfig:
    inputs = {name: {"shape": ["batch", "time"], "dtype": "int64"} for name in ("ids", "mask")}
    shapes = {"batch": {"min": 1, "opt": 2, "max": 4}, "time": {"min": 2, "opt": 4, "max": 6}}
    return declared(root, "tied", outputs=("scores", "sum", "length"), **({"inputs": inputs, "shapes": shapes} | changes))


def test_batch_norm_is_folded_behind_every_kind_of_weight(root: Path, tmp_path: Path) -> None:
    record = export(declared(root, "norms"), root, tmp_path / "export", IMAGES)
    assert record.operators == {"Add": 1, "Conv": 1, "ConvTranspose": 1, "Gemm": 1, "Mul": 1, "ReduceMean": 1}
    assert record.fallback is None
    assert "dynamo" in record.exporter
    assert set(record.files) == {"model.onnx"}


@pytest.fixture(scope="module")
def tied(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedModel]:
    folder = tmp_path_factory.mktemp("tied") / "export"
    return folder, export(text(root), root, folder, TOKENS)


def test_integer_inputs_two_axes_three_outputs(tied: tuple[Path, ExportedModel]) -> None:
    _, record = tied
    assert [(spec.name, spec.dtype, spec.shape) for spec in record.outputs] == [
        ("scores", "float32", ("batch", "time", 200)),
        ("sum", "float32", ("batch", 32)),
        ("length", "int64", ("batch",)),
    ]
    points = Counter(tuple(entry.sizes.values()) for entry in record.parity if entry.hop == "torch -> onnx")
    assert points == {(1, 2): 3, (2, 4): 3, (4, 6): 3, (1, 6): 3, (4, 2): 3}


def test_tied_weights_stay_tied_and_the_file_does_not_grow(root: Path, tied: tuple[Path, ExportedModel]) -> None:
    folder, _ = tied
    module = load_module(text(root), root)
    parameters = sum(tensor.numel() * 4 for tensor in module.parameters())
    assert (folder / "model.onnx").stat().st_size < parameters + 8000
    graph = onnx.load(folder / "model.onnx").graph
    assert [list(tensor.dims) for tensor in graph.initializer].count([200, 32]) == 1
    assert [200, 32] not in [list(tensor.dims)[::-1] for tensor in graph.initializer]


def test_a_tied_weight_can_be_untied_for_quantizers(tied: tuple[Path, ExportedModel]) -> None:
    """They look for weights that are stored, not computed by a Transpose."""
    model = onnx.load(tied[0] / "model.onnx")
    wanted = run_session(session(model), TOKENS)
    assert "Transpose" in {node.op_type for node in model.graph.node}
    untie(model)
    assert "Transpose" not in {node.op_type for node in model.graph.node}
    product = next(node for node in model.graph.node if node.op_type == "MatMul" and "scores" in node.output)
    assert product.input[1] in {tensor.name for tensor in model.graph.initializer}
    for name, array in run_session(session(model), TOKENS).items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)


def test_a_checkpoint_may_hold_a_tied_weight_once_or_twice_but_not_two(root: Path, tmp_path: Path) -> None:
    once = safetensors.torch.load_file(root / "tied.safetensors")
    assert {"tokens.weight", "head.weight"} & set(once) != {"tokens.weight", "head.weight"}
    weight = next(tensor for name, tensor in once.items() if tensor.shape == (200, 32))
    for other, fits in ((weight.clone(), True), (weight + 1, False)):
        safetensors.torch.save_file({**once, "tokens.weight": weight.clone(), "head.weight": other}, tmp_path / "c.safetensors")
        (tmp_path / "model.py").write_text(MODELS, encoding="utf-8")
        config = text(root, checkpoint="c.safetensors")
        if fits:
            assert torch.equal(load_module(config, tmp_path).head.weight, weight)
        else:
            with pytest.raises(ModelError, match=r"(?s)ties and the checkpoint does not: (tokens|head).weight and (tokens|head).weight"):
                load_module(config, tmp_path)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("drops", r"(?s)training mode.*Dropout"),
        ("noise", r"(?s)training mode.*RandomNormalLike|torch module"),
        ("stuck", r"(?s)stays in training mode.*the module itself, inner"),
        ("bare", r"(?s)no running statistics.*norm"),
        ("branch", r"(?s)torch.export:.*data-dependent.*TorchScript: TracerWarning.*torch.where"),
        ("unknown", r"(?s)linalg_svd.*TorchScript:.*linalg_svd.*replace the operator"),
        ("wrong", r"(?s)other outputs than declared.*2 outputs: Tensor, str"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(root: Path, tmp_path: Path, factory: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        export(declared(root, factory), root, tmp_path / "export", IMAGES)
    assert not list(tmp_path.iterdir())


def test_torchscript_takes_over_with_a_stated_reason(root: Path, tmp_path: Path) -> None:
    """BatchNorm is folded there too, and what has a weight is named after its module."""
    record = export(declared(root, "leaky"), root, tmp_path / "export", IMAGES)
    assert "torchscript" in record.exporter
    assert record.fallback
    assert "rrelu" in record.fallback
    assert "BatchNormalization" not in record.operators
    nodes = onnx.load(tmp_path / "export" / "model.onnx").graph.node
    names = {node.op_type: node.name for node in nodes}
    assert (names["Conv"], names["Gemm"], names["LeakyRelu"]) == ("block.0.Conv", "head", "block.2.LeakyRelu")
    assert {entry.sizes["batch"] for entry in record.parity} == {1, 2, 4}
    assert all(entry.max_relative < 1e-5 for entry in record.parity)
    assert ExportedModel.load(tmp_path / "export" / "exported.json") == record


def test_rows_with_swapped_names_or_dtypes_are_refused(root: Path, tmp_path: Path) -> None:
    floats = {"ids": TOKENS["ids"], "mask": TOKENS["mask"].astype(np.float32)}
    inputs = {"ids": {"shape": ["batch", "time"], "dtype": "int64"}, "mask": {"shape": ["batch", "time"], "dtype": "float32"}}
    swapped = {"ids": floats["mask"], "mask": floats["ids"]}
    with pytest.raises(ModelError, match=r"(?s)input ids.*it would fit mask: are two inputs swapped"):
        export(text(root, inputs=inputs), root, tmp_path / "export", swapped)
    with pytest.raises(ModelError, match=r"(?s)The rows are not the declared inputs.*ids, mask.*x"):
        export(text(root, inputs=inputs), root, tmp_path / "export", IMAGES)
    wrong = {"ids": inputs["mask"], "mask": inputs["ids"]}
    with pytest.raises(ModelError, match=r"(?s)torch module.*indices|torch module.*Long"):
        export(text(root, inputs=wrong), root, tmp_path / "export", swapped)


def test_weights_beyond_the_limit_lie_beside_and_are_bound(root: Path, tied: tuple[Path, ExportedModel], tmp_path: Path) -> None:
    record = export(text(root), root, tmp_path / "export", TOKENS, limit=4000)
    folder = tmp_path / "export"
    assert sorted(path.name for path in folder.iterdir()) == ["exported.json", "model.onnx", "model.onnx.data"]
    assert set(record.files) == {"model.onnx", "model.onnx.data"}
    assert record.files["model.onnx"].sha256 == record.onnx_sha256
    assert record.macs == tied[1].macs
    inside, outside = session(tied[0] / "model.onnx"), session(folder / "model.onnx")
    for name, array in run_session(inside, TOKENS).items():
        assert np.array_equal(array, run_session(outside, TOKENS)[name])
    side = folder / "model.onnx.data"
    side.write_bytes(side.read_bytes()[::-1])
    with pytest.raises(Refused, match="model.onnx.data"):
        read_model(folder / "model.onnx")


def test_a_batch_of_one_size_becomes_an_engine(root: Path, tmp_path: Path) -> None:
    """The graph says the declared name, though the exporter wrote the number."""
    fixed = {"batch": {"min": 3, "opt": 3, "max": 3}}
    record = export(declared(root, "norms", shapes=fixed), root, tmp_path / "export", IMAGES)
    content = (tmp_path / "export" / "model.onnx").read_bytes()
    for target in ("openvino-cpu", "onnxruntime-cpu"):
        ports = {"inputs": record.inputs, "outputs": record.outputs, "shapes": record.shapes}
        with opened_once(content, target, **ports, precision="float32") as run:
            assert run.run({"x": IMAGES["x"][:3]})["y"].shape == (3, 5)
