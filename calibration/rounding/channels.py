"""Where a scale for each channel can pass through a graph unseen: folded into the weights that write it and those that read it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from calibration.graph import tensor_shapes
from pipeline.weights import assign, folder_of, value_of

if TYPE_CHECKING:
    import onnx

SAME = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity"})
"""f(s x) = s f(x) for any positive s, channel by channel."""
FLAT = frozenset({"Flatten", "Reshape", "Squeeze", "ReduceMean"})
"""Those may turn (N, C, ...) into (N, C): channels stay apart."""
LAYERS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors that must share their channels' scales, because only Adds and positively homogeneous operators stand between them.

    `tensors` says where each has its channels. `writers` and `readers` name the layers that take the scales into their weights on the side of
    their outputs and of their inputs (a LayerNormalization only writes); `added` names vectors that an Add brings in on the way.
    """

    tensors: dict[str, int]
    channels: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    added: tuple[str, ...]


def groups_of(model: onnx.ModelProto) -> tuple[Group, ...]:
    """Every group whose scales fold into weights that nothing else reads; names of nodes must be unique."""
    search = _Search(model)
    for node in model.graph.node:
        if not (search.layer(node) or search.between(node)):
            search.closed.update(name for name in (*node.input, *node.output))
    return search.groups()


class _Search:
    """Joins tensors node by node; a set that touches a closed tensor is given up."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.shapes = tensor_shapes(model)
        self.closed = {value.name for value in (*graph.input, *graph.output)}
        self.parents: dict[str, str] = {}
        self.axes: dict[str, set[int]] = {}
        self.sizes: dict[str, set[int]] = {}
        self.writers: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        self.added: dict[str, list[str]] = {}

    def layer(self, node: onnx.NodeProto) -> bool:
        """Whether both sides of the node's weight can take scales."""
        if node.op_type == "LayerNormalization":
            return self._norm(node)
        if node.op_type not in LAYERS or not self._own(node.input[1]) or not all(self._own(name) for name in node.input[2:] if name):
            return False
        dims = self.constants[node.input[1]]
        attributes = {attribute.name: attribute.f or attribute.i for attribute in node.attribute}
        if node.op_type != "Conv" and (len(dims) != 2 or attributes.get("transA") or {attributes.get(name, 1) for name in ("alpha", "beta")} != {1}):
            return False
        rows, columns = (dims[0], dims[1] * attributes.get("group", 1)) if rows_first(node) else (dims[1], dims[0])
        if any(self.constants[name] != (rows,) for name in node.input[2:] if name):
            return False
        for name, size, side in ((node.input[0], columns, self.readers), (node.output[0], rows, self.writers)):
            axis = len(self.shapes.get(name, ())) - 1 if node.op_type == "MatMul" else 1
            self._root(name)
            self.axes.setdefault(name, set()).add(axis)
            self.sizes.setdefault(name, set()).add(int(size))
            side.setdefault(name, []).append(node.name)
        return True

    def _norm(self, node: onnx.NodeProto) -> bool:
        """Whether the node's own scale and offset can take those of its channels, the last axis."""
        last = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
        rank = len(self.shapes.get(node.output[0], ()))
        vectors = [name for name in node.input[1:] if name]
        if last not in {-1, rank - 1} or len(node.output) > 1 or not all(self._own(name) for name in vectors):
            return False
        self.closed.add(node.input[0])
        self._root(node.output[0])
        self.axes.setdefault(node.output[0], set()).add(rank - 1)
        self.sizes.setdefault(node.output[0], set()).add(self.constants[vectors[0]][0])
        self.writers.setdefault(node.output[0], []).append(node.name)
        return True

    def between(self, node: onnx.NodeProto) -> bool:
        """Whether scales pass through the node as they are; joins its tensors then."""
        moving = [name for name in node.input if name and name not in self.constants]
        if node.op_type in SAME and len(node.output) == 1:
            return self._join(node.input[0], node.output[0])
        if node.op_type in FLAT:
            shape, result = self.shapes.get(node.input[0], ()), self.shapes.get(node.output[0], ())
            apart = len(shape) > 2 and len(result) == 2 and shape[1] == result[1] and isinstance(shape[1], int)
            flat = node.op_type == "ReduceMean" or all(size == 1 for size in shape[2:])
            kept = (
                node.op_type == "ReduceMean" and len(shape) > 2 and len(result) == len(shape) and shape[:2] == result[:2] and set(result[2:]) == {1}
            )
            return ((apart and flat) or kept) and self._join(node.input[0], node.output[0])
        if node.op_type != "Add":
            return False
        vectors = [name for name in node.input if name in self.constants]
        if not vectors and self.shapes.get(moving[0]) == self.shapes.get(moving[1], ()):
            return self._join(moving[0], moving[1]) and self._join(moving[0], node.output[0])
        if len(vectors) == 1 and len(self.constants[vectors[0]]) == 1 and self._own(vectors[0]):
            self.added.setdefault(moving[0], []).append(vectors[0])
            self.axes.setdefault(moving[0], set()).add(len(self.shapes.get(moving[0], ())) - 1)
            self.sizes.setdefault(moving[0], set()).add(self.constants[vectors[0]][0])
            return self._join(moving[0], node.output[0])
        return False

    def groups(self) -> tuple[Group, ...]:
        sets: dict[str, list[str]] = {}
        for name in self.parents:
            sets.setdefault(self._root(name), []).append(name)
        found = []
        for names in sets.values():
            axes, sizes = ({value for name in names for value in table.get(name, ())} for table in (self.axes, self.sizes))
            writers, readers, added = (
                tuple(entry for name in names for entry in table.get(name, ())) for table in (self.writers, self.readers, self.added)
            )
            if len(axes) == len(sizes) == 1 and writers and readers and not self.closed.intersection(names):
                axis = axes.pop()
                found.append(Group(dict.fromkeys(names, axis), sizes.pop(), writers, readers, added))
        return tuple(found)

    def _own(self, name: str) -> bool:
        return name in self.constants and self.uses[name] == 1

    def _root(self, name: str) -> str:
        while self.parents.setdefault(name, name) != name:
            name = self.parents[name]
        return name

    def _join(self, first: str, second: str) -> bool:
        self.parents[self._root(first)] = self._root(second)
        return True


def rows_first(node: onnx.NodeProto) -> bool:
    """Whether the first axis of the node's weight is its output channels."""
    return node.op_type == "Conv" or any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def scaled(model: onnx.ModelProto, scales: list[tuple[Group, np.ndarray]]) -> onnx.ModelProto:
    """The same function with every tensor of each group divided by its `(channels,)` scales, channel by channel."""
    copy = type(model)()
    copy.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in copy.graph.initializer}
    nodes = {node.name: node for node in copy.graph.node}
    factors: dict[str, list[np.ndarray]] = {}

    def multiply(name: str, factor: np.ndarray) -> None:
        factors.setdefault(name, []).append(factor)

    for group, scale in scales:
        for name in group.writers:
            node = nodes[name]
            rank = len(tensors[node.input[1]].dims)
            multiply(node.input[1], (1 / scale).reshape(-1, *[1] * (rank - 1)) if rank == 1 or rows_first(node) else 1 / scale)
            for bias in filter(None, node.input[2:]):
                multiply(bias, 1 / scale)
        for name in group.added:
            multiply(name, 1 / scale)
        for name in group.readers:
            node = nodes[name]
            multiply(node.input[1], _by_input(node, tuple(tensors[node.input[1]].dims), scale))
    for name, each in factors.items():
        value = value_of(tensors[name]).astype(np.float64)
        for factor in each:
            value *= factor
        assign(tensors[name], value.astype(np.float32), folder_of(model))
    return copy


def _by_input(node: onnx.NodeProto, dims: tuple[int, ...], scale: np.ndarray) -> np.ndarray:
    """Scales of input channels in the shape in which they multiply a weight of `dims`."""
    if node.op_type != "Conv":
        return scale if rows_first(node) else scale[:, None]
    groups = len(scale) // dims[1]
    by_row = np.repeat(scale.reshape(groups, dims[1]), dims[0] // groups, axis=0)
    return by_row.reshape(*by_row.shape, *[1] * (len(dims) - 2))


def gains(model: onnx.ModelProto, group: Group) -> np.ndarray:
    """How much each channel of a group matters to those who read it: the norm of the weights that it meets, (channels,)."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    total = np.zeros(group.channels)
    for name in group.readers:
        node = nodes[name]
        weight = np.square(value_of(tensors[node.input[1]]).astype(np.float64))
        if node.op_type != "Conv":
            total += weight.sum(axis=0 if rows_first(node) else 1)
        else:
            groups = group.channels // weight.shape[1]
            total += weight.reshape(groups, -1, weight.shape[1], math.prod(weight.shape[2:])).sum(axis=(1, 3)).ravel()
    return np.sqrt(total)
