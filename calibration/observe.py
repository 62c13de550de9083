"""Runs of the float model that hand out every tensor a scheme could quantize, a few rows at a time."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.graph import before_softmax, tensor_shapes, tensor_types
from calibration.onnx_model import read_lean
from calibration.runtime import session
from pipeline.errors import RangeError
from pipeline.records import ExportedModel
from pipeline.tensors import Batch
from pipeline.weights import Scratch, bare

if TYPE_CHECKING:
    import onnx

BUDGET_BYTES = 64 * 2**20
"""Activations that one run may hand out. A few rows of a vision model: larger runs are no faster, and the processor's cache still helps."""
FUSED = frozenset({"Clip", "Relu"})
"""What only one of these reads is not observed: runtimes compute both operators in one kernel and quantize what leaves it."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """One tensor in one run: `values` (n, size) float32 with each line's smallest and largest value (n,), all finite.

    `ids` name the calibration row behind each line; a tensor whose first axis is not the batch is one line for all rows of the run.
    """

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ids: tuple[str, ...]


class Observer:
    """An ONNX model whose observed tensors are outputs as well, in sessions of its own.

    Memory: `BUDGET_BYTES` of activations, or those of the smallest batch of one tensor if that is more. Where the smallest batch of
    all tensors is beyond it (a static batch), the tensors are spread over several sessions, which run one after the other.
    `only` these tensors are observed, or what is in their place (`fused`); None: every one.
    """

    def __init__(self, model: Path, exported: ExportedModel, only: Collection[str] | None = None) -> None:
        self._scratch = Scratch()
        self.graph = read_lean(model, self._scratch.path)
        self.fused = fused_tensors(self.graph)
        wanted = None if only is None else {self.fused.get(name, name) for name in only}
        found = (name for name in observed_tensors(self.graph) if name not in self.fused)
        self.tensors = tuple(name for name in found if wanted is None or name in wanted)
        self.before_softmax = before_softmax(self.graph)
        self.masked: set[str] = set()
        """Tensors that turned out to hold an attention mask's infinities: they have no range, and nothing may quantize them."""
        self.axes, self.axis = frozenset(exported.shapes), str(exported.inputs[0].shape[0])
        self.batch = exported.shapes[self.axis]
        self.first_axes = {name: shape[0] for name, shape in tensor_shapes(self.graph).items() if shape}
        self.rows_at_once = self.batch.min
        self.sessions: list[tuple[list[str], Any]] = []

    def run(self, batch: Batch, ids: Sequence[str], take: Callable[[str, Seen], None]) -> None:
        """Call `take(tensor, seen)` for every observed tensor, for a few rows of `batch` `{input: (n, ...)}` at a time.

        Repeats the last row below the smallest batch. Raises RangeError naming row and tensor for a value that is not finite, except in
        what only a Softmax sees: that is `masked` from then on.
        """
        rows = len(next(iter(batch.values())))
        if not self.sessions:
            self._prepare(_padded(batch, 0, 1, self.batch.min))
        for start in range(0, rows, self.rows_at_once):
            count = min(self.rows_at_once, rows - start)
            part, names = _padded(batch, start, count, self.batch.min), tuple(ids[start : start + count])
            for tensors, runtime in self.sessions:
                arrays = runtime.run(tensors, part)[::-1]
                for tensor in tensors:  # in graph order; popped, so that each array is freed once it is taken
                    self._hand_out(tensor, arrays.pop(), names, len(next(iter(part.values()))), take)

    def _prepare(self, smallest: Batch) -> None:
        """Choose the rows of a run, and the sessions that share the tensors, from the sizes that the smallest batch really has."""
        sizes = _sizes(self.graph, self.tensors, smallest)
        per_row = max(1, sum(sizes.values()) // self.batch.min)
        self.rows_at_once = min(max(BUDGET_BYTES // per_row, self.batch.min), self.batch.max)
        shares: list[list[str]] = [[]]
        used = 0
        for tensor in self.tensors:
            size = sizes[tensor] // self.batch.min * self.rows_at_once
            if shares[-1] and used + size > BUDGET_BYTES:
                shares.append([])
                used = 0
            shares[-1].append(tensor)
            used += size
        self.sessions = [(share, session(_cut(self.graph, share), graph_order=True, arena=len(shares) == 1)) for share in shares]

    def _hand_out(self, tensor: str, array: np.ndarray, ids: tuple[str, ...], padded: int, take: Callable[[str, Seen], None]) -> None:
        if tensor in self.masked or not array.size:
            return
        by_row = self._by_row(tensor, array, len(ids), padded)
        values = array[: len(ids)].reshape(len(ids), -1) if by_row else array.reshape(1, -1)
        low, high = values.min(axis=1), values.max(axis=1)  # either is NaN where any value is
        names = ids if by_row else (ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}",)
        bad = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
        if not len(bad):
            take(tensor, Seen(values, low, high, names))
        elif tensor in self.before_softmax:
            self.masked.add(tensor)
        else:
            raise not_finite(f"tensor {tensor}", names[bad[0]], values[bad[0]], "then at what gives this tensor (Exp, Div, Sqrt, Log)")

    def _by_row(self, tensor: str, array: np.ndarray, rows: int, padded: int) -> bool:
        """Whether the first axis is the batch: by its inferred name, else by its length where no padding could be mistaken for rows."""
        first = self.first_axes.get(tensor)
        if array.ndim == 0 or len(array) != padded:
            return False
        if isinstance(first, int):
            return first == self.batch.min == self.batch.max
        return first == self.axis or (first not in self.axes and rows == padded)


def not_finite(where: str, row: str, values: np.ndarray, advice: str) -> RangeError:
    """The refusal of a row with NaN or infinities."""
    bad = values[~np.isfinite(values)]
    return RangeError(
        "A calibration row gives values that are not finite",
        where=f"{where}, row {row}",
        expected="finite float32 values",
        got=f"{bad.size} of {values.size} are not, the first {bad.flat[0]}",
        next=f"look at this row in the source; {advice}",
    )


def _padded(batch: Batch, start: int, count: int, least: int) -> dict[str, np.ndarray]:
    index = np.minimum(np.arange(start, start + max(count, least)), start + count - 1)
    return {name: array[index] for name, array in batch.items()}


def observed_tensors(model: onnx.ModelProto) -> tuple[str, ...]:
    """Float32 graph inputs and node outputs that depend on the inputs, in graph order."""
    import onnx

    types = tensor_types(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    moving = [value.name for value in model.graph.input if value.name not in constants]
    known = set(moving)
    for node in model.graph.node:
        if known.intersection(_reads(node)):
            known.update(node.output)
            moving += [name for name in node.output if name]
    return tuple(name for name in moving if types.get(name) == onnx.TensorProto.FLOAT)


def fused_tensors(model: onnx.ModelProto) -> dict[str, str]:
    """For each tensor that only an operator of FUSED reads: what leaves the kernel in its place (the end of a chain of them)."""
    readers = defaultdict(list)
    for node in model.graph.node:
        for name in _reads(node):
            readers[name].append(node)
    ends = {value.name for value in model.graph.output}
    computed = {name for node in model.graph.node for name in node.output}
    found: dict[str, str] = {}
    for node in reversed(model.graph.node):
        name = node.input[0] if node.input else ""
        if node.op_type in FUSED and name in computed - ends and len(readers[name]) == 1:
            found[name] = found.get(node.output[0], node.output[0])
    return found


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node takes, also those that the bodies of an If, Loop or Scan take from outside."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            yield from (value.name for value in body.output)
            for inner in body.node:
                yield from _reads(inner)


def _cut(model: onnx.ModelProto, outputs: Iterable[str]) -> onnx.ModelProto:
    """A copy that gives `outputs` and holds only what they need."""
    import onnx

    copy = bare(model)
    graph, names = copy.graph, list(outputs)
    wanted, kept = set(names), []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(_reads(node))
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in wanted)
    del graph.output[:]
    graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return copy


def _sizes(model: onnx.ModelProto, tensors: Sequence[str], batch: Batch) -> Mapping[str, int]:
    """Bytes of each tensor for `batch`, by a run that hands out shapes alone."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = [f"qwarm/shape/{tensor}" for tensor in tensors]
    producers = [onnx.helper.make_node("Shape", [tensor], [name], name=name) for tensor, name in zip(tensors, names, strict=True)]
    copy.graph.node.extend(producers)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None) for name in names)
    shapes = session(copy, graph_order=True, arena=False).run(names, dict(batch))
    return {tensor: 4 * int(np.prod(shape, dtype=np.int64)) for tensor, shape in zip(tensors, shapes, strict=True)}
