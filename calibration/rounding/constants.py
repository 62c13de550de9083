"""Constants of a Q/DQ graph, also those behind a QuantizeLinear or a DequantizeLinear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.weights import tensor_of, value_of

if TYPE_CHECKING:
    import onnx

KINDS = {"value": None, "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""Attributes of a Constant that hold its value, and the type of those that are no tensor."""
FOLDED = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Constants(Mapping[str, np.ndarray]):
    """Values by name. Each is read or computed when it is asked for, and kept by nobody: all together they are the model several times over."""

    def __init__(self, tensors: Mapping[str, onnx.TensorProto], computed: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._tensors, self._computed = dict(tensors), dict(computed)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._computed[name]() if name in self._computed else value_of(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter({**self._tensors, **self._computed})

    def __len__(self) -> int:
        return len({**self._tensors, **self._computed})

    def __contains__(self, name: object) -> bool:
        return name in self._computed or name in self._tensors

    def __setitem__(self, name: str, value: Callable[[], np.ndarray]) -> None:
        self._computed[name] = value

    def renamed(self, prefix: str) -> Constants:
        """The same with `prefix` before each name."""
        return Constants(*({f"{prefix}{name}": value for name, value in table.items()} for table in (self._tensors, self._computed)))

    def joined(self, other: Constants) -> Constants:
        """Those of both."""
        return Constants(self._tensors | other._tensors, self._computed | other._computed)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a constant, without reading it where a graph stores it."""
        return self[name].shape if name in self._computed else tuple(self._tensors[name].dims)

    def computed(self, name: str) -> bool:
        """Whether no graph stores it."""
        return name in self._computed

    def tensor(self, name: str, folder: Path | None) -> onnx.TensorProto:
        """The constant as a graph stores it: what is computed in a new file of `folder`, if there is one; what is stored where it is."""
        if name in self._computed:
            return tensor_of(self._computed[name](), name, folder)
        copy = type(self._tensors[name])()
        copy.CopyFrom(self._tensors[name])
        copy.name = name
        return copy


def constants_of(model: onnx.ModelProto) -> tuple[Constants, list[onnx.NodeProto]]:
    """Values of all constants by name, and the nodes that give no constant."""
    import onnx

    values = Constants({tensor.name: tensor for tensor in model.graph.initializer}, {})
    left = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name in KINDS:
            kind, value = KINDS[node.attribute[0].name], onnx.helper.get_attribute_value(node.attribute[0])
            values[node.output[0]] = functools.partial(value_of, value) if kind is None else functools.partial(np.array, value, kind)
        elif node.op_type in FOLDED and all(name in values for name in node.input):
            values[node.output[0]] = functools.partial(_folded, node, values)
        else:
            left.append(node)
    return values, left


def _folded(node: onnx.NodeProto, values: Constants) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear as the ONNX specification has them, per tensor or per axis."""
    inputs = [values[name] for name in node.input]
    value, scale = inputs[:2]
    zero = inputs[2] if len(inputs) > 2 else np.zeros_like(scale, np.uint8)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [-1 if place == axis % value.ndim else 1 for place in range(value.ndim)] if scale.size > 1 else [1] * value.ndim
    scale, zero = scale.reshape(shape), zero.reshape(shape)
    if node.op_type == "DequantizeLinear":
        result = value.astype(np.float32)
        result -= zero.astype(np.float32)
        result *= scale
        return result
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(zero.dtype)
