"""Which hop on the way from torch to an engine lost the accuracy: every station runs the same rows, and each is held to the one before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibration.agree import LOOKED_AT, SUSPECT_DB, part, worst_rows
from calibration.exposing import Opener, cuts, float_tensors, run_rows
from calibration.parity import figures
from calibration.rounding.channels import Group
from pipeline.errors import ModelError
from pipeline.records import Attribution, Parity, Parting
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx


@dataclasses.dataclass(frozen=True)
class Station:
    """One form of the network that can be run: `torch`, `onnx`, `simplified`, `qdq`, an engine's target.

    `opened` opens `graph` (null: whatever the station is made of, such as a torch module) and gives a run. `rewrites`: the runtime fuses, so
    only `exposing.cuts` of the graph can be looked at; otherwise every tensor can. `groups`: tensors whose channels this station holds at
    other scales than the one before, with equal answers (`rounding.equalize`).
    """

    name: str
    opened: Opener
    graph: onnx.ModelProto | None
    rewrites: bool = False
    groups: tuple[Group, ...] = ()


def attribute(stations: Sequence[Station], rows: Batch, batch: AxisRange) -> Attribution:
    """Run `rows` `{input: (n, ...)}` through every station, in batches within `batch`, and blame the hop that added most error power.

    In the blamed hop, if both its ends have a graph, the tensors that both have are compared (`agree.part` says how the node is chosen). Raises
    ModelError for fewer than two stations and for outputs that differ in name or shape.
    """
    if len(stations) < 2:
        raise ModelError("There is no hop to look at", where="stations", expected="two or more", got=str(len(stations)))
    outputs = []
    for station in stations:
        with station.opened(station.graph) as run:  # a station without a graph ignores it
            outputs.append(run_rows(run, rows, batch))
    count = len(next(iter(rows.values())))
    hops: list[Parity] = []
    added: dict[str, float] = {}
    for before, after, reference, other in zip(stations, stations[1:], outputs, outputs[1:], strict=False):
        name = f"{before.name} -> {after.name}"
        hops += [_parity(name, count, output, reference[output], other) for output in reference]
        added[name] = max(_power(reference[output], other[output], outputs[0][output]) for output in reference)
    whole = tuple(_parity(f"{stations[0].name} -> {stations[-1].name}", count, output, array, outputs[-1]) for output, array in outputs[0].items())
    blamed = max(added, key=lambda name: added[name])
    if added[blamed] == 0:
        return Attribution(count, tuple(hops), whole, None, None)
    place = list(added).index(blamed)
    few = worst_rows(outputs[place], outputs[place + 1], rows, min(max(LOOKED_AT, batch.min), batch.max))
    loss = min(hop.sqnr_db for hop in hops if hop.hop == blamed and hop.sqnr_db is not None)
    return Attribution(count, tuple(hops), whole, blamed, _parting(stations[place], stations[place + 1], few, loss + SUSPECT_DB))


def _parting(before: Station, after: Station, rows: Batch, bound_db: float) -> Parting | None:
    if before.graph is None or after.graph is None:
        return None
    earlier, later = (
        cuts(graph) if rewrites else float_tensors(graph) for graph, rewrites in ((before.graph, before.rewrites), (after.graph, after.rewrites))
    )
    names = counterparts(after.graph, later, set(earlier))
    sharp = _quantizers(before.graph) == _quantizers(after.graph)

    def levelled(wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return unscaled(wanted, got, names, after.groups)

    return part(after.graph, names, rows, after.opened, before.opened, bound_db=bound_db, other=before.graph, sharp=sharp, levelled=levelled)


def unscaled(
    wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], names: Mapping[str, str], groups: Sequence[Group]
) -> dict[str, np.ndarray]:
    """`got` with the channels of each group brought back to the scales of `wanted`, by the one factor a channel that suits all its tensors best.

    `names` maps tensors to what groups call them. What is left is the difference that scales do not explain.
    """
    found = dict(got)
    for group in groups:
        inside = [name for name in got if names.get(name) in group.tensors]
        products, squares = np.zeros(group.channels), np.zeros(group.channels)
        for name in inside:
            axis = group.tensors[names[name]]
            reference, other = (np.moveaxis(side[name], axis, 0).reshape(group.channels, -1).astype(np.float64) for side in (wanted, got))
            weight = max(float(np.square(other).sum()), 1e-30)
            products += (reference * other).sum(axis=1) / weight
            squares += np.square(other).sum(axis=1) / weight
        factors = np.divide(products, squares, out=np.ones(group.channels), where=squares > 0)
        for name in inside:
            shape = [-1 if place == group.tensors[names[name]] else 1 for place in range(got[name].ndim)]
            found[name] = got[name] * factors.reshape(shape).astype(got[name].dtype)
    return found


def _quantizers(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in model.graph.node)


def counterparts(after: onnx.ModelProto, seen: Sequence[str], before: Collection[str]) -> dict[str, str]:
    """`{tensor of the later graph: tensor of the earlier one}` for those of `seen` that stand for one of `before`.

    A tensor that a QuantizeLinear reads is met behind the DequantizeLinear: quantizing may stand for a Clip or a Relu that is gone, so that the name
    in front of it holds something else. Where the earlier graph has the same Q/DQ, tensors stand for themselves.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in after.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    behind: dict[str, str] = {}
    for node in after.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in before:
            for dequantize in readers.get(node.output[0], []):
                behind[dequantize.output[0]] = node.input[0]
    hidden = set(behind.values())
    for name in seen:
        if name in before and (name in behind or name not in hidden):
            found[name] = name
        elif name in behind:
            found[name] = behind[name]
    return found


def _parity(hop: str, count: int, output: str, reference: np.ndarray, other: Mapping[str, np.ndarray]) -> Parity:
    if output not in other or other[output].shape != reference.shape:
        got = str(list(other[output].shape)) if output in other else f"outputs {', '.join(other)}"
        raise ModelError("A hop changes an output's shape", where=f"output {output}, {hop}", expected=str(list(reference.shape)), got=got)
    return figures(hop, {"rows": count}, output, reference, other[output])


def _power(reference: np.ndarray, other: np.ndarray, first: np.ndarray) -> float:
    """Power of the difference over that of the first station's output."""
    signal = float(np.square(first, dtype=np.float64).sum())
    noise = float(np.square(reference.astype(np.float64) - other.astype(np.float64)).sum())
    return noise / signal if signal > 0 else noise
