"""Open Inference Protocol v2, JSON tensors: request bodies to arrays and back, strictly (github.com/kserve/open-inference-protocol).

A 32-bit float is written as the shortest decimal of its exact 64-bit value, so reading it back gives the same 32 bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from pipeline.errors import InputError
from pipeline.records import ReleaseManifest
from pipeline.tensors import Batch, TensorSpec, check_inputs

DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The protocol's datatypes by numpy's name for them; BYTES is not served."""
DATATYPE_OF = {name: datatype for datatype, name in DATATYPES.items()}
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""What json.loads may give for a value, by numpy's kind of dtype."""
BYTES_PER_NUMBER = 64
"""Room that a request may take for one number, separators and indentation included (25 characters are the longest number)."""


@dataclasses.dataclass(frozen=True)
class InferRequest:
    """A checked request: arrays as declared, the outputs asked for, and the caller's id."""

    inputs: Batch
    outputs: tuple[str, ...]
    id: str | None


def body_limit(manifest: ReleaseManifest) -> int:
    """Most bytes that a request at the largest served sizes can need."""
    largest = {axis: sizes.max for axis, sizes in manifest.shapes.items()}
    numbers = sum(int(np.prod(spec.concrete(largest), dtype=np.int64)) for spec in manifest.inputs)
    return numbers * BYTES_PER_NUMBER + (64 << 10)


def metadata(manifest: ReleaseManifest, target: str) -> dict[str, Any]:
    """Answer of GET /v2/models/NAME: a named axis is -1."""

    def tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "datatype": DATATYPE_OF[spec.dtype], "shape": [axis if isinstance(axis, int) else -1 for axis in spec.shape]}
            for spec in specs
        ]

    return {
        "name": manifest.name,
        "versions": [manifest.version],
        "platform": f"qwarm_{target}",
        "inputs": tensors(manifest.inputs),
        "outputs": tensors(manifest.outputs),
    }


def parse_infer(body: bytes, manifest: ReleaseManifest) -> InferRequest:
    """Read an infer request; raises InputError saying which part is wrong."""
    request = expect(load_json(body), dict, "the request")
    if unknown := sorted(set(request) - {"id", "parameters", "inputs", "outputs"}):
        raise InputError(
            "The request has keys that the protocol does not", where="the request", expected="id, inputs, outputs", got=", ".join(unknown)
        )
    identity = request.get("id")
    if identity is not None:
        expect(identity, str, "id")
    declared = {spec.name: spec for spec in manifest.inputs}
    inputs: dict[str, np.ndarray] = {}
    for index, entry in enumerate(expect(request.get("inputs"), list, "inputs")):
        where = f"inputs[{index}]"
        tensor = expect(entry, dict, where)
        name = expect(tensor.get("name"), str, f"{where}.name")
        if name not in declared:
            raise InputError("The model has no such input", where=f"{where}.name", expected=", ".join(declared), got=name)
        if name in inputs:
            raise InputError("An input is given twice", where=f"{where}.name", expected="each input once", got=name)
        inputs[name] = parse_tensor(tensor, declared[name])
    check_inputs(inputs, manifest.inputs, manifest.shapes)
    known = [spec.name for spec in manifest.outputs]
    wanted = [
        expect(expect(entry, dict, f"outputs[{index}]").get("name"), str, f"outputs[{index}].name")
        for index, entry in enumerate(expect(request.get("outputs", []), list, "outputs"))
    ]
    for name in wanted:
        if name not in known:
            raise InputError("The model has no such output", where="outputs", expected=", ".join(known), got=name)
    return InferRequest(inputs, tuple(dict.fromkeys(wanted)) or tuple(known), identity)


def load_json(body: bytes) -> Any:
    """Parse strict JSON: no NaN or Infinity; raises InputError for anything `json` cannot take."""

    def not_finite(name: str) -> NoReturn:
        raise InputError("A number is not finite", where="the request", expected="finite numbers", got=name)

    try:
        return json.loads(body, parse_constant=not_finite)
    except (ValueError, RecursionError) as error:
        raise InputError("The request is not JSON", where="the body", expected="a JSON object in UTF-8", got=str(error)[:200]) from error


def expect(value: Any, kind: type, where: str) -> Any:
    """`value` when it is of JSON type `kind`, else InputError."""
    if not isinstance(value, kind):
        names: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
        raise InputError("A part of the request has the wrong type", where=where, expected=names[kind], got=json.dumps(value)[:80])
    return value


def parse_tensor(tensor: Mapping[str, Any], spec: TensorSpec) -> np.ndarray:
    """One named tensor, its data flat in row-major order or nested as its shape says, to an array of the declared dtype."""
    where = f"input {spec.name}"
    datatype = tensor.get("datatype")
    if datatype != DATATYPE_OF[spec.dtype]:
        raise InputError("Wrong input datatype", where=where, expected=DATATYPE_OF[spec.dtype], got=str(datatype)[:80])
    shape = expect(tensor.get("shape"), list, f"{where}, shape")
    if not all(type(size) is int and 0 <= size < 1 << 31 for size in shape) or len(shape) != len(spec.shape):
        raise InputError("Wrong input shape", where=where, expected=f"shape {list(spec.shape)}", got=json.dumps(shape)[:80])
    if "data" not in tensor:
        raise InputError("An input has no data", where=where, expected="data as JSON numbers", got="no data")
    flat = flatten(expect(tensor["data"], list, f"{where}, data"), shape, where)
    dtype = np.dtype(spec.dtype)
    allowed = JSON_TYPES[dtype.kind]
    if strange := set(map(type, flat)) - allowed:
        raise InputError(
            "A value has the wrong type",
            where=f"{where}, data",
            expected={"b": "true or false", "i": "integers", "u": "integers", "f": "numbers"}[dtype.kind],
            got=", ".join(sorted({"NoneType": "null", "str": "a string", "dict": "an object"}.get(kind.__name__, kind.__name__) for kind in strange)),
        )
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
    except OverflowError as error:
        raise InputError("A value does not fit the datatype", where=f"{where}, data", expected=datatype, got=str(error)) from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("A value does not fit the datatype", where=f"{where}, data", expected=f"finite {datatype} numbers", got="a larger one")
    return array.reshape(shape)


def flatten(data: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    """`data` in row-major order, given flat or nested exactly as `shape`; raises InputError."""
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if len(shape) > 1 and data and isinstance(data[0], list):
        level = [data]
        for depth, size in enumerate(shape):
            if any(not isinstance(part, list) or len(part) != size for part in level):
                got = "another number of elements, or a mixture"
                raise InputError(
                    "Nested data does not have its shape", where=f"{where}, data", expected=f"{size} elements along axis {depth}", got=got
                )
            level = list(itertools.chain.from_iterable(level))
        data = level
    if len(data) != count:
        raise InputError("The data does not have its shape", where=f"{where}, data", expected=f"{count} values for {list(shape)}", got=str(len(data)))
    return data


def render_infer(manifest: ReleaseManifest, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
    """Answer of POST infer; raises ValueError when an output is not finite, which JSON cannot say."""
    answer: dict[str, Any] = {"model_name": manifest.name, "model_version": manifest.version}
    if request.id is not None:
        answer["id"] = request.id
    answer["outputs"] = [
        {
            "name": name,
            "datatype": DATATYPE_OF[str(outputs[name].dtype)],
            "shape": list(outputs[name].shape),
            "data": outputs[name].ravel().tolist(),
        }
        for name in request.outputs
    ]
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
