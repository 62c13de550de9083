"""Layers that stay in float: named by node or by torch module, and taken out of a Q/DQ graph again."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from calibration.graph import module_scope
from pipeline.errors import ConfigError
from pipeline.macs import MULTIPLYING

if TYPE_CHECKING:
    import onnx

NONE: Mapping[str, str] = MappingProxyType({})
"""`{node: reason}` of no layer."""
OPERATOR = re.compile(rf"\.?\b({'|'.join(MULTIPLYING)})(_\d+)?$")
"""What `graph.rename` appends to a torch module's path where the weight's name does not say the module."""
KEY = "quantize.float_layers"
SHOWN = 8


def modules_of(model: onnx.ModelProto) -> dict[str, str]:
    """The torch module of each multiplying node, by node name: `{"stem.conv": "stem.conv", "attention.MatMul_2": "attention"}`.

    From the exporter's metadata or TorchScript's node names where the file still has them, else from names that `graph.rename` gave. A node that
    tells no module stands for itself. Node names must be unique (`safe_names.name_nodes`).
    """
    nodes = [node for node in model.graph.node if node.op_type in MULTIPLYING]
    return {node.name: module_scope(node) or OPERATOR.sub("", node.name) or node.name for node in nodes}


def resolve(model: onnx.ModelProto, names: Sequence[str], key: str = KEY) -> dict[str, str]:
    """`{node: reason}` for every multiplying node that `names` mean: a node, a torch module, or all of a module that holds others.

    Raises ConfigError naming the nearest known names for one that is none of these. `key`: where the names were given.
    """
    modules = modules_of(model)
    found: dict[str, str] = {}
    for name in names:
        wanted = name.replace("_scale", ".scale") if name not in modules else name  # as `graph.rename` writes it
        meant = [node for node, module in modules.items() if node == wanted or f"{module}.".startswith(f"{wanted}.")]
        if not meant:
            raise _unknown(model, name, modules, key)
        found |= dict.fromkeys(meant, f"named in {key}")
    return found


def _unknown(model: onnx.ModelProto, name: str, modules: Mapping[str, str], key: str) -> ConfigError:
    known = dict.fromkeys([*modules, *(_outer(module, depth) for module in modules.values() for depth in range(module.count(".") + 1))])
    other = next((node.op_type for node in model.graph.node if node.name == name), None)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return ConfigError(
        "There is no such layer",
        where=key,
        expected=f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(list(known)[:SHOWN])}{more}",
        got=f"{name}, a {other} that follows the layers around it" if other else name,
        next=f"name a {', '.join(MULTIPLYING)} node, or a torch module that holds one",
    )


def _outer(module: str, depth: int) -> str:
    return ".".join(module.split(".")[: depth + 1])


def without_quantizers(model: onnx.ModelProto, source: onnx.ModelProto, nodes: Collection[str], *, activations: bool = True) -> onnx.ModelProto:
    """A copy of a Q/DQ graph in which `nodes` multiply the float weights and biases of `source`.

    With `activations` also on inputs that are not quantized for them, for graphs whose Q/DQ stand in front of operators only, such as those of
    the scheme `tensorrt`: nothing behind a node belongs to it.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    graph = copy.graph
    floats = {tensor.name: tensor for tensor in source.graph.initializer}
    originals = {node.name: node for node in source.graph.node}
    producers = {name: node for node in graph.node for name in node.output}
    added: dict[str, onnx.TensorProto] = {}
    behind = added_biases(source, nodes)
    for tensor in graph.initializer:
        if tensor.name in behind:
            tensor.CopyFrom(floats[tensor.name])
    for node in graph.node:
        if node.name not in nodes:
            continue
        for place, name in enumerate(originals[node.name].input):
            producer = producers.get(node.input[place])
            if name in floats:
                node.input[place] = f"{name}/float"
                added[f"{name}/float"] = floats[name]
            elif activations and producer is not None and producer.op_type == "DequantizeLinear":
                node.input[place] = producers[producer.input[0]].input[0]
    for name, tensor in added.items():
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = name
    _drop_unread(graph)
    return copy


def activations_only(model: onnx.ModelProto, source: onnx.ModelProto) -> onnx.ModelProto:
    """A Q/DQ graph with the float weights of `source`: only activations are rounded."""
    multiplying = {node.name for node in source.graph.node if node.op_type in MULTIPLYING}
    return without_quantizers(model, source, multiplying, activations=False)


def added_biases(source: onnx.ModelProto, nodes: Collection[str]) -> set[str]:
    """Constants that stand in an Add behind a MatMul of `nodes`: where fitting puts such a layer's bias."""
    products = {name for node in source.graph.node if node.name in nodes and node.op_type == "MatMul" for name in node.output}
    constants = {tensor.name for tensor in source.graph.initializer}
    return {name for node in source.graph.node if node.op_type == "Add" and products.intersection(node.input) for name in node.input} & constants


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop quantizers, then constants, that nothing reads any more."""
    ends = {value.name for value in graph.output}
    while True:
        read = {name for node in graph.node for name in node.input} | ends
        idle = [node for node in graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear"} and not read.intersection(node.output)]
        if not idle:
            break
        for node in idle:
            graph.node.remove(node)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
