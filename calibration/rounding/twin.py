"""The float graph and its Q/DQ graph side by side in one ONNX graph, so that a layer sees what each of them feeds it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibration.graph import tensor_types
from calibration.rounding.constants import Constants, constants_of
from calibration.rounding.layers import Layer, layers_of
from pipeline.weights import folder_of, place_of

if TYPE_CHECKING:
    import onnx

FLOAT, INT8 = "float/", "int8/"


@dataclasses.dataclass
class Twin:
    """One graph of both.

    Tensors of the float graph are called `float/NAME`, those of the Q/DQ graph `int8/NAME`; graph inputs keep their names and are shared. `nodes`
    stand in an order in which each layer comes as early as it can, in both graphs, before what the next one needs; `ends` is how many nodes
    stand up to and with each layer. Weights and biases of layers are float constants here: what their codes stand for.
    """

    nodes: list[onnx.NodeProto]
    constants: Constants
    inputs: tuple[str, ...]
    layers: tuple[Layer, ...]
    ends: tuple[int, ...]
    opset: list[onnx.OperatorSetIdProto]
    ir_version: int
    types: dict[str, int]
    folder: Path | None
    """The scratch folder, where the float graph is lean."""

    def live(self, end: int) -> tuple[str, ...]:
        """Tensors that the first `end` nodes give, or the graph takes, and from which the later ones can be computed.

        A dequantized activation is held as its codes, which take a quarter of the memory and are what a layer is fitted on.
        """
        codes = {node.output[0]: node.input[0] for node in self.nodes[:end] if node.op_type == "DequantizeLinear"}
        read = {codes.get(name, name) for node in self.nodes[end:] for name in node.input}
        given = [*self.inputs, *(name for node in self.nodes[:end] for name in node.output)]
        return tuple(name for name in given if name in read)

    @contextlib.contextmanager
    def part(self, given: Collection[str], wanted: Collection[str]) -> Iterator[onnx.ModelProto]:
        """The ONNX model that computes `wanted` from `given`, with the constants as they are now; its files are there until it has been opened."""
        import onnx

        known, needed, chosen = set(given), set(wanted) - set(given), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                chosen.append(node)
                needed.difference_update(node.output)
                needed.update(name for name in node.input if name and name not in known and name not in self.constants)
        read = {name for node in chosen for name in node.input}
        stored = [self.constants.tensor(name, self.folder) for name in sorted(read.intersection(self.constants))]
        graph = onnx.helper.make_graph(
            chosen[::-1],
            "part",
            [onnx.helper.make_tensor_value_info(name, self.types[name], None) for name in sorted(known & read)],
            [onnx.helper.make_tensor_value_info(name, self.types[name], None) for name in wanted],
            stored,
        )
        try:
            yield onnx.helper.make_model(graph, opset_imports=self.opset, ir_version=self.ir_version)
        finally:
            for tensor in stored:
                if self.constants.computed(tensor.name) and (place := place_of(tensor)) is not None:
                    Path(place[0]).unlink()


def build(source: onnx.ModelProto, quantized: onnx.ModelProto) -> Twin:
    """Both graphs in one. Node names must be unique, and equal in both for what both have."""

    layers = layers_of(source, quantized)
    types = {value.name: value.type.tensor_type.elem_type for value in source.graph.input}
    inputs = tuple(types)
    constants = Constants({}, {})
    every: list[onnx.NodeProto] = []
    for prefix, model in ((FLOAT, source), (INT8, quantized)):
        values, nodes = constants_of(model)
        constants = constants.joined(values.renamed(prefix))
        every += [_prefixed(node, prefix, inputs) for node in nodes]
        types |= {f"{prefix}{name}": kind for name, kind in tensor_types(model).items() if name not in inputs}
    nodes, ends = _interleaved(every, [layer.name for layer in layers])
    return Twin(
        nodes, constants, inputs, layers, ends, list(quantized.opset_import), max(source.ir_version, quantized.ir_version), types, folder_of(source)
    )


def has_subgraphs(model: onnx.ModelProto) -> bool:
    """Whether a node holds a graph of its own (If, Loop, Scan), which may read tensors that its inputs do not list."""
    return any(attribute.HasField("g") or attribute.graphs for node in model.graph.node for attribute in node.attribute)


def _prefixed(node: onnx.NodeProto, prefix: str, inputs: Collection[str]) -> onnx.NodeProto:
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = f"{prefix}{node.name}"
    copy.input[:] = [name if not name or name in inputs else f"{prefix}{name}" for name in node.input]
    copy.output[:] = [f"{prefix}{name}" if name else name for name in node.output]
    return copy


def _interleaved(every: list[Any], layers: Iterable[str]) -> tuple[list[Any], tuple[int, ...]]:
    """All nodes, each layer as early as it can stand, first the float one; and how many stand up to each."""
    producers = {name: node for node in every for name in node.output}
    by_name = {node.name: node for node in every}
    done: set[str] = set()
    ordered: list[Any] = []

    def emit(last: Any) -> None:
        stack = [(last, iter(last.input))]
        while stack:
            node, names = stack[-1]
            before = next((producers[name] for name in names if name in producers and producers[name].name not in done), None)
            if before is not None:
                stack.append((before, iter(before.input)))
                continue
            stack.pop()
            if node.name not in done:
                done.add(node.name)
                ordered.append(node)

    ends = []
    for name in layers:
        emit(by_name[f"{FLOAT}{name}"])
        emit(by_name[f"{INT8}{name}"])
        ends.append(len(ordered))
    for node in every:
        emit(node)
    return ordered, tuple(ends)
