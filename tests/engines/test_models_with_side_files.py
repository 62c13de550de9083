"""Every backend builds from a model whose weights lie in a side file, and from no side file but the one that the model names by digest."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import tiny_onnx

import engines
from pipeline.digests import sha256_file
from pipeline.errors import Refused
from pipeline.side_files import save_model

if TYPE_CHECKING:
    from conftest import Built

LIMIT = 1000
"""Lowered from 2 GiB: the tiny model's weights pass it."""


def wide(path: Path) -> Path:
    """The tiny net with a table that it needs and that is large enough to lie outside."""
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 300 * 5, dtype=np.float32).reshape(300, 5), "table"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7], np.int64), "place"))
    last = next(node for node in model.graph.node if node.output[0] == "logits")
    last.output[0] = "inner"
    model.graph.node.append(onnx.helper.make_node("Gather", ["table", "place"], ["row"], name="row"))
    model.graph.node.append(onnx.helper.make_node("Add", ["inner", "row"], ["logits"], name="shifted"))
    path = path.with_name(f"wide_{path.name}")
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_an_engine_from_a_side_file_gives_what_one_from_the_whole_file_gives(built: Built, tmp_path: Path, precision: str) -> None:
    whole = wide(shutil.copy(built.models[precision], tmp_path / "model.onnx"))
    (tmp_path / "parted").mkdir()
    parted = tmp_path / "parted" / "model.onnx"
    save_model(onnx.load(whole), parted, LIMIT)
    assert parted.with_name("model.onnx.data").is_file()
    made = {name: built.build(path, tmp_path / name, precision) for name, path in (("one", whole), ("two", parted))}
    assert made["two"].model_sha256 == sha256_file(parted)
    assert made["one"].census == made["two"].census
    shutil.rmtree(tmp_path / "parted")  # the engine needs nothing of it
    if not engines.backend(built.target).unrunnable(built.target):
        with engines.open_engine(tmp_path / "one") as first, engines.open_engine(tmp_path / "two") as second:
            wanted, got = (session.run(tiny_onnx.images(4))["logits"] for session in (first, second))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_swapped_missing_or_unbound_side_file_is_refused_before_anything_is_built(built: Built, tmp_path: Path) -> None:
    model = onnx.load(wide(shutil.copy(built.models["float32"], tmp_path / "model.onnx")))
    path, side = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    save_model(model, path, LIMIT)
    side.write_bytes(side.read_bytes()[::-1])
    with pytest.raises(Refused, match="has changed"):
        built.build(path, tmp_path / "engine", "float32")
    side.unlink()
    with pytest.raises(Refused, match="missing"):
        built.build(path, tmp_path / "engine", "float32")
    onnx.save(model, path, save_as_external_data=True, location=side.name, size_threshold=0)
    with pytest.raises(Refused, match="not bound to its model"):
        built.build(path, tmp_path / "engine", "float32")
    assert not (tmp_path / "engine").exists()
