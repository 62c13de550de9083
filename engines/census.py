"""Census of executed precision: which ONNX node really ran in what, weighted by its multiply-accumulates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pipeline.records import AxisRange, Census, CensusLayer, TensorSpec

if TYPE_CHECKING:
    import onnx

INT8 = "INT8"
UNCLAIMED = "UNCLAIMED"
MOVING = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
NOT_QUANTIZED = "the model has no DequantizeLinear on both of its factors"
RUNTIME_CHOSE = "quantized in the model; the runtime runs it in float"
NO_LAYER = "no executed layer says that it was made from this node"


@dataclasses.dataclass(frozen=True)
class RuntimeLayer:
    """A layer as a runtime reports it. `origins` are the names of the model's nodes it says it was made from."""

    operator: str
    precision: str
    origins: tuple[str, ...]


def row_sizes(inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange]) -> dict[str, int]:
    """Sizes of one row: the batch axis (first of every input) is 1, every other named axis at its `opt`."""
    batch_axes = {spec.shape[0] for spec in inputs if spec.shape}
    return {name: 1 if name in batch_axes else axis.opt for name, axis in shapes.items()}


def take(model: onnx.ModelProto, sizes: Mapping[str, int], layers: Iterable[RuntimeLayer], conversions: Mapping[str, int] | None = None) -> Census:
    """Match the layers that multiply to the model's multiplying nodes; `int8_share` is INT8 over all multiply-accumulates.

    A layer claims a node whose name (or output's name) is among its origins. A layer that claims none so (a runtime names a MatMul with a
    fused bias after the Add) claims the nearest unclaimed multiplying node above its origins, if there is just one.
    A node is INT8 only when every layer that claims it is; a node that no layer claims counts as not INT8 and is listed as UNCLAIMED.
    """
    from pipeline.macs import macs_by_node, node_key

    nodes = {node_key(node, index): node for index, node in enumerate(_flat(model).graph.node)}
    macs = macs_by_node(model, sizes)
    named = {output: key for key, node in nodes.items() for output in node.output if output} | {key: key for key in nodes}
    claims: dict[str, list[RuntimeLayer]] = {key: [] for key in macs}
    second_try: list[tuple[RuntimeLayer, set[str]]] = []
    for layer in layers:
        owned = {key for origin in layer.origins if (key := _owner(origin, named)) is not None}
        for key in owned & macs.keys():
            claims[key].append(layer)
        if not owned & macs.keys():
            second_try.append((layer, owned))
    for layer, owned in second_try:
        open_keys = {key for key in macs if not claims[key]}
        if (key := _nearest_above(owned, open_keys, nodes, named)) is not None:
            claims[key].append(layer)
    quantized = {key for key in macs if all(_dequantized(tensor, nodes, named) for tensor in nodes[key].input[:2])}
    listed = tuple(_listed(key, nodes[key].op_type, count, claims[key], key in quantized) for key, count in macs.items())
    total = sum(macs.values())
    share = sum(layer.macs for layer in listed if layer.precision == INT8) / total if total else 0.0
    return Census(layers=listed, int8_share=share, conversions=dict(sorted((conversions or {}).items())))


def _flat(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph that `macs_by_node` counts: model-local functions inlined."""
    import onnx

    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _listed(key: str, operator: str, macs: int, claims: list[RuntimeLayer], quantized: bool) -> CensusLayer:
    if not claims:
        return CensusLayer(key, operator, UNCLAIMED, macs, NO_LAYER)
    slowest = next((layer for layer in claims if layer.precision != INT8), claims[0])
    why = "" if slowest.precision == INT8 else RUNTIME_CHOSE if quantized else NOT_QUANTIZED
    return CensusLayer(key, slowest.operator, slowest.precision, macs, why)


def _dequantized(tensor: str, nodes: Mapping[str, onnx.NodeProto], named: Mapping[str, str]) -> bool:
    """Whether a tensor comes from a DequantizeLinear, or from one by way of nodes that move values and change none."""
    while (node := nodes.get(named.get(tensor, ""))) is not None:
        if node.op_type == "DequantizeLinear":
            return True
        if node.op_type not in MOVING:
            return False
        tensor = node.input[0]
    return False


def _owner(origin: str, named: Mapping[str, str]) -> str | None:
    """The node that `origin` names, with or without a suffix that the runtime added after a slash (`conv1/WithoutBiases`)."""
    while origin not in named:
        origin, slash, _ = origin.rpartition("/")
        if not slash:
            return None
    return named[origin]


def _nearest_above(start: set[str], wanted: set[str], nodes: Mapping[str, onnx.NodeProto], named: Mapping[str, str]) -> str | None:
    """The one node of `wanted` that is fewest steps above `start`; None when there is none, or two are equally near."""
    seen, level = set(start), set(start)
    while level:
        level = {named[tensor] for key in level for tensor in nodes[key].input if tensor in named} - seen
        if found := level & wanted:
            return found.pop() if len(found) == 1 else None
        seen |= level
    return None
