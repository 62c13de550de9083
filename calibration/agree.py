"""Do two runtimes compute the same from one Q/DQ model? If not, where do they part?

A runtime rewrites a Q/DQ graph before it runs it, and may get it wrong: ONNX Runtime's `WeightBiasQuantization` gives the float
weights of a mixed-precision model one scale a tensor (EfficientNet-Lite0 with depthwise convolutions in float: 21.6 dB from FP32 as written,
9.1 dB so). A second runtime notices.

The bound. Two right runtimes round an activation that lies between two codes to either, and that grows from layer to layer: on
EfficientNet-Lite0 in the `cpu` scheme OpenVINO and ONNX Runtime are 24 (plain min/max) to 29 dB (fitted weights) from each other at the output,
whatever the distance from FP32, on digits 44, in a small transformer 60. The pass above leaves 10 dB. 20 dB, a hundredth of the output's
power, lies between. Inside, right runtimes part by less than 11 dB from one layer to the next once they are below 40 dB.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibration.exposing import Opener, cuts, expose, run_rows
from pipeline.decibels import sqnr_db
from pipeline.macs import node_key
from pipeline.records import Agreement, Parting
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

BOUND_DB = 20.0
EQUAL_DB = 150.0
"""Stands for equal tensors where decibels are subtracted."""
NOT_FINITE_DB = -999.0
MASKED = 1e30
"""From here on a float32 stands for infinity in front of a Softmax, and would drown all scores."""
SUSPECT_DB = 3.0
"""A tensor is suspect from this much above the bound: half of the difference that the bound allows."""
MATTERS_DB = 10.0
"""Error that is this far below the bound adds a tenth to it: falling to there from further up is no loss."""
SHARP_BELOW_DB, SHARP_DB = 40.0, 15.0
"""A fall by 15 dB in one layer to less than 40 dB is no rounding."""
PASSING = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Clip", "Relu", "LeakyRelu", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"}
)
"""What stands between the operator that is named and the tensor that was looked at."""
Levelled = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
LOOKED_AT = 2
"""Rows on which the parting is looked for: those that differ most."""


def agree(
    model: onnx.ModelProto, sha256: str, rows: Batch, batch: AxisRange, first: tuple[str, Opener], second: tuple[str, Opener], *,
    bound_db: float = BOUND_DB,
) -> Agreement:  # fmt: skip
    """Run `rows` `{input: (n, ...)}` through the Q/DQ `model` (weights inside) in two named runtimes and compare every output.

    Rows go in batches within `batch`. The second is the reference: the one that is trusted more, such as ONNX Runtime without optimizations
    (`exposing.as_written`). Where an output falls below `bound_db`, both are opened again with inner tensors as outputs.
    """
    results = []
    for _, opened in (first, second):
        with opened(model) as run:
            results.append(run_rows(run, rows, batch))
    got, wanted = results
    decibels = {value.name: decibel(wanted[value.name], got[value.name]) for value in model.graph.output}
    agrees = all(value is None or value >= bound_db for value in decibels.values())
    parted = None
    if not agrees:
        few = worst_rows(wanted, got, rows, min(max(LOOKED_AT, batch.min), batch.max))
        parted = part(model, {name: name for name in cuts(model)}, few, first[1], second[1], bound_db=bound_db)
    return Agreement(sha256, first[0], second[0], len(next(iter(rows.values()))), decibels, bound_db, agrees, parted)


def decibel(wanted: np.ndarray, got: np.ndarray) -> float | None:
    """SQNR in dB, null for equal arrays; -999 for other shapes and for numbers not finite (or a mask's) on one side only."""
    if wanted.shape != got.shape:
        return NOT_FINITE_DB
    if wanted.dtype.kind == "f":
        finite, same = (np.abs(side) < MASKED for side in (wanted, got))  # False for NaN
        if (finite != same).any():
            return NOT_FINITE_DB
        wanted, got = wanted[finite], got[finite]
    return sqnr_db(wanted, got)


def part(
    model: onnx.ModelProto, names: Mapping[str, str], rows: Batch, first: Opener, second: Opener, *, bound_db: float = BOUND_DB,
    other: onnx.ModelProto | None = None, sharp: bool = True, levelled: Levelled = lambda _, got: got,
) -> Parting | None:  # fmt: skip
    """Where two runs part: the first tensor that falls sharply against what it is made from, else the one near the bound that lost most.

    `first` opens `model`, `second` opens `other` (default: the same model); `names` maps tensors of `model`, in graph order, to their
    counterparts in the other. `rows` are one batch. `sharp=False` skips the first rule, where every layer is meant to lose something.
    `levelled(wanted, got)` undoes what the first graph does to tensors without changing any answer. All tensors are looked
    at in one run. Where that makes the outputs agree (a runtime does not do to a graph with more outputs what it does to the graph), they are
    looked at one by one, by bisection. Null where nothing near the bound can be seen so.
    """
    sides = Sides(model, other if other is not None else model, rows, first, second, levelled)
    outputs = {value.name: value.name for value in model.graph.output}
    seen = sides.profile({**names, **outputs})
    if min((seen[name] for name in outputs), default=EQUAL_DB) >= bound_db:
        return _bisect(sides, names, bound_db)
    sources = sources_of(model, list(seen))
    before = {name: min((seen[source] for source in sources[name]), default=EQUAL_DB) for name in seen}
    falls = [name for name in seen if sharp and seen[name] < SHARP_BELOW_DB and before[name] - seen[name] > SHARP_DB]
    suspects = [name for name in seen if seen[name] < bound_db + SUSPECT_DB]
    if not falls and not suspects:
        return None
    worst = falls[0] if falls else max(suspects, key=lambda name: min(before[name], bound_db + MATTERS_DB) - seen[name])  # the first of equal ones
    return parting(model, worst, seen[worst], before[worst])


@dataclasses.dataclass(frozen=True)
class Sides:
    """Two graphs and how each is opened."""

    model: onnx.ModelProto
    other: onnx.ModelProto
    rows: Batch
    first: Opener
    second: Opener
    levelled: Levelled

    def profile(self, names: Mapping[str, str]) -> dict[str, float]:
        """SQNR of each tensor of the first graph against its counterpart in the second, in dB, `EQUAL_DB` for equal ones."""
        with self.first(expose(self.model, list(names))) as run:
            got = run(self.rows)
        with self.second(expose(self.other, list(dict.fromkeys(names.values())))) as run:
            wanted = run(self.rows)
        pairs = {name: wanted[counterpart] for name, counterpart in names.items()}
        level = self.levelled(pairs, {name: got[name] for name in names})
        found = {name: decibel(pairs[name], level[name]) for name in names}
        return {name: EQUAL_DB if value is None else value for name, value in found.items()}


def _bisect(sides: Sides, names: Mapping[str, str], bound_db: float) -> Parting | None:
    """The first tensor below the bound when each is looked at alone, if errors once made stay."""
    ordered, low, before = list(names), 0, EQUAL_DB
    high, found = len(ordered), dict[str, float]()
    while low < high:
        middle = (low + high) // 2
        name = ordered[middle]
        value = sides.profile({name: names[name]})[name]
        if value < bound_db:
            high, found[name] = middle, value
        else:
            low, before = middle + 1, value
    if low == len(ordered) or ordered[low] not in found:
        return None
    return parting(sides.model, ordered[low], found[ordered[low]], before)


def sources_of(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, list[str]]:
    """For each named tensor the nearest named tensors upstream."""
    producers = {name: node for node in model.graph.node for name in node.output}
    wanted = set(names)
    found: dict[str, list[str]] = {}
    for name in names:
        near: dict[str, None] = {}
        todo, met = [name], {name}
        while todo:
            producer = producers.get(todo.pop())
            for source in producer.input if producer is not None else ():
                if source in wanted:
                    near[source] = None
                elif source not in met:
                    met.add(source)
                    todo.append(source)
        found[name] = list(near)
    return found


def parting(model: onnx.ModelProto, tensor: str, value: float, before: float) -> Parting:
    """Name the operator that computes `tensor`: behind a DequantizeLinear the one whose result it quantizes, past activations and reshapes."""
    index_of = {name: index for index, node in enumerate(model.graph.node) for name in node.output}
    index = index_of[tensor]
    while (node := model.graph.node[index]).op_type in PASSING and node.input[0] in index_of:
        index = index_of[node.input[0]]
    return Parting(node_key(node, index), node.op_type, tensor, value, None if before == EQUAL_DB else before)


def worst_rows(wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], rows: Batch, count: int) -> dict[str, np.ndarray]:
    """The rows whose outputs differ most, `count` of them."""
    total = len(next(iter(rows.values())))
    error = np.zeros(total)
    for name, array in wanted.items():
        if array.shape == got[name].shape and array.shape[:1] == (total,):
            difference = np.abs(array.astype(np.float64) - got[name].astype(np.float64)).reshape(total, -1)
            error += np.nan_to_num(difference, nan=np.inf).max(axis=1, initial=0) / max(float(np.nanmax(np.abs(array), initial=0)), 1e-30)
    chosen = np.argsort(-error, kind="stable")[:count]
    chosen = np.resize(chosen, count)
    return {name: array[chosen] for name, array in rows.items()}
