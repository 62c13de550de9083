"""Weights that an ONNX file keeps in files beside it: found, hashed, and bound to the file itself.

ONNX stores a tensor's `location`, `offset` and `length` (onnx/onnx.proto, `external_data`) and nothing that proves the content, so a file of the same
size can be swapped unnoticed. `save_model` writes the sha256 of each side file into the model's metadata: the sha256 of the model file then
stands for all of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pipeline.digests import sha256_bytes, sha256_file
from pipeline.errors import Refused
from pipeline.records import File
from pipeline.weights import SMALLEST_OUTSIDE, bare, empty, folder_of, place_of, refer, stored_bytes, tensors, value_of, whole

if TYPE_CHECKING:
    import onnx

MAX_INSIDE = 2**31 - 2**26
"""Bytes of weights that one file may hold: protobuf refuses a message of 2 GiB, and 64 MiB are left for the graph."""
DIGEST = "qwarm.sha256/"
"""Prefix of the metadata key that holds a side file's sha256; the file's name follows."""


def light(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for looking at shapes: tensors of a KiB and more keep name, type and shape, and lose their values. Not limited to 2 GiB as a copy is."""
    copy = bare(model)
    for tensor in model.graph.initializer:
        if stored_bytes(tensor) < SMALLEST_OUTSIDE:
            copy.graph.initializer.append(tensor)
            continue
        kept = empty(tensor)
        refer(kept, "left-out", 0, 0)
        copy.graph.initializer.append(kept)
    return copy


def locations(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the side files that a model read without them refers to, in order."""
    import onnx

    found: dict[str, None] = {}
    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found.update({entry.value: None for entry in tensor.external_data if entry.key == "location"})
    return tuple(found)


def describe_files(path: Path, model: onnx.ModelProto | None = None) -> dict[str, File]:
    """Size and sha256 of a model file and of every side file, by name; raises Refused for a side file that is missing or lies elsewhere."""
    import onnx

    graph = model if model is not None else onnx.load(path, load_external_data=False)
    names = [path.name, *locations(graph)]
    return {name: File(plain.stat().st_size, sha256_file(plain)) for name in names for plain in [_plain(path, name)]}


def verify_files(path: Path, files: Mapping[str, File]) -> None:
    """Raise Refused naming the first file of a model that is not what `files` (from `describe_files`) lists."""
    for name, wanted in files.items():
        plain = _plain(path, name)
        if (size := plain.stat().st_size) != wanted.bytes:
            raise _changed(plain, f"{wanted.bytes} bytes", f"{size} bytes")
        if (digest := sha256_file(plain)) != wanted.sha256:
            raise _changed(plain, f"sha256 {wanted.sha256}", f"sha256 {digest}")


def verify_side_files(path: Path, model: onnx.ModelProto, *, all_recorded: bool = False) -> bool:
    """Whether the model has side files; each that its metadata names must have that sha256, and with `all_recorded` it must name each.

    Raises Refused naming the file.
    """
    recorded = {entry.key.removeprefix(DIGEST): entry.value for entry in model.metadata_props if entry.key.startswith(DIGEST)}
    names = locations(model)
    for name in names:
        plain = _plain(path, name)
        if name in recorded and (digest := sha256_file(plain)) != recorded[name]:
            raise _changed(plain, f"sha256 {recorded[name]}", f"sha256 {digest}")
        if all_recorded and name not in recorded:
            raise Refused(
                "A side file is not bound to its model", where=str(plain), expected=f"its sha256 in {path.name}, as metadata {DIGEST}{name}",
                got="no digest", next="write the model with `qwarm quantize` or `qwarm stage export`",
            )  # fmt: skip
    return bool(names)


def whole_bytes(model: onnx.ModelProto, limit: int = MAX_INSIDE) -> bytes | None:
    """The model as one message, equal for equal models; None where its weights of a KiB and more are beyond `limit` bytes."""
    if sum(map(stored_bytes, _large(model.graph))) > limit:
        return None
    return bytes((model if folder_of(model) is None else whole(model)).SerializeToString(deterministic=True))


def _large(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    return [tensor for tensor in tensors(graph) if stored_bytes(tensor) >= SMALLEST_OUTSIDE]


def save_model(model: onnx.ModelProto, path: Path, limit: int = MAX_INSIDE) -> str:
    """Write a model that holds its weights, or a lean one, to `path`; the sha256 of that file stands for the side file too.

    With up to `limit` bytes of weights all is one file; beyond, weights of a KiB and more go to `<path.name>.data`, one after the other. The caller
    makes the files appear whole or not at all (`pipeline.files.replacing_folder`). Equal models give equal bytes.
    """
    import onnx

    if (content := whole_bytes(model, limit)) is not None:
        path.write_bytes(content)
        return sha256_bytes(content)
    side = path.with_name(f"{path.name}.data")
    written = bare(model)
    for tensor in model.graph.initializer:
        written.graph.initializer.append(tensor if stored_bytes(tensor) < SMALLEST_OUTSIDE else empty(tensor))
    with side.open("wb") as stream:
        for tensor, target in zip(_large(model.graph), _large(written.graph), strict=True):
            start = stream.tell()
            stream.write(_content(tensor))
            refer(target, side.name, start, stream.tell() - start)
    metadata = [entry for entry in model.metadata_props if not entry.key.startswith(DIGEST)]
    del written.metadata_props[:]
    written.metadata_props.extend([*metadata, onnx.StringStringEntryProto(key=f"{DIGEST}{side.name}", value=sha256_file(side))])
    content = bytes(written.SerializeToString(deterministic=True))
    path.write_bytes(content)
    return sha256_bytes(content)


def _content(tensor: onnx.TensorProto) -> bytes:
    """The values as `raw_data` has them."""
    import onnx

    if place_of(tensor) is not None:
        return value_of(tensor).tobytes()
    given = tensor if tensor.HasField("raw_data") else onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor))
    return bytes(given.raw_data)


def written_sha256(model: onnx.ModelProto, limit: int = MAX_INSIDE) -> str:
    """What `save_model` would return for a file `model.onnx`."""
    if (content := whole_bytes(model, limit)) is not None:
        return sha256_bytes(content)
    with tempfile.TemporaryDirectory(prefix="qwarm-digest-") as folder:
        return save_model(model, Path(folder) / "model.onnx", limit)


def copy_model(path: Path, folder: Path) -> None:
    """Copy a model file and its side files into `folder` under the same names."""
    import onnx

    for name in (path.name, *locations(onnx.load(path, load_external_data=False))):
        shutil.copyfile(_plain(path, name), folder / name)


def _plain(path: Path, name: str) -> Path:
    """A referenced name as a regular file beside the model; a path that leaves the folder and a link are refused."""
    relative, plain = PurePosixPath(name), path.parent / name
    if relative.is_absolute() or ".." in relative.parts or (plain.is_symlink() and name != path.name):
        raise Refused("A model refers to a file outside its folder", where=str(path), expected="a plain file beside the model", got=name)
    if not plain.is_file():
        raise Refused(
            "A file of the model is missing", where=str(plain), expected=f"the weights that {path.name} refers to", got="no file",
            next="copy the model again with all its files",
        )  # fmt: skip
    return plain


def _changed(path: Path, expected: str, got: str) -> Refused:
    again = "copy the model again with all its files, or export it again"
    return Refused("A file of the model has changed", where=str(path), expected=expected, got=got, next=again)
