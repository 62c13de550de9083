"""The ONNX file a backend builds from, with its side files, and inputs to probe what was built with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.records import AxisRange, TensorSpec
from pipeline.side_files import verify_side_files


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """An ONNX model to build from. `content` is the file at `path`; with `side` its large weights lie beside it, and have the sha256 it names."""

    path: Path
    content: bytes
    side: bool

    @property
    def source(self) -> bytes | Path:
        """What a runtime reads: the very bytes, or the path where weights lie beside it."""
        return self.path if self.side else self.content


def read_verified(path: Path) -> ModelFile:
    """The model, once every side file is the one that it names by digest, so that its own digest stands for all.

    Raises ModelError when it cannot be parsed, and Refused naming a side file that is missing, swapped, or bound to the model by nothing.
    """
    import onnx

    try:
        content = path.read_bytes()
        model = onnx.load_from_string(content)
    except Exception as error:  # OSError, or protobuf's DecodeError, which has no public home
        raise ModelError("A model cannot be read", where=str(path), expected="an ONNX file", got=f"{type(error).__name__}: {error}") from error
    return ModelFile(path, content, verify_side_files(path, model, all_recorded=True))


def probe(inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange]) -> dict[str, np.ndarray]:
    """Inputs at `opt` sizes: seeded normal values for floats, ones for the rest (an index that is in range, a mask that hides nothing)."""
    random = np.random.default_rng(0)
    sizes = {name: axis.opt for name, axis in shapes.items()}
    return {
        spec.name: random.standard_normal(spec.concrete(sizes)).astype(spec.dtype)
        if spec.dtype.startswith("float")
        else np.ones(spec.concrete(sizes), spec.dtype)
        for spec in inputs
    }


def same_outputs(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], where: str) -> None:
    """Raise ModelError unless two runs of one engine agree to float rounding (relative 1e-4, absolute 1e-5 of the largest value)."""
    for name, wanted in first.items():
        if not np.allclose(wanted, second[name], rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max(initial=0)), equal_nan=True):
            worst = float(np.abs(wanted.astype(np.float64) - second[name]).max())
            got = f"a difference of {worst:.3g}"
            raise ModelError("A saved engine differs from the compiled model", where=f"{where}: output {name}", expected="equal outputs", got=got)


def check_declared(content: bytes, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], model: Path) -> None:
    """Raise ModelError unless the graph has the declared names and dtypes; of an input, a named axis is dynamic and a number is that number."""
    import onnx

    graph = onnx.load_from_string(content).graph
    weights = {tensor.name for tensor in graph.initializer}
    for kind, specs, values in (("input", inputs, graph.input), ("output", outputs, graph.output)):
        found = {value.name: value.type.tensor_type for value in values if value.name not in weights}
        for spec in specs:
            _check_port(kind, spec, found, f"{model}: {kind} {spec.name}")
        if kind == "input" and len(found) != len(specs):
            raise ModelError(
                "The model has inputs that are not declared", where=str(model), expected=", ".join(s.name for s in specs), got=str(sorted(found))
            )


def _check_port(kind: str, spec: TensorSpec, found: Mapping[str, Any], where: str) -> None:
    import onnx

    if spec.name not in found:
        raise ModelError(f"A declared {kind} is not in the model", where=where, expected=spec.name, got=", ".join(sorted(found)))
    tensor = found[spec.name]
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if dtype != spec.dtype:
        raise ModelError(f"The dtype of an {kind} is not the declared one", where=where, expected=spec.dtype, got=dtype)
    got = [axis.dim_value if axis.HasField("dim_value") else "?" for axis in tensor.shape.dim] if tensor.HasField("shape") else ["..."]
    wanted = ["?" if isinstance(axis, str) else axis for axis in spec.shape]
    if kind == "input" and got != wanted:
        raise ModelError("The shape of an input is not the declared one", where=where, expected=str(wanted), got=str(got))
