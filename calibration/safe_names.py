"""Names that no pattern can misread, for tools that take node names for regular expressions and tensor names for file syntax.

modelopt matches excluded nodes with `re.match`, so excluding `head` would exclude `head2.conv`; it strips `_scale` out of
tensor names, and splits its cache at ": ".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

HIDDEN = re.compile(r"(qn|qt)\d{7}")


@dataclasses.dataclass(frozen=True)
class Names:
    """Real to hidden names: `qn0000012` for a node, `qt0000034` for a tensor; of equal length, so none is another's prefix."""

    nodes: Mapping[str, str]
    tensors: Mapping[str, str]


def name_nodes(model: onnx.ModelProto) -> None:
    """Give each node without a name, or with one that another node has, `<operator>_<index>` in place."""
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
        seen.add(node.name)


def hide(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Names]:
    """A copy of `model` with every node and tensor renamed, and the names to give them back. Node names must be unique (`name_nodes`)."""
    copy = type(model)()
    copy.CopyFrom(model)
    graph = copy.graph
    del graph.value_info[:]
    found = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    found += [name for node in graph.node for name in (*node.input, *node.output)]
    tensors = {name: f"qt{index:07d}" for index, name in enumerate(dict.fromkeys(filter(None, found)))}
    nodes = {node.name: f"qn{index:07d}" for index, node in enumerate(graph.node)}
    for node in graph.node:
        node.name = nodes[node.name]
        node.input[:] = [tensors.get(name, "") for name in node.input]
        node.output[:] = [tensors.get(name, "") for name in node.output]
    for holder in (*graph.input, *graph.output, *graph.initializer):
        holder.name = tensors[holder.name]
    return copy, Names(nodes, tensors)


def restore(model: onnx.ModelProto, names: Names) -> onnx.ModelProto:
    """Give real names back in place, also inside names that a tool made out of hidden ones (`qt0000034_scale`); returns `model`."""
    real = {hidden: name for mapping in (names.nodes, names.tensors) for name, hidden in mapping.items()}

    def reveal(name: str) -> str:
        return HIDDEN.sub(lambda match: real[match.group()], name)

    graph = model.graph
    del graph.value_info[:]
    for node in graph.node:
        node.name = reveal(node.name)
        node.input[:] = [reveal(name) for name in node.input]
        node.output[:] = [reveal(name) for name in node.output]
    for holder in (*graph.input, *graph.output, *graph.initializer):
        holder.name = reveal(holder.name)
    return model
