"""Real modelopt in its own process: our scales, verified; refused when nothing is quantized or a scale is not ours."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibration import tensorrt_scheme
from calibration.export import export
from calibration.qdq import SAFE_SCALE, activation_scale, describe, verify
from calibration.ranges import collect
from calibration.safe_names import hide, name_nodes, restore
from calibration.tensorrt_scheme import quantize, write_cache
from pipeline.config import ModelConfig
from pipeline.errors import QuantizeError, RangeError
from pipeline.records import ExportedModel, QuantizedModel, Ranges, TensorRange
from pipeline.tensors import Batch

Prepared = tuple[Path, ExportedModel, Ranges]


def prepared(folder: Path, model: ModelConfig, root: Path, batch: Batch) -> Prepared:
    exported = export(model, root, folder, batch)
    ids = [str(i) for i in range(64)]
    ranges = collect(folder / "model.onnx", exported, [batch], ids, calibration_root="r", preprocess_sha256="p", min_rows=32, batch_rows=64)
    return folder / "model.onnx", exported, ranges


@pytest.fixture(scope="module")
def tiny(tiny_root: Path, tiny_model: Callable[..., ModelConfig], batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """One all-zero weight channel is in it."""
    return prepared(tmp_path_factory.mktemp("tiny") / "model", tiny_model("build_dead_channel"), tiny_root, batch)


@pytest.fixture(scope="module")
def quantized(tiny: Prepared, batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, QuantizedModel]:
    folder = tmp_path_factory.mktemp("quantized") / "tensorrt"
    return folder, quantize(*tiny, folder, batch)


def test_the_record_says_what_is_on_disk(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    folder, record = quantized
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "quantized.json"]
    assert QuantizedModel.load(folder / "quantized.json") == record
    assert record.quantized_nodes == ("stem.0", "layer.scale.0")
    assert [node.node for node in record.float_nodes] == ["head"]
    assert "16" in record.float_nodes[0].reason
    assert record.ranges_sha256 == tiny[2].digest()
    assert record.search_rows == 64
    assert record.search_sqnr_db is not None
    assert record.search_sqnr_db > 25
    assert record.search_agreement is not None
    assert record.search_agreement > 0.9


def test_nothing_is_left_beside_the_float_model(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    assert quantized[0].exists()
    assert sorted(path.name for path in tiny[0].parent.iterdir()) == ["exported.json", "model.onnx"]


def test_every_activation_scale_is_ours_and_weights_are_per_channel(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    graph = onnx.load(quantized[0] / "model.onnx").graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    activations = weights = 0
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            scale = constants[node.input[1]]
            assert constants[node.input[2]].dtype == np.int8
            if node.input[0] in constants:
                weights += 1
                weight = constants[node.input[0]]
                assert scale.shape == (len(weight),)
                dead = np.abs(weight).max(axis=(1, 2, 3)) == 0
                assert (scale > 0).all()
                assert dead.sum() == (node.input[0] == "stem.0.weight")
            else:
                activations += 1
                entry = tiny[2].tensors[node.input[0]]
                assert float(scale) == float(np.float32(max(-entry.low, entry.high) / 127))
    assert (activations, weights) == (quantized[1].quantize_linear - weights, 2)
    assert activations >= 2


def test_no_half_precision_anywhere(quantized: tuple[Path, QuantizedModel]) -> None:
    model = onnx.shape_inference.infer_shapes(onnx.load(quantized[0] / "model.onnx"))
    kinds = {tensor.data_type for tensor in model.graph.initializer} | {value.type.tensor_type.elem_type for value in model.graph.value_info}
    assert not kinds & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def test_equal_inputs_give_equal_bytes_whatever_the_hash_seed(
    tiny: Prepared, quantized: tuple[Path, QuantizedModel], batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "4711")
    assert quantize(*tiny, tmp_path / "again", batch) == quantized[1]
    assert os.environ["PYTHONHASHSEED"] == "4711"


def test_a_model_of_small_products_is_refused_with_reasons(
    tiny_root: Path, tiny_model: Callable[..., ModelConfig], batch: Batch, tmp_path: Path
) -> None:
    model = prepared(tmp_path / "products", tiny_model("build_products"), tiny_root, batch)
    with pytest.raises(QuantizeError, match="No operator was quantized") as caught:
        quantize(*model, tmp_path / "quantized", batch)
    assert "below 16" in caught.value.got
    assert not (tmp_path / "quantized").exists()


def test_ranges_of_another_model_are_refused(tiny: Prepared, batch: Batch, tmp_path: Path) -> None:
    stale = dataclasses.replace(tiny[2], onnx_sha256="0" * 64)
    with pytest.raises(RangeError, match="another model"):
        quantize(tiny[0], tiny[1], stale, tmp_path / "out", batch)
    assert not (tmp_path / "out").exists()


def test_a_child_that_fails_says_why(tiny: Prepared, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_scheme, "write_cache", lambda path, _: path.write_text("header\nno separator\n"))
    with pytest.raises(QuantizeError, match="modelopt could not quantize") as caught:
        quantize(*tiny, tmp_path / "out", batch)
    assert "ValueError" in caught.value.got


def edit(model: onnx.ModelProto, name: str, value: np.ndarray) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    next(tensor for tensor in copy.graph.initializer if tensor.name == name).CopyFrom(onnx.numpy_helper.from_array(value, name))
    return copy


def test_verification_refuses_each_kind_of_wrong_scale(tiny: Prepared, quantized: tuple[Path, QuantizedModel]) -> None:
    model = onnx.load(quantized[0] / "model.onnx")
    placement = describe(onnx.load(tiny[0]), model, tiny[1])
    verify(model, tiny[2], placement)
    weight_scale = onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "stem.0.weight_scale"))
    zeroed = weight_scale.copy()
    zeroed[3] = 0
    for name, value, message in (
        ("image_scale", np.float32(0.5), "from the calibrated ranges"),
        ("image_scale", np.float32("nan"), "finite, positive"),
        ("image_scale", np.float16(0.5), "finite, positive|16-bit"),
        ("image_zero_point", np.uint8(117), "zero points"),
        ("stem.0.weight_scale", zeroed, "finite, positive"),
        ("stem.0.weight_scale", weight_scale * 2, "absmax / 127"),
    ):
        with pytest.raises(QuantizeError, match=message):
            verify(edit(model, name, np.asarray(value)), tiny[2], placement)
    unseen = dataclasses.replace(tiny[2], tensors={name: entry for name, entry in tiny[2].tensors.items() if name != "image"})
    with pytest.raises(QuantizeError, match="calibrated range"):
        verify(model, unseen, placement)


def test_scales_of_dead_and_of_infinite_ranges() -> None:
    assert activation_scale(TensorRange(-2.0, 1.0, 1.0)) == float(np.float32(2 / 127))
    for dead in (TensorRange(0.0, 0.0, 1.0), TensorRange(0.0, 1e-42, 1.0)):
        assert activation_scale(dead) == float(np.float32(SAFE_SCALE))
    with pytest.raises(RangeError, match="not finite"):
        activation_scale(TensorRange(0.0, float("inf"), 1.0))


def test_the_cache_is_a_tensorrt_calibration_cache(tmp_path: Path) -> None:
    write_cache(tmp_path / "cache", {"b": 0.5, "a": 0.25})
    header, *lines = (tmp_path / "cache").read_text().splitlines()
    assert header.startswith("TRT-")
    assert [(name, struct.unpack("!f", bytes.fromhex(code))[0]) for name, code in (line.split(": ") for line in lines)] == [("a", 0.25), ("b", 0.5)]


def test_names_that_tools_misread_come_back() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { [head] a_scale = Relu(x) [head2] y = Relu(a_scale) }'
    )
    hidden, names = hide(model)
    assert not any(first != second and second.startswith(first) for first in names.nodes.values() for second in names.nodes.values())
    assert "_scale" not in "".join(name for node in hidden.graph.node for name in node.output)
    hidden.graph.node[0].name += "_QuantizeLinear"
    back = restore(hidden, names)
    assert [node.name for node in back.graph.node] == ["head_QuantizeLinear", "head2"]
    assert back.graph.node[1].input[0] == "a_scale"


def test_nodes_without_a_name_get_one() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { a = Relu(x) [same] b = Relu(a) [same] y = Relu(b) }'
    )
    name_nodes(model)
    assert [node.name for node in model.graph.node] == ["Relu_0", "same", "Relu_2"]
