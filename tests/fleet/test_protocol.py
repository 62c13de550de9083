"""Open Inference Protocol v2 in JSON: exact floats, strict types, and a reason for each refusal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.protocol import DATATYPES, InferRequest, body_limit, metadata, parse_infer, parse_tensor, render_infer
from fleet.verify import verify
from pipeline.errors import InputError
from pipeline.records import AxisRange, ReleaseManifest, TensorSpec


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> ReleaseManifest:
    return verify(bundle, allow_unsigned=True).manifest


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64, **changes}


def request(*tensors: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({"inputs": list(tensors) or [tensor()], **changes}).encode()


def test_flat_and_nested_data_are_the_same(manifest: ReleaseManifest) -> None:
    array = np.random.default_rng(0).random((3, 1, 8, 8)).astype(np.float32)
    for data in (array.ravel().tolist(), array.tolist()):
        parsed = parse_infer(request(tensor(shape=[3, 1, 8, 8], data=data), id="a", parameters={"x": 1}), manifest)
        assert np.array_equal(parsed.inputs["image"], array)
        assert (parsed.id, parsed.outputs) == ("a", ("logits",))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_32_bit_floats_survive_the_round_trip_bit_for_bit(manifest: ReleaseManifest, values: list[float]) -> None:
    array = np.array(values, np.float32)
    answer = json.loads(render_infer(manifest, InferRequest({}, ("y",), None), {"y": array}))["outputs"][0]
    spec = TensorSpec("y", "float32", ("n",))
    assert parse_tensor(answer, spec).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", sorted(set(DATATYPES.values())))
def test_every_datatype_at_its_ends(dtype: str) -> None:
    [datatype] = [name for name, numpy_name in DATATYPES.items() if numpy_name == dtype]
    spec = TensorSpec("x", dtype, (2,))
    if dtype == "bool":
        ends, beyond = [False, True], [0, 1]
    elif dtype.startswith("float"):
        top = float(np.finfo(dtype).max)
        ends, beyond = [-top, top], [top * 4, 0] if dtype != "float64" else ["1", 0]
    else:
        ends, beyond = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)], [int(np.iinfo(dtype).max) + 1, 0]
    entry = {"name": "x", "shape": [2], "datatype": datatype}
    parsed = parse_tensor({**entry, "data": ends}, spec)
    assert str(parsed.dtype) == dtype
    assert parsed.tolist() == ends
    with pytest.raises(InputError):
        parse_tensor({**entry, "data": beyond}, spec)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "torn": (b'{"inputs": [', "not JSON"),
    "not-utf8": (b"\xff\xfe\x00", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "a-list": (b"[]", "an object"),
    "no-inputs": (b"{}", "inputs"),
    "unknown-key": (request(output=[]), "output"),
    "nan": (request(tensor(data=[float("nan")] * 64)), "finite"),
    "infinity": (request(tensor(data=[float("-inf")] * 64)), "finite"),
    "overflow": (request(tensor(data=[1e39] * 64)), "finite FP32"),
    "huge-integer": (request(tensor(data=[10**400] * 64)), "FP32"),
    "wrong-name": (request(tensor(name="picture")), "picture"),
    "name-twice": (request(tensor(), tensor()), "twice"),
    "name-missing": (request({"shape": [1], "datatype": "FP32", "data": [1]}), "name"),
    "wrong-datatype": (request(tensor(datatype="INT8", data=[1] * 64)), "FP32"),
    "bytes": (request(tensor(datatype="BYTES", data=["a"])), "FP32"),
    "wrong-rank": (request(tensor(shape=[1, 64])), "shape"),
    "wrong-size": (request(tensor(shape=[1, 1, 4, 16])), "shape"),
    "negative-size": (request(tensor(shape=[-1, 1, 8, 8])), "shape"),
    "fractional-size": (request(tensor(shape=[1.0, 1, 8, 8])), "shape"),
    "empty-batch": (request(tensor(shape=[0, 1, 8, 8], data=[])), "1 to 4"),
    "batch-too-large": (request(tensor(shape=[5, 1, 8, 8], data=[0] * 320)), "1 to 4"),
    "too-few-values": (request(tensor(data=[0.5] * 63)), "64 values"),
    "ragged": (request(tensor(data=[[[[0.5] * 8] * 7 + [[0.5] * 7]]])), "8 elements along axis 3"),
    "mixed-nesting": (request(tensor(data=[[[[0.5] * 8] * 7 + [0.5]]])), "axis 3"),
    "strings": (request(tensor(data=["0.5"] * 64)), "a string"),
    "nulls": (request(tensor(data=[None] * 64)), "null"),
    "booleans": (request(tensor(data=[True] * 64)), "bool"),
    "no-data": (request({"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32"}), "no data"),
    "binary-extension": (request(tensor(data=None, parameters={"binary_data_size": 256})), "list"),
    "unknown-output": (request(outputs=[{"name": "probabilities"}]), "probabilities"),
    "id-is-a-number": (request(id=7), "id"),
}


@pytest.mark.parametrize("name", BAD)
def test_refusals_say_what_is_wrong(name: str, manifest: ReleaseManifest) -> None:
    body, part = BAD[name]
    with pytest.raises(InputError) as caught:
        parse_infer(body, manifest)
    assert part in str(caught.value)


def test_outputs_are_those_asked_for(manifest: ReleaseManifest) -> None:
    two = dataclasses.replace(manifest, outputs=(*manifest.outputs, TensorSpec("mask", "bool", ("batch", 1))))
    assert parse_infer(request(), two).outputs == ("logits", "mask")
    asked = parse_infer(request(outputs=[{"name": "mask"}, {"name": "mask"}]), two)
    answer = json.loads(render_infer(two, asked, {"mask": np.array([[True]]), "logits": np.zeros((1, 3), np.float32)}))
    assert answer["outputs"] == [{"name": "mask", "datatype": "BOOL", "shape": [1, 1], "data": [True]}]
    assert "id" not in answer


def test_an_output_that_is_not_finite_is_no_json(manifest: ReleaseManifest) -> None:
    with pytest.raises(ValueError, match="JSON"):
        render_infer(manifest, parse_infer(request(), manifest), {"logits": np.array([[np.nan, 1, 2]], np.float32)})


def test_metadata_and_limit(manifest: ReleaseManifest) -> None:
    assert metadata(manifest, "openvino-cpu")["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    largest = json.dumps(tensor(shape=[4, 1, 8, 8], data=np.full((4, 1, 8, 8), -1.2345678901234567e-30).tolist()), indent=4)
    assert len(largest) < body_limit(manifest)
    assert body_limit(dataclasses.replace(manifest, shapes={"batch": AxisRange(1, 2, 400)})) > body_limit(manifest)
