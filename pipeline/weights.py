"""Weights of an ONNX graph in files of a scratch folder, for models of which memory should hold one layer at a time.

A protobuf message shares nothing with another, and gives back no memory before it is dropped as a whole: a large graph that holds its weights cannot
be copied, cut and rewritten. A lean graph's tensors refer to files by an absolute path, which no stored model does; `value_of` reads one, `assign`
writes another file, and all go with their folder (`Scratch`).
"""

from __future__ import annotations

import math
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pipeline.errors import disk_error

if TYPE_CHECKING:
    import onnx

HELD = 2**28
"""Bytes of weights that a message may hold: small models are quicker so."""
SMALLEST_OUTSIDE = 1024
"""Bytes from which a tensor goes to a file: what shape inference reads stays inside."""
PLAIN = frozenset({"float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"})
"""Types that a file holds as an array does."""


class Scratch:
    """A folder for weights, which goes when nothing refers to this any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="qwarm-weights-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values; 0 for strings, which always stay inside."""
    import onnx

    if tensor.data_type in {onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED}:
        return 0
    return math.prod(tensor.dims) * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a graph stores: initializers and attributes, also in the bodies of If, Loop and Scan."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from tensors(inner)


def bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without initializers, however large they are."""
    copy = type(model)()
    _copy_fields(model, copy, {"graph"})
    copy.graph.SetInParent()
    _copy_fields(model.graph, copy.graph, {"initializer"})
    return copy


def empty(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A copy with name, type and shape, and without values."""
    copy = type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if tensor.HasField("doc_string"):
        copy.doc_string = tensor.doc_string
    copy.metadata_props.extend(tensor.metadata_props)
    return copy


VALUES = frozenset(
    {"raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data", "external_data", "data_location"}
)


def _copy_fields(source: Any, target: Any, without: Iterable[str]) -> None:
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if isinstance(value, (bool, int, float, str, bytes)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Let `tensor` have its values in a file, instead of what it has."""
    import onnx

    for field in VALUES:
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))


def place_of(tensor: onnx.TensorProto) -> tuple[str, int] | None:
    """File and offset of a tensor that has its values in a file."""
    import onnx

    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0))


def folder_of(model: onnx.ModelProto) -> Path | None:
    """The scratch folder of a lean graph; None for one that holds its weights."""
    for tensor in tensors(model.graph):
        if (place := place_of(tensor)) is not None and Path(place[0]).is_absolute():
            return Path(place[0]).parent
    return None


def value_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The values of a tensor, wherever it has them."""
    import onnx

    if (place := place_of(tensor)) is None:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.fromfile(place[0], kind, math.prod(tensor.dims), offset=place[1]).reshape(tuple(tensor.dims))


class Values(Mapping[str, np.ndarray]):
    """Initializers of a graph by name, each read when it is asked for and kept by nobody."""

    def __init__(self, stored: Iterable[onnx.TensorProto]) -> None:
        self.stored = {tensor.name: tensor for tensor in stored}

    def __getitem__(self, name: str) -> np.ndarray:
        return value_of(self.stored[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored


def tensor_of(array: np.ndarray, name: str, folder: Path | None) -> onnx.TensorProto:
    """A tensor of these values: in a file of `folder`, if there is one and they are plain and of a KiB or more."""
    import onnx

    if folder is None or array.nbytes < SMALLEST_OUTSIDE or array.dtype.name not in PLAIN:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
    path = folder / uuid.uuid4().hex
    with path.open("wb") as stream:
        _write(stream, array)
    tensor = onnx.TensorProto(name=name, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    refer(tensor, str(path), 0, array.nbytes)
    return tensor


def assign(tensor: onnx.TensorProto, array: np.ndarray, folder: Path | None) -> None:
    """Give `tensor` other values: as `tensor_of` does."""
    tensor.CopyFrom(tensor_of(array, tensor.name, folder))


def lean(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """A copy whose weights are in files of `folder`: what it holds is moved there, what is there already stays."""
    copy = bare(model)
    path = folder / uuid.uuid4().hex
    with path.open("wb") as stream:
        for tensor in model.graph.initializer:
            array = value_of(tensor) if stored_bytes(tensor) >= SMALLEST_OUTSIDE and place_of(tensor) is None else None
            if array is None or array.dtype.name not in PLAIN:
                copy.graph.initializer.append(tensor)
                continue
            refer(_added(copy, empty(tensor)), str(path), stream.tell(), array.nbytes)
            _write(stream, array)
    return copy


def _write(stream: BinaryIO, array: np.ndarray) -> None:
    """Raises DiskFullError, or QwarmError for another fault (`ndarray.tofile` would not say which)."""
    try:
        stream.write(np.ascontiguousarray(array).data)
        stream.flush()
    except OSError as error:
        raise disk_error(error, f"{stream.name} (TMPDIR chooses the folder)") from error


def whole(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that holds its weights."""
    copy = bare(model)
    for tensor in tensors(copy.graph):
        _load(tensor)
    for tensor in model.graph.initializer:
        _load(_added(copy, tensor))
    return copy


def _load(tensor: onnx.TensorProto) -> None:
    if place_of(tensor) is not None:
        content = value_of(tensor).tobytes()
        tensor.CopyFrom(empty(tensor))
        tensor.raw_data = content


def _added(model: onnx.ModelProto, tensor: onnx.TensorProto) -> onnx.TensorProto:
    added = model.graph.initializer.add()
    added.CopyFrom(tensor)
    return added


def attach(model: onnx.ModelProto, beside: Path, folder: Path) -> None:
    """Let a model that was read without its side files, which lie in `beside`, refer to copies of them in `folder`, in place.

    Copies: ONNX Runtime reads from one folder only, and follows no symbolic link out of it; onnx refuses a file that has a second hard link.
    """
    import onnx

    copies: dict[str, Path] = {}
    for tensor in tensors(model.graph):
        if (place := place_of(tensor)) is None:
            continue
        if onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name not in PLAIN:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(beside))
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            continue
        if place[0] not in copies:
            copies[place[0]] = folder / uuid.uuid4().hex
            shutil.copyfile(beside / place[0], copies[place[0]])
        refer(tensor, str(copies[place[0]]), place[1], stored_bytes(tensor))


def relative(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a lean graph whose tensors name their files without the folder, as a runtime that is told the folder wants them."""
    copy = type(model)()
    copy.CopyFrom(model)
    for tensor in tensors(copy.graph):
        if (place := place_of(tensor)) is not None:
            refer(tensor, Path(place[0]).name, place[1], stored_bytes(tensor))
    return copy


def declared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which what has its values in a file is an input of that type and shape: for checks that read files or take no large message."""
    import onnx

    copy = bare(model)
    taken = {value.name for value in copy.graph.input}
    for tensor in model.graph.initializer:
        if stored_bytes(tensor) < SMALLEST_OUTSIDE:
            copy.graph.initializer.append(tensor)
        elif tensor.name not in taken:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy


def bytes_of(model: onnx.ModelProto) -> int:
    """Bytes of all values of a model."""
    return sum(map(stored_bytes, tensors(model.graph)))
