"""Weights in files of a scratch folder: the same graph as with all of them inside."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from pipeline.errors import DiskFullError
from pipeline.side_files import save_model
from pipeline.weights import Scratch, Values, _write, assign, attach, bytes_of, declared, folder_of, lean, place_of, relative, value_of, whole

LARGE = np.arange(600, dtype=np.float32).reshape(20, 30)
HALF = np.linspace(-1, 1, 1000).astype(ml_dtypes.bfloat16)
TEXT = """<ir_version: 10, opset_import: ["" : 20]> g (float[n, 20] x) => (float[n, 30] y)
  { table = Constant <value = float[2] {1.0, 2.0}> () [product] a = MatMul(x, large) [sum] y = Add(a, small) }"""


@pytest.fixture
def model() -> onnx.ModelProto:
    found = onnx.parser.parse_model(TEXT)
    listed = onnx.helper.make_tensor("listed", onnx.TensorProto.FLOAT, [500], np.arange(500.0).tolist())  # in `float_data`
    small = onnx.numpy_helper.from_array(np.ones(30, np.float32), "small")
    found.graph.initializer.extend([onnx.numpy_helper.from_array(LARGE, "large"), small, listed, onnx.numpy_helper.from_array(HALF, "half")])
    found.graph.initializer[0].doc_string = "said"
    onnx.helper.set_model_props(found, {"key": "value"})
    return found


def test_a_lean_graph_has_the_same_values_and_becomes_the_same_model_again(model: onnx.ModelProto, tmp_path: Path) -> None:
    light = lean(model, tmp_path)
    inside = [tensor.name for tensor in light.graph.initializer if place_of(tensor) is None]
    assert inside == ["small", "half"]  # too small, and of a type that files of arrays do not know
    assert (folder_of(model), folder_of(light)) == (None, tmp_path)
    assert len(light.SerializeToString()) < len(model.SerializeToString()) / 2
    wanted, got = Values(model.graph.initializer), Values(light.graph.initializer)
    assert list(wanted) == list(got)
    assert all(np.array_equal(wanted[name], got[name]) for name in wanted)
    again = whole(light)
    assert {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in again.graph.initializer} == {
        name: value.tobytes() for name, value in wanted.items()
    }
    assert (again.graph.initializer[0].doc_string, again.metadata_props[0].value, again.graph.node) == ("said", "value", model.graph.node)
    assert bytes_of(light) == bytes_of(model)


@pytest.mark.parametrize("limit", [100, 10**6])
def test_a_lean_graph_is_stored_as_the_one_that_holds_its_weights(model: onnx.ModelProto, tmp_path: Path, limit: int) -> None:
    model.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(model.graph.initializer[2]), "listed"))
    before = model.SerializeToString()
    digests = [save_model(kind, tmp_path / f"model{place}" / "m.onnx", limit) for place, kind in enumerate(_both(model, tmp_path))]
    assert digests[0] == digests[1]
    assert len({tuple(sorted((path.name, path.read_bytes()) for path in (tmp_path / name).iterdir())) for name in ("model0", "model1")}) == 1
    assert model.SerializeToString() == before


def _both(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    for name in ("model0", "model1", "scratch"):
        (folder / name).mkdir()
    return model, lean(model, folder / "scratch")


def test_a_copy_takes_another_value_without_touching_the_first(model: onnx.ModelProto, tmp_path: Path) -> None:
    light = lean(model, tmp_path)
    copy = onnx.ModelProto()
    copy.CopyFrom(light)
    assign(copy.graph.initializer[0], LARGE.T * 2, folder_of(light))
    assert np.array_equal(value_of(copy.graph.initializer[0]), LARGE.T * 2)
    assert np.array_equal(value_of(light.graph.initializer[0]), LARGE)
    assert {str(Path(place[0]).parent) for tensor in copy.graph.initializer if (place := place_of(tensor))} == {str(tmp_path)}
    names = [place[0] for tensor in relative(copy).graph.initializer if (place := place_of(tensor))]
    assert names
    assert all((tmp_path / name).is_file() and "/" not in name for name in names)


def test_a_stored_model_is_read_lean_with_its_side_files_left_alone(model: onnx.ModelProto, tmp_path: Path) -> None:
    for name in ("stored", "scratch"):
        (tmp_path / name).mkdir()
    save_model(model, tmp_path / "stored" / "m.onnx", 100)
    read = onnx.load(tmp_path / "stored" / "m.onnx", load_external_data=False)
    attach(read, tmp_path / "stored", tmp_path / "scratch")
    assert folder_of(read) == tmp_path / "scratch"
    values = Values(read.graph.initializer)
    assert np.array_equal(values["large"], LARGE)
    assert np.array_equal(values["half"], HALF)


def test_onnx_checks_a_lean_graph_by_its_types_and_shapes(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.checker.check_model(declared(lean(model, tmp_path)), full_check=True)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(LARGE.T, "large"))
    with pytest.raises(onnx.shape_inference.InferenceError, match="product"):
        onnx.checker.check_model(declared(lean(model, tmp_path)), full_check=True)


def test_a_scratch_folder_goes_with_its_last_reference() -> None:
    scratch = Scratch()
    path = scratch.path
    (path / "file").write_bytes(b"0")
    del scratch
    assert not path.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said() -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream, pytest.raises(DiskFullError, match="TMPDIR"):
        _write(stream, LARGE)
