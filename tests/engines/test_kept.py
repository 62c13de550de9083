"""Engines by way of the cache store, for every backend that builds here: what hits, and what no longer may."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import onnx
import pytest
import tiny_onnx
from onnx import numpy_helper

import engines
from engines import kept
from engines.caches import Key, State, Store
from pipeline.errors import ModelError, TargetError
from pipeline.platforms import fingerprint
from pipeline.records import AxisRange, TensorSpec


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", 1 << 30)


def build(built, store, model: Path, folder: Path, **changes):
    given = {
        "precision": "int8", "inputs": tiny_onnx.INPUTS, "outputs": tiny_onnx.OUTPUTS, "shapes": tiny_onnx.SHAPES, "platform": built.platform,
    }  # fmt: skip
    return kept.build(model, folder, target=built.target, store=store, **{**given, **changes})


def key_of(built, **changes) -> Key:
    given = {
        "target": built.target, "precision": "int8", "inputs": tiny_onnx.INPUTS, "outputs": tiny_onnx.OUTPUTS, "shapes": tiny_onnx.SHAPES,
        "platform": built.platform, "settings": {},
    }  # fmt: skip
    return kept.key(changes.pop("content", built.models["int8"].read_bytes()), **{**given, **changes})


def test_a_second_build_is_a_copy_of_the_first(built, store, tmp_path, monkeypatch):
    first, found = build(built, store, built.models["int8"], tmp_path / "one")
    assert found.state is State.MISS

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was built again")

    monkeypatch.setattr(engines.backend(built.target), "build", never)
    told = []
    again, found = build(built, store, built.models["int8"], tmp_path / "two", progress=lambda *step: told.append(step))
    assert found.state is State.HIT
    assert again == first
    assert told == [(1, 1, "from the cache")]
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_other_weights_under_the_same_name_size_and_time_are_another_engine(built, store, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(built.models["int8"].read_bytes())
    before, _ = build(built, store, model, tmp_path / "one")
    stat = model.stat()
    graph = onnx.load(model)
    weight = next(tensor for tensor in graph.graph.initializer if tensor.name == "w0_q")
    codes = numpy_helper.to_array(weight).copy()
    codes.flat[0] ^= 1
    weight.CopyFrom(numpy_helper.from_array(codes, "w0_q"))
    model.write_bytes(graph.SerializeToString())
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (model.stat().st_size, model.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after, found = build(built, store, model, tmp_path / "two")
    assert found.state is State.STALE
    assert [line.partition(":")[0] for line in found.why] == ["model_sha256"]
    assert after.model_sha256 != before.model_sha256
    assert after.recipe_sha256 != before.recipe_sha256


def test_another_machines_engine_is_not_handed_out(built, store, tmp_path, monkeypatch):
    build(built, store, built.models["int8"], tmp_path / "one")
    backend = engines.backend(built.target)
    fields = backend.platform_key(built.target)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "platform_key", lambda _: {**fields, "architecture": "z80"})
        with pytest.raises(TargetError, match="architecture: built for"):
            build(built, store, built.models["int8"], tmp_path / "two")
    monkeypatch.setattr(backend, "unavailable", lambda _: "its runtime was removed")
    with pytest.raises(TargetError, match="its runtime was removed"):
        build(built, store, built.models["int8"], tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_every_field_of_the_platform_and_all_that_is_declared_is_in_the_key(built, monkeypatch):
    base = key_of(built).digest
    others = [
        key_of(built, content=b"other"), key_of(built, precision="float32"), key_of(built, shapes={"batch": AxisRange(1, 4, 9)}),
        key_of(built, inputs=(TensorSpec("image", "float32", ("batch", 3, 9, 9)),)), key_of(built, outputs=()), key_of(built, settings={"a": 1}),
    ]  # fmt: skip
    for name in built.platform.key_fields:
        changed = fingerprint(built.target, {**built.platform.key_fields, name: "another"}, None)
        others.append(key_of(built, platform=changed))
    monkeypatch.setattr(kept, "code_sha256", lambda: "another")
    others.append(key_of(built))
    digests = [base, *(key.digest for key in others)]
    assert len(set(digests)) == len(digests)
    monkeypatch.undo()
    elsewhere = dataclasses.replace(built.platform, provenance={"kernel": "another"}, machine_id="another")
    assert key_of(built, platform=elsewhere, subject="another").digest == base  # what invalidates no engine is no key


def test_a_model_that_cannot_be_built_is_refused_and_nothing_is_kept(built, store, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"\x08\x09not a model")
    with pytest.raises(ModelError, match=r"garbage\.onnx"):
        build(built, store, garbage, tmp_path / "out")
    with pytest.raises(ModelError):
        build(built, store, built.models["int8"], tmp_path / "out", inputs=(TensorSpec("picture", "float32", ("batch", 3, 8, 8)),))
    assert store.entries() == []
    assert not (tmp_path / "out").exists()


def test_without_a_store_it_is_always_built(built, tmp_path):
    engine, found = build(built, None, built.models["int8"], tmp_path / "one")
    assert found.state is State.MISS
    assert engine.recipe_sha256 == built.engines["int8"].recipe_sha256
