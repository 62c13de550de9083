"""What is special to OpenVINO: settings that must be passed again, the blob's own header, names in the runtime graph."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import onnx
import pytest
import tiny_onnx
from onnx.reference import ReferenceEvaluator

import engines
from engines import ov
from pipeline.digests import sha256_file
from pipeline.errors import ModelError, TargetError
from pipeline.records import TensorSpec

pytestmark = pytest.mark.skipif(ov.unavailable("openvino-cpu") is not None, reason=str(ov.unavailable("openvino-cpu")))


@pytest.fixture
def ours(built):
    if built.target != "openvino-cpu":
        pytest.skip("another backend")
    return built


def test_settings_hold_after_import_and_are_recorded(ours):
    for precision, folder in ours.folders.items():
        assert ours.engines[precision].recipe["settings"] == ov.SETTINGS
        with engines.open_engine(folder) as session:
            assert {name: session.settings[name] for name in ov.SETTINGS} == ov.SETTINGS
            assert int(session.settings["INFERENCE_NUM_THREADS"]) >= 1


def test_a_target_may_be_given_threads(ours, tmp_path):
    engine = ours.build(ours.models["int8"], tmp_path / "engine", settings={"threads": 1})
    assert engine.recipe["settings"] == {**ov.SETTINGS, "INFERENCE_NUM_THREADS": "1"}
    with engines.open_engine(tmp_path / "engine") as session:
        assert session.settings["INFERENCE_NUM_THREADS"] == "1"


def test_a_setting_that_the_runtime_does_not_take_is_an_error(ours):
    import openvino

    compiled = openvino.Core().import_model(io.BytesIO((ours.folders["float32"] / ov.BLOB).read_bytes()), "CPU", {**ov.SETTINGS, "NUM_STREAMS": "2"})
    with pytest.raises(TargetError, match="NUM_STREAMS"):
        ov.OpenVINOSession(ours.engines["float32"], compiled, 1)


def test_another_instruction_set_limit_is_another_platform(ours, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    with pytest.raises(TargetError, match="max_cpu_isa: built for ALL, here SSE41"):
        engines.open_engine(ours.folders["int8"])


def test_a_blob_that_openvino_itself_refuses_is_a_target_error(ours, tmp_path):
    folder = shutil.copytree(ours.folders["int8"], tmp_path / "engine")
    blob = folder / ov.BLOB
    version = ours.platform.key_fields["openvino"].encode()
    assert version in blob.read_bytes()[:500]
    blob.write_bytes(blob.read_bytes().replace(version, b"1" * len(version), 1))
    plain = json.loads((folder / "engine.json").read_text())
    plain["files"][ov.BLOB]["sha256"] = sha256_file(blob)
    (folder / "engine.json").write_text(json.dumps(plain))
    with pytest.raises(TargetError, match="1111"):
        engines.open_engine(folder)


def test_without_openvino_the_target_says_what_to_install(ours, monkeypatch):
    monkeypatch.setattr(ov.importlib.util, "find_spec", lambda _: None)
    assert "pip install openvino" in str(ov.unavailable("openvino-cpu"))
    with pytest.raises(TargetError, match="pip install openvino"):
        engines.open_engine(ours.folders["int8"])


def test_census_finds_nodes_under_the_names_the_runtime_gives_them(ours, tmp_path):
    engine = ours.build(tiny_onnx.awkward_net(tmp_path / "awkward.onnx"), tmp_path / "engine")
    found = {layer.name: layer.precision for layer in engine.census.layers}
    unnamed = next(name for name in found if name.startswith("Conv_"))
    assert found == {
        "/stem/conv": "INT8", "/stem/conv/depthwise": "INT8", unnamed: "INT8", "up": "INT8", "linear/matmul": "INT8", "float/matmul": "FP32",
    }  # fmt: skip
    assert 0.9 < engine.census.int8_share < 1.0


def test_the_engine_and_its_blob_are_all_that_is_written(ours):
    assert {path.name for path in ours.folders["int8"].rglob("*")} == {"engine.json", ov.BLOB}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"inputs": (TensorSpec("picture", "float32", ("batch", 3, 8, 8)),)}, "input picture"),
        ({"inputs": (TensorSpec("image", "uint8", ("batch", 3, 8, 8)),)}, "uint8"),
        ({"inputs": (TensorSpec("image", "float32", ("batch", 3, 9, 9)),)}, "9, 9"),
        ({"inputs": (TensorSpec("image", "float32", (1, 3, 8, 8)),)}, "shape"),
        ({"inputs": ()}, "not declared"),
        ({"outputs": (TensorSpec("classes", "float32", ("batch", 5)),)}, "output classes"),
        ({"outputs": (TensorSpec("logits", "int64", ("batch", 5)),)}, "int64"),
    ],
)
def test_a_model_that_is_not_as_declared_is_refused(ours, tmp_path, changes, named):
    with pytest.raises(ModelError, match=named):
        ours.build(ours.models["int8"], tmp_path / "engine", **changes)
    assert not (tmp_path / "engine").exists()


def test_the_f32_engine_is_f32_on_a_cpu_with_bf16(ours):
    inputs = tiny_onnx.images(8)
    with engines.open_engine(ours.folders["float32"]) as session:
        got = session.run(inputs)["logits"]
    (wanted,) = ReferenceEvaluator(onnx.load(ours.models["float32"])).run(None, inputs)
    assert float(np.abs(got - wanted).max()) < 1e-4 * float(np.abs(wanted).max())  # bf16 is off by about 2e-3
