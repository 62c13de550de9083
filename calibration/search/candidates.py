"""What may go back to float at once, and what that is expected to cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibration.float_layers import modules_of
from calibration.graph import tensor_shapes
from pipeline.errors import ModelError
from pipeline.macs import MULTIPLYING, macs_by_node
from pipeline.records import ExportedModel

if TYPE_CHECKING:
    import onnx


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Layers that go back to float together: one, two that follow each other, or a torch module's."""

    name: str
    layers: frozenset[str]


def candidates(source: onnx.ModelProto, layers: Sequence[str]) -> tuple[Candidate, ...]:
    """Every layer of `layers` alone, every two of which one reads the other, and every torch module of up to half of them.

    A layer alone in float still reads and gives 8 bits: only its weights gain. What lies between two layers is free of rounding when both are in
    float, and inside a module all of it is.
    """
    known = set(layers)
    found = {frozenset({name}): name for name in layers}
    for first, second in sorted(adjacent(source), key=lambda pair: [layers.index(name) if name in known else -1 for name in pair]):
        if first in known and second in known:
            found.setdefault(frozenset({first, second}), f"{first} and {second}")
    members: dict[str, set[str]] = {}
    for layer, module in modules_of(source).items():
        parts = module.split(".")
        for depth in range(1, len(parts)):
            if layer in known:
                members.setdefault(".".join(parts[:depth]), set()).add(layer)
    for module, inside in members.items():
        if 1 < len(inside) <= len(layers) / 2:
            found.setdefault(frozenset(inside), module)
    return tuple(Candidate(name, inside) for inside, name in found.items())


def adjacent(model: onnx.ModelProto) -> frozenset[tuple[str, str]]:
    """Pairs of multiplying nodes of which the second reads what the first gives, through operators that do not multiply."""
    writers: dict[str, frozenset[str]] = {}
    found: set[tuple[str, str]] = set()
    for node in model.graph.node:
        before = frozenset().union(*(writers.get(name, frozenset()) for name in node.input))
        multiplying = node.op_type in MULTIPLYING
        if multiplying:
            found.update((name, node.name) for name in before)
        for name in node.output:
            writers[name] = frozenset({node.name}) if multiplying else before
    return frozenset(found)


def costs(source: onnx.ModelProto, exported: ExportedModel, layers: Sequence[str]) -> dict[str, float]:
    """The share of the network's time that each layer is expected to take: by multiply-accumulates and sizes of what it reads, writes and weighs.

    What a network is given is float already and costs nothing to read; anything else is converted first. Four bytes a weight instead of one
    make a last layer dear that hardly multiplies: 8 % in ONNX Runtime on EfficientNet-Lite0. It only orders candidates; what a choice really
    costs is measured. Equal shares where shapes are unknown.
    """
    sizes = {name: axis.opt for name, axis in exported.shapes.items()} | {str(exported.inputs[0].shape[0]): 1}
    shapes = tensor_shapes(source)
    given = {value.name for value in source.graph.input}
    weights = {tensor.name: math.prod(tensor.dims) for tensor in source.graph.initializer}
    nodes = [node for node in source.graph.node if node.name in set(layers)]

    def size(tensor: str) -> int:
        return math.prod(sizes.get(axis, 1) if isinstance(axis, str) else axis for axis in shapes.get(tensor, ()))

    written = {node.name: size(node.output[0]) for node in nodes}
    read = {node.name: sum(size(name) for name in node.input if name and name not in weights and name not in given) for node in nodes}
    weighed = {node.name: sum(weights.get(name, 0) for name in node.input[1:2]) for node in nodes}
    try:
        counted = macs_by_node(source, sizes)
    except ModelError:
        return dict.fromkeys(layers, 1 / len(layers))
    parts = [({name: part[name] for name in layers}, max(sum(part[name] for name in layers), 1)) for part in (counted, read, written, weighed)]
    return {name: sum(part[name] / whole for part, whole in parts) / len(parts) for name in layers}
