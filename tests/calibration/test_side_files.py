"""Weights in side files: written beyond a limit, read back, bound to the model by digest, refused when swapped, missing or elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_qdq import conv, rows

from calibration.onnx_model import read_model
from calibration.runtime import run_session, session, simulator
from pipeline.digests import sha256_file
from pipeline.errors import ModelError, Refused
from pipeline.side_files import DIGEST, MAX_INSIDE, copy_model, describe_files, save_model, verify_files, written_sha256

LIMIT = 1000
"""Lowered from 2 GiB: the tiny model's weights pass it."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The large tensor is stored as a list of floats, as some tools do."""
    model = conv("tensorrt")
    weight = onnx.helper.make_tensor("extra", onnx.TensorProto.FLOAT, [16, 16, 8, 8], np.linspace(-1, 1, 16 * 16 * 64, dtype=np.float32))
    model.graph.initializer.append(weight)
    path = tmp_path / "model.onnx"
    assert save_model(model, path, LIMIT) == sha256_file(path)
    assert model.graph.initializer[-1].data_location == onnx.TensorProto.DEFAULT
    assert not model.metadata_props
    return path


def test_beyond_the_limit_weights_lie_beside_and_come_back(large: Path) -> None:
    outside = onnx.load(large, load_external_data=False)
    assert [tensor.name for tensor in outside.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL] == ["extra"]
    assert [entry.key for entry in outside.metadata_props] == [f"{DIGEST}model.onnx.data"]
    back = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in read_model(large).graph.initializer}
    assert np.array_equal(back["extra"].reshape(-1), np.linspace(-1, 1, 16 * 16 * 64, dtype=np.float32))
    wanted = run_session(session(read_model(large)), rows(2))["y"]
    assert np.array_equal(wanted, run_session(session(large), rows(2))["y"])
    assert np.array_equal(wanted, run_session(session(read_model(large), limit=LIMIT), rows(2))["y"])


def test_up_to_the_limit_all_is_one_file_and_equal_models_give_equal_bytes(large: Path, tmp_path: Path) -> None:
    model = read_model(large)
    (tmp_path / "one").mkdir()
    save_model(model, tmp_path / "one" / "model.onnx")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["model.onnx"]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        save_model(read_model(tmp_path / "one" / "model.onnx"), tmp_path / name / "model.onnx", LIMIT)
    first, second = (describe_files(tmp_path / name / "model.onnx") for name in ("first", "second"))
    assert first == second
    assert set(first) == {"model.onnx", "model.onnx.data"}


def test_a_swapped_side_file_is_refused_by_name(large: Path) -> None:
    files, side = describe_files(large), large.with_name("model.onnx.data")
    verify_files(large, files)
    content = bytearray(side.read_bytes())
    content[-1] ^= 1
    side.write_bytes(content)
    for refuse in (lambda: verify_files(large, files), lambda: read_model(large)):
        with pytest.raises(Refused, match="model.onnx.data") as caught:
            refuse()
        assert caught.value.exit_code == 3
    side.write_bytes(bytes(content[:-1]))
    with pytest.raises(Refused, match="bytes"):
        verify_files(large, files)
    side.unlink()
    with pytest.raises(Refused, match="missing"):
        read_model(large)


def test_the_model_file_stands_for_its_side_file(large: Path, tmp_path: Path) -> None:
    other = read_model(large)
    other.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.zeros((16, 16, 8, 8), np.float32), "extra"))
    (tmp_path / "other").mkdir()
    assert save_model(other, tmp_path / "other" / "model.onnx", LIMIT) != sha256_file(large)
    (tmp_path / "copied").mkdir()
    copy_model(large, tmp_path / "copied")
    assert describe_files(tmp_path / "copied" / "model.onnx") == describe_files(large)


@pytest.mark.parametrize("name", ["../weights.bin", "/tmp/weights.bin"])
def test_a_side_file_outside_the_folder_is_refused(large: Path, name: str) -> None:
    model = onnx.load(large, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = name if entry.key == "location" else entry.value
    large.write_bytes(model.SerializeToString())
    with pytest.raises(Refused, match="outside its folder"):
        read_model(large)


def test_a_link_is_refused(large: Path) -> None:
    side = large.with_name("model.onnx.data")
    side.rename(large.with_name("elsewhere"))
    side.symlink_to(large.with_name("elsewhere"))
    with pytest.raises(Refused, match="outside its folder"):
        describe_files(large)


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    for path in (tmp_path / "empty.onnx", tmp_path / "absent.onnx"):
        with pytest.raises(ModelError):
            read_model(path)


def test_a_simulator_and_a_digest_take_a_model_beyond_the_limit(large: Path, tmp_path: Path) -> None:
    model = read_model(large)
    whole, parted = (run_session(simulator(model, limit), rows(2))["y"] for limit in (MAX_INSIDE, LIMIT))
    np.testing.assert_array_equal(whole, parted)
    for limit in (MAX_INSIDE, LIMIT):
        folder = tmp_path / str(limit)
        folder.mkdir()
        assert written_sha256(model, limit) == save_model(model, folder / "model.onnx", limit)
        assert (folder / "model.onnx.data").is_file() == (limit == LIMIT)
