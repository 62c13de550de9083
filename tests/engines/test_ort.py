"""What is special to ONNX Runtime: weights handed over as memory, names after graph optimization, schemes that run in float."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_onnx
from onnx import helper, numpy_helper

import engines
from engines import ort, ort_census
from pipeline.errors import ConfigError, ModelError, TargetError
from pipeline.platforms import physical_cores
from pipeline.records import TensorSpec

TARGET = "onnxruntime-cpu"
pytestmark = pytest.mark.skipif(ort.unavailable(TARGET) is not None, reason=str(ort.unavailable(TARGET)))


@pytest.fixture
def ours(built):
    if built.target != TARGET:
        pytest.skip("another backend")
    return built


def test_settings_are_recorded_and_read_back(ours):
    for precision, folder in ours.folders.items():
        assert ours.engines[precision].recipe["settings"] == {**ort.SETTINGS, "disabled_optimizers": ort.DISABLED[precision]}
        with engines.open_engine(folder, concurrency=3) as session:
            assert session.concurrency == 3
            assert session.settings == {
                "providers": "CPUExecutionProvider",
                "intra_op_num_threads": str(physical_cores()),
                "inter_op_num_threads": "1",
                "session.intra_op.allow_spinning": "0",
            }


def test_a_target_may_be_given_threads_and_the_baseline_keeps_all(ours, tmp_path):
    for precision, count in (("int8", 1), ("float32", physical_cores())):
        engine = ours.build(ours.models[precision], tmp_path / precision, precision, settings={"threads": 1})
        assert engine.recipe["settings"].get("threads") == (1 if precision == "int8" else None)
        with engines.open_engine(tmp_path / precision) as session:
            assert session.settings["intra_op_num_threads"] == str(count)


@pytest.mark.parametrize("wrong", [0, -1, "two", True])
def test_no_thread_is_no_number_of_threads(ours, tmp_path, wrong):
    with pytest.raises(ConfigError, match=r"targets.onnxruntime-cpu.threads"):
        ours.build(ours.models["int8"], tmp_path / "engine", settings={"threads": wrong})
    assert not (tmp_path / "engine").exists()


def test_weights_come_from_the_checked_bytes_and_from_no_path(ours, tmp_path, monkeypatch):
    inputs = tiny_onnx.images(3)
    with engines.open_engine(ours.folders["float32"]) as session:
        wanted = session.run(inputs)["logits"]
    size = ours.engines["float32"].files[ort.WEIGHTS].bytes
    (tmp_path / ort.WEIGHTS).write_bytes(bytes(size))
    monkeypatch.chdir(tmp_path)
    with engines.open_engine(ours.folders["float32"]) as session:
        np.testing.assert_array_equal(session.run(inputs)["logits"], wanted)


def test_weights_are_mapped_from_a_copy_without_a_name(ours):
    with engines.open_engine(ours.folders["float32"]) as session:
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "qwarm-weights-" in line]
        assert mapped
        assert all(line.endswith("(deleted)") for line in mapped)
        assert session.run(tiny_onnx.images(1))["logits"].shape == (1, 5)
    assert not list(Path(ort.IN_MEMORY).glob("qwarm-weights-*"))


def test_without_room_for_the_copy_the_bytes_themselves_are_handed_over(ours, monkeypatch):
    inputs = tiny_onnx.images(3)
    with engines.open_engine(ours.folders["int8"]) as session:
        wanted = session.run(inputs)["logits"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ort, "copy_checked", full)
    with engines.open_engine(ours.folders["int8"]) as session:
        np.testing.assert_array_equal(session.run(inputs)["logits"], wanted)


def test_equal_builds_give_equal_bytes(ours, tmp_path):
    for precision, model in ours.models.items():
        again = ours.build(model, tmp_path / precision, precision)
        assert again == ours.engines[precision]


def test_a_model_without_weights_to_move_out_is_one_file(ours, tmp_path):
    graph = tiny_onnx.GraphWriter(None)
    flat = graph.add("Flatten", [graph.add("GlobalAveragePool", ["image"], "pooled")], "flat")
    graph.add("MatMul", [flat, graph.constant("w", np.ones((3, 5), np.float32))], "logits")
    engine = ours.build(graph.save(tmp_path / "small.onnx"), tmp_path / "engine", "float32")
    assert set(engine.files) == {ort.GRAPH}
    with engines.open_engine(tmp_path / "engine") as session:
        assert session.run(tiny_onnx.images(2))["logits"].shape == (2, 5)


def test_the_tensorrt_scheme_is_not_offered_because_it_runs_in_float(ours, tmp_path):
    assert "tensorrt" not in ort.SCHEMES[TARGET]
    engine = ours.build(tiny_onnx.conv_net(tmp_path / "symmetric.onnx", scheme="tensorrt"), tmp_path / "engine")
    assert engine.census.int8_share == 0.0
    assert {layer.precision for layer in engine.census.layers} == {"FP32"}


def test_census_finds_nodes_under_the_names_the_runtime_gives_them(ours, tmp_path):
    """Layout changes, fused activations and additions, a MatMul with its bias, and one with two factors that are no constants."""
    graph = tiny_onnx.GraphWriter("cpu")
    tensor = graph.activation("image")
    tensor = graph.add("Conv", [tensor, graph.weight("w0", (16, 3, 3, 3)), graph.bias("b0", 16)], "t0", "/stem/conv", pads=[1] * 4)
    skip = graph.activation(graph.add("Relu", [tensor], "t1", "/stem/relu"), zero=0)
    tensor = graph.add("Conv", [skip, graph.weight("w1", (16, 1, 3, 3)), graph.bias("b1", 16)], "t2", "/stem/conv/depthwise", pads=[1] * 4, group=16)
    tensor = graph.activation(graph.add("Add", [graph.activation(tensor), skip], "t3", "/stem/add"))
    float_conv = graph.add("Conv", [tensor, graph.constant("w2", np.ones((8, 16, 1, 1), np.float32))], "t4", "")
    flat = graph.activation(graph.add("Flatten", [graph.add("GlobalAveragePool", [float_conv], "t5")], "t6"))
    tensor = graph.add("MatMul", [flat, graph.weight("w3", (8, 12), axis=1)], "t7", "linear/matmul")
    tensor = graph.add("Add", [tensor, graph.constant("b3", np.ones(12, np.float32))], "t8", "linear/bias")
    column = graph.activation(graph.add("Unsqueeze", [tensor, graph.constant("two", np.array([2]))], "t9"))
    turned = graph.activation(graph.add("Transpose", [graph.add("Unsqueeze", [tensor, "two"], "t10")], "t11", perm=[0, 2, 1]))
    product = graph.add("MatMul", [column, turned], "t12", "scores")
    tensor = graph.add("ReduceSum", [product, "two"], "t13", keepdims=0)
    tensor = graph.add("MatMul", [tensor, graph.constant("w5", np.ones((12, 5), np.float32))], "t14", "float/matmul")
    graph.add("Add", [tensor, graph.constant("b5", np.ones(5, np.float32))], "logits", "float/bias")
    engine = ours.build(graph.save(tmp_path / "awkward.onnx"), tmp_path / "engine")
    found = {layer.name: layer.precision for layer in engine.census.layers}
    unnamed = next(name for name in found if name.startswith("Conv_"))
    assert found == {
        "/stem/conv": "INT8", "/stem/conv/depthwise": "INT8", unnamed: "FP32", "linear/matmul": "INT8", "scores": "INT8", "float/matmul": "FP32",
    }  # fmt: skip


def test_names_of_optimized_nodes_are_led_back():
    known = {"a", "a_token_1", "b/c", "d"}
    pairs = {
        "a_token_7": "a",
        "a_token_1": "a_token_1",
        "d_nchwc": "d",
        "b/c_token_2": "b/c",
        "b/c_token_2_nchwc": "b/c",
        "d/MatMulAddFusion": "d",
        "x_token_1": "x_token_1",
    }
    assert {name: ort_census.original(name, known) for name in pairs} == pairs


def test_float_weights_of_a_mixed_model_stay_float(ours, tmp_path):
    """Quantized activations around a float depthwise weight whose channels differ 1000 times: with one scale, small ones vanish."""
    graph = tiny_onnx.GraphWriter("cpu")
    tensor = graph.activation("image", 0.05, 128)
    weight = graph.random.standard_normal((3, 1, 3, 3)).astype(np.float32) * np.array([1, 1e-3, 1e-3], np.float32).reshape(3, 1, 1, 1)
    tensor = graph.add("Conv", [tensor, graph.constant("w", weight), graph.constant("b", np.zeros(3, np.float32))], "c", "conv", group=3)
    tensor = graph.activation(tensor, 0.05, 128)
    tensor = graph.add("Flatten", [graph.add("ReduceMax", [tensor, graph.constant("axes", np.array([2, 3]))], "m", keepdims=1)], "flat")
    graph.add("MatMul", [tensor, graph.constant("head", np.eye(3, 5, dtype=np.float32))], "logits")
    path = graph.save(tmp_path / "mixed.onnx")
    ours.build(path, tmp_path / "engine")
    stored = onnx.load(tmp_path / "engine" / ort.GRAPH, load_external_data=False)
    kept = [numpy_helper.to_array(tensor) for tensor in stored.graph.initializer if tensor.name.startswith("w") and tensor.dims == [3, 1, 3, 3]]
    assert [array.dtype for array in kept] == [np.float32]


def test_a_graph_that_the_runtime_refuses_is_named(ours, tmp_path):
    node = helper.make_node("NoSuchOperator", ["image"], ["logits"], domain="nowhere")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("image", ["b", 3, 8, 8]), ("logits", ["b", 5]))]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("nowhere", 1)]
    path = tmp_path / "foreign.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ModelError, match="NoSuchOperator"):
        ours.build(path, tmp_path / "engine", "float32")
    assert not (tmp_path / "engine").exists()


def test_outputs_may_be_a_part_of_the_models(ours, tmp_path):
    graph = tiny_onnx.GraphWriter(None)
    flat = graph.add("Flatten", [graph.add("GlobalAveragePool", ["image"], "pooled")], "flat")
    graph.add("MatMul", [flat, graph.constant("w", np.ones((3, 5), np.float32))], "logits")
    both = (TensorSpec("flat", "float32", ("batch", 3)), *tiny_onnx.OUTPUTS)
    ours.build(graph.save(tmp_path / "two.onnx", outputs=both), tmp_path / "engine", "float32")
    with engines.open_engine(tmp_path / "engine") as session:
        assert set(session.run(tiny_onnx.images(2))) == {"logits"}


def test_without_onnxruntime_the_target_says_what_to_install(ours, monkeypatch):
    monkeypatch.setattr(ort.importlib.util, "find_spec", lambda _: None)
    assert "pip install onnxruntime" in str(ort.unavailable(TARGET))
    with pytest.raises(TargetError, match="pip install onnxruntime"):
        engines.open_engine(ours.folders["int8"])


def test_nothing_is_printed_while_an_engine_is_opened(ours):
    code = f"import engines; engines.open_engine({str(ours.folders['int8'])!r}).close()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(engines.__file__).parents[1], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_an_open_engine_needs_its_folder_no_more(ours, tmp_path):
    folder = shutil.copytree(ours.folders["float32"], tmp_path / "engine")
    with engines.open_engine(folder) as session:
        wanted = session.run(tiny_onnx.images(2))["logits"]
        shutil.rmtree(folder)
        np.testing.assert_array_equal(session.run(tiny_onnx.images(2))["logits"], wanted)
