"""Dead channels put to use: each becomes a second reading of a channel whose rounding hurts most, so that two errors average."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibration.exposing import seen
from calibration.rounding.channels import rows_first
from calibration.safe_names import name_nodes
from pipeline.records import Ranges
from pipeline.tensors import Batch
from pipeline.weights import Values, assign, folder_of

if TYPE_CHECKING:
    import onnx

PROPERTY = "qwarm.split"
"""Of a model's metadata: the splits that it was quantized with, so that whoever compares it with the export knows."""
DEAD = 0.25
"""A channel is dead whose largest value before its Relu stays this share of its own span below zero."""
ROOM = 1.02
"""Between the largest value seen and the end of the range, for a copy: rows that nobody has seen go a little farther."""
FACTOR = 0.93
"""From the scale of a copy to that of the next: not much coarser, but their rounding errors have nothing in common."""
MOST = 2.0
"""Largest scale of a copy: on rows that nobody has seen, a channel goes farther than `ROOM` the sooner the less it moved."""
Copies = Mapping[str, Mapping[int, tuple[int, float]]]
"""By the layer that writes them: `{dead channel: (channel that it repeats, at how many times its scale)}`."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Where every channel is alone: from the layer that `writes` them by `between`, nodes in order, to the one that `reads` and mixes them.

    `between` are Relu, Clip from zero and depthwise Conv, the first one a Relu or a Clip; `limit` is where that one cuts off.
    """

    writes: onnx.NodeProto
    between: tuple[onnx.NodeProto, ...]
    reads: onnx.NodeProto
    limit: float


def split(source: onnx.ModelProto, ranges: Ranges, batches: Iterable[Batch]) -> onnx.ModelProto | None:
    """`source` with its dead channels repeating others, the same function in float; None where no channel is dead.

    After Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting", ICML 2019, who add channels. A
    network trained with ReLU has some that no input wakes; each costs as much time as another. It takes the weights of the channel whose rounding
    error the next layers weigh most, at another scale, and the layer behind reads the mean of both, weighed by the squares of their scales (inverse
    variances). A Conv or Gemm may write or read; only what `Chain` lists may stand between. Costs a float pass over the calibration rows.
    """
    chains = chains_of(source)
    if not chains:
        return None
    lowest, highest = _extremes(source, chains, batches)
    values = _values(source)
    copies = {}
    for chain in chains:
        name = chain.writes.output[0]
        found = ranges.tensors.get(chain.between[0].output[0])
        limit = chain.limit if found is None else min(chain.limit, found.high, found.symmetric or found.high)
        if chosen := _chosen(chain, values, lowest[name], highest[name], limit):
            copies[chain.writes.name] = chosen
    return applied(source, copies) if copies else None


def chains_of(model: onnx.ModelProto) -> tuple[Chain, ...]:
    """Every chain whose weights and tensors nothing else reads; names of nodes must be unique."""
    values, uses = _values(model), Counter(name for node in model.graph.node for name in node.input)
    readers = {name: node for node in model.graph.node for name in node.input if uses[name] == 1}
    outputs = {value.name for value in model.graph.output}

    def own(node: onnx.NodeProto) -> bool:
        return all(name in values and uses[name] == 1 for name in node.input[1:] if name)

    def mixing(node: onnx.NodeProto) -> bool:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Gemm":
            plain = all(attributes[name].f == 1 for name in ("alpha", "beta") if name in attributes) and "transA" not in attributes
            return own(node) and plain and all(values[name].ndim == 1 for name in node.input[2:] if name)
        return node.op_type == "Conv" and own(node) and ("group" not in attributes or attributes["group"].i == 1)

    def depthwise(node: onnx.NodeProto) -> bool:
        group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        return node.op_type == "Conv" and group > 1 and own(node) and values[node.input[1]].shape[:2] == (group, 1)

    found = []
    for writes in model.graph.node:
        if not mixing(writes):
            continue
        between: list[onnx.NodeProto] = []
        node = None if writes.output[0] in outputs else readers.get(writes.output[0])
        while node is not None and (_cut(node, values) is not None or (between and depthwise(node))):
            between.append(node)
            node = None if node.output[0] in outputs else readers.get(node.output[0])
        if node is not None and between and mixing(node) and (limit := _cut(between[0], values)) is not None:
            found.append(Chain(writes, tuple(between), node, limit))
    return tuple(found)


def applied(model: onnx.ModelProto, copies: Copies) -> onnx.ModelProto:
    """`model` with the `copies` in its weights, and in its metadata as what `remembered` finds."""
    other = type(model)()
    other.CopyFrom(model)
    chains = [chain for chain in chains_of(other) if chain.writes.name in copies]
    touched = {name for chain in chains for node in (chain.writes, *chain.between, chain.reads) for name in node.input[1:]}
    stored = _values(other)
    values = {name: stored[name].copy() for name in touched & stored.keys()}
    for chain in chains:
        chosen = copies[chain.writes.name]
        first = next((node for node in (*chain.between, chain.reads) if node.op_type not in {"Relu", "Clip"}), chain.reads)
        shares = {channel: 1 + sum(factor**2 for other, factor in chosen.values() if other == channel) for channel, _ in chosen.values()}
        columns = _columns(chain.reads, values)
        if len(chain.reads.input) > 2 and chain.reads.input[2]:
            bias = values[chain.reads.input[2]]
            for slot in chosen:
                bias += columns[slot].reshape(len(bias), -1).sum(axis=1) * _constant(chain, values, slot)
        for slot, (channel, factor) in chosen.items():
            columns[slot] = columns[channel] * (factor**2 / shares[channel] / (factor if first is chain.reads else 1.0))
        for channel, share in shares.items():
            columns[channel] /= share
        for slot, (channel, factor) in chosen.items():
            for node in (chain.writes, *chain.between):
                scale = factor if node is chain.writes else 1 / factor if node is first else 1.0
                for place, name in enumerate(node.input[1:3] if node.op_type in {"Conv", "Gemm"} else ()):
                    rows = values[name] if place or rows_first(node) else values[name].T
                    rows[slot] = rows[channel] * (scale if not place or node is chain.writes else 1.0)
    for tensor in other.graph.initializer:
        if tensor.name in values:
            assign(tensor, values[tensor.name], folder_of(model))
    _note(other, json.dumps(copies, sort_keys=True))
    return other


def carried(source: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Let `model` remember the splits of the `source` that it was made from."""
    if (text := _noted(source)) is not None:
        _note(model, text)


def remembered(model: onnx.ModelProto, plain: onnx.ModelProto) -> onnx.ModelProto:
    """The float graph `plain`, whose nodes get names, with the splits that `model` was quantized with, so that their tensors can be compared."""
    if (text := _noted(model)) is None:
        return plain
    name_nodes(plain)
    copies = {layer: {int(slot): (channel, factor) for slot, (channel, factor) in found.items()} for layer, found in json.loads(text).items()}
    return applied(plain, copies)


def _noted(model: onnx.ModelProto) -> str | None:
    return next((entry.value for entry in model.metadata_props if entry.key == PROPERTY), None)


def _note(model: onnx.ModelProto, text: str) -> None:
    import onnx

    onnx.helper.set_model_props(model, {entry.key: entry.value for entry in model.metadata_props} | {PROPERTY: text})


def _chosen(chain: Chain, values: Mapping[str, np.ndarray], lowest: np.ndarray, highest: np.ndarray, limit: float) -> dict[int, tuple[int, float]]:
    """Which channel each dead one repeats: where it takes most error away. A channel read at scales s has 1 / sum(s^2) of its error."""
    columns = _columns(chain.reads, values)
    slots = [slot for slot in np.flatnonzero(highest < -DEAD * (highest - lowest)) if _foldable(chain, values, int(slot))]
    heard = columns.astype(np.float64)
    heard = np.square(heard, out=heard).reshape(len(columns), -1).sum(axis=1)
    error = heard.copy()
    for node in chain.between:
        if node.op_type == "Conv":
            error += heard * np.square(values[node.input[1]].astype(np.float64)).reshape(len(heard), -1).sum(axis=1)
    error[(highest <= 0) | (highest > limit)] = 0
    known = [[1.0] for _ in error]
    """Scales at which each channel is read."""
    chosen = {}
    for slot in map(int, slots):
        scales = np.array([_scale(limit / (ROOM * high), others) if high > 0 else 1.0 for high, others in zip(highest, known, strict=True)])
        before = np.array([sum(scale**2 for scale in others) for others in known])
        gain = error * (1 / before - 1 / (before + scales**2))
        channel = int(np.argmax(gain))
        if gain[channel] == 0:
            break
        chosen[slot] = channel, float(scales[channel])
        known[channel].append(chosen[slot][1])
    return chosen


def _scale(largest: float, others: Sequence[float]) -> float:
    """For one more copy: the largest that keeps in range and is not near one of the `others`."""
    scale = min(largest, MOST)
    while any(abs(math.log(scale / other)) < -math.log(FACTOR) / 2 for other in others):
        scale *= FACTOR
    return round(scale, 4)


def _foldable(chain: Chain, values: Mapping[str, np.ndarray], slot: int) -> bool:
    """Whether what a dead channel gives, a constant, can be taken into the bias of the layer that reads it."""
    if _constant(chain, values, slot) == 0:
        return True
    padded = any(attribute.name in {"pads", "auto_pad"} and (attribute.s or any(attribute.ints)) for attribute in chain.reads.attribute)
    return not padded and len(chain.reads.input) > 2 and bool(chain.reads.input[2])


def _constant(chain: Chain, values: Mapping[str, np.ndarray], slot: int) -> float:
    """What the last node between gives for a dead channel, whatever comes in."""
    value = 0.0
    for node in chain.between:
        if node.op_type == "Conv":
            value = float(values[node.input[2]][slot]) if len(node.input) > 2 and node.input[2] else 0.0
        else:
            value = max(value, 0.0)
            value = value if (limit := _cut(node, values)) is None else min(value, limit)
    return value


def _cut(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> float | None:
    """Where a Relu or a Clip from zero cuts off above; None for other nodes."""
    if node.op_type == "Relu":
        return math.inf
    bounds = [values.get(name) for name in node.input[1:]] if node.op_type == "Clip" else []
    if not bounds or any(bound is None or bound.size != 1 for bound in bounds) or float(bounds[0]) != 0:  # type: ignore[arg-type]
        return None
    return float(bounds[1]) if len(bounds) > 1 else math.inf  # type: ignore[arg-type]


def _columns(reads: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the layer multiplies each channel with, channels first: a view of its weight."""
    weight = values[reads.input[1]]
    return weight.swapaxes(0, 1) if rows_first(reads) else weight


def _values(model: onnx.ModelProto) -> Values:
    import onnx

    return Values(tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)


def _extremes(source: onnx.ModelProto, chains: Iterable[Chain], batches: Iterable[Batch]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Smallest and largest value of each channel that a chain's first layer writes, before it is cut off: (channels,)."""
    lowest: dict[str, np.ndarray] = {}
    highest: dict[str, np.ndarray] = {}
    for tensors in seen(source, [chain.writes.output[0] for chain in chains], batches):
        for name, value in tensors.items():
            axes = (0, *range(2, value.ndim))
            lowest[name] = np.minimum(lowest.get(name, np.inf), value.min(axis=axes))
            highest[name] = np.maximum(highest.get(name, -np.inf), value.max(axis=axes))
    return lowest, highest
