"""One pass over a batch that gives each float tensor's extremes, row by row, without holding the activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.graph import before_softmax, tensor_shapes
from calibration.runtime import session
from pipeline.errors import RangeError
from pipeline.records import ExportedModel
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import onnx

REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")
"""Two extremes, and a sum that is NaN or infinite exactly when a value is: runtimes may drop NaN in a minimum."""
AXES_AS_INPUT = 18
"""The opset from which the reductions take their axes as an input; before, as an attribute."""
BY_ROW, WHOLE, AXIS = "qwarm/by_row", "qwarm/whole", "qwarm/axis"


class Observer:
    """An ONNX model with three reductions behind every float32 tensor, in a session of its own."""

    def __init__(self, model: Path, exported: ExportedModel) -> None:
        import onnx

        graph = onnx.load(model)
        self.tensors = observed_tensors(graph)
        self.before_softmax = before_softmax(graph)
        self.masked: set[str] = set()
        """Tensors that turned out to hold an attention mask's infinities: they have no range, and nothing may quantize them."""
        self.batch = exported.shapes[str(exported.inputs[0].shape[0])]
        self.outputs = _augment(graph, self.tensors)
        self.session = session(graph.SerializeToString(), optimize=False, graph_order=True)

    def run(self, batch: Batch, ids: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """`{tensor: (low, high)}`, each (rows,), or (1,) for a tensor whose first axis is not the batch.

        Runs at most the declared batch size at once and repeats the last row below the smallest. Raises RangeError naming
        row and tensor for a value that is not finite, except in what only a Softmax sees: that is `masked` from then on.
        """
        rows = len(next(iter(batch.values())))
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self.tensors}
        for start in range(0, rows, self.batch.max):
            count = min(self.batch.max, rows - start)
            padded = np.minimum(np.arange(start, start + max(count, self.batch.min)), start + count - 1)
            values = self.session.run(self.outputs, {name: array[padded] for name, array in batch.items()})
            for index, name in enumerate(self.tensors):
                low, high, size = values[3 * index : 3 * index + 3]
                if name in self.before_softmax and not np.isfinite(size).all():
                    self.masked.add(name)
                    parts[name].append((np.zeros(1), np.zeros(1)))
                    continue
                _refuse_non_finite(name, low, high, size, ids[start : start + count], len(padded))
                by_row = len(low) == len(padded)
                parts[name].append((low[:count], high[:count]) if by_row else (low.min(keepdims=True), high.max(keepdims=True)))
        return {name: _join(pieces, rows) for name, pieces in parts.items() if name not in self.masked}


def _join(pieces: list[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
    return (low, high) if len(low) == rows else (low.min(keepdims=True), high.max(keepdims=True))


def _refuse_non_finite(name: str, low: np.ndarray, high: np.ndarray, size: np.ndarray, ids: Sequence[str], padded: int) -> None:
    bad = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & np.isfinite(size)))
    if not len(bad):
        return
    row = f"row {ids[min(int(bad[0]), len(ids) - 1)]}" if len(low) == padded else f"rows {ids[0]} to {ids[-1]}"
    raise RangeError(
        "A tensor is not finite on a calibration row",
        where=f"tensor {name}, {row}",
        expected="finite values whose sum float32 can hold",
        got=f"smallest {low[bad[0]]}, largest {high[bad[0]]}, sum of magnitudes {size[bad[0]]}",
        next="look at this row in the source, and at what precedes this tensor in the model (Exp, Div, Sqrt, Log)",
    )


def observed_tensors(model: onnx.ModelProto) -> tuple[str, ...]:
    """Float32 graph inputs and node outputs that depend on the inputs, in graph order."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    constants = {tensor.name for tensor in model.graph.initializer}
    moving = [value.name for value in model.graph.input if value.name not in constants]
    known = set(moving)
    for node in model.graph.node:
        if known.intersection(node.input):
            known.update(node.output)
            moving += [name for name in node.output if name]
    return tuple(name for name in moving if types.get(name) == onnx.TensorProto.FLOAT)


def _augment(model: onnx.ModelProto, tensors: Sequence[str]) -> list[str]:
    """Replace the outputs by each tensor's reductions over all axes but the first; returns their names, three a tensor.

    The reductions stand right behind what gives the tensor, so a runtime that follows the file's order can free it again.
    """
    import onnx

    graph = model.graph
    opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
    ranks: Mapping[str, int] = {name: len(shape) for name, shape in tensor_shapes(model).items()}
    for name, values in ((BY_ROW, [0, -1]), (WHOLE, [1, -1]), (AXIS, [1])):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, dtype=np.int64), name))

    def reductions(tensor: str) -> list[onnx.NodeProto]:
        flat = f"qwarm/flat/{tensor}"
        shape = BY_ROW if ranks.get(tensor, 0) >= 1 else WHOLE
        nodes = [onnx.helper.make_node("Reshape", [tensor, shape], [flat], name=flat)]
        for operator in REDUCTIONS:
            name = f"qwarm/{operator}/{tensor}"
            nodes.append(
                onnx.helper.make_node(operator, [flat], [name], name=name, keepdims=0, axes=[1])
                if opset < AXES_AS_INPUT
                else onnx.helper.make_node(operator, [flat, AXIS], [name], name=name, keepdims=0)
            )
        return nodes

    observed = set(tensors)
    ordered = [node for value in graph.input if value.name in observed for node in reductions(value.name)]
    for node in graph.node:
        ordered.append(node)
        ordered += [extra for name in node.output if name in observed for extra in reductions(name)]
    del graph.node[:]
    graph.node.extend(ordered)
    names = [f"qwarm/{operator}/{tensor}" for tensor in tensors for operator in REDUCTIONS]
    del graph.output[:]
    graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return names
