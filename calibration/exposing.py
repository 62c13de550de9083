"""Looking into a graph while a runtime runs it: which tensors can be made outputs without changing how the rest is run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from calibration.graph import tensor_types
from calibration.runtime import run_session, session
from pipeline.macs import MULTIPLYING
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

Run = Callable[[Batch], Mapping[str, np.ndarray]]
Opener = Callable[["onnx.ModelProto"], AbstractContextManager[Run]]
"""Opens a model with its weights inside in some runtime, with the options that this runtime is judged by."""


@contextlib.contextmanager
def as_written(model: onnx.ModelProto) -> Iterator[Run]:
    """ONNX Runtime without any optimization: every operator computes what ONNX says it does."""
    runtime = session(model, optimize=False)
    yield lambda batch: run_session(runtime, batch)


@contextlib.contextmanager
def by_default(model: onnx.ModelProto) -> Iterator[Run]:
    """ONNX Runtime with the options that a session has when none are given: how a model is run by those who only have the file."""
    runtime = session(model)
    yield lambda batch: run_session(runtime, batch)


def expose(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy with the named float32 tensors as further outputs."""
    import onnx

    copy = type(model)()
    copy.CopyFrom(model)
    there = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names if name not in there)
    return copy


def seen(model: onnx.ModelProto, names: Sequence[str], batches: Iterable[Batch]) -> Iterator[dict[str, np.ndarray]]:
    """The named float32 tensors of the graph as it is written, batch by batch."""
    runtime = session(expose(model, names), optimize=False)
    for batch in batches:
        yield dict(zip(names, runtime.run(list(names), dict(batch)), strict=True))


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Float32 outputs of nodes that depend on the graph's inputs, in graph order."""
    import onnx

    types = tensor_types(model)
    moving = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if moving.intersection(node.input):
            moving.update(node.output)
            found += [name for name in node.output if types.get(name) == onnx.TensorProto.FLOAT]
    return found


def cuts(model: onnx.ModelProto) -> list[str]:
    """Float tensors that a runtime can hand out and still fuse what it fuses otherwise.

    What lies between a quantized operator's kernel and the QuantizeLinear behind it is left out: as an output it would keep the operator, its
    activation and the QuantizeLinear from becoming one kernel, and the fault that is looked for would go away.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    inside: set[str] = set()
    for node in model.graph.node:
        todo = [node.input[0]] if node.op_type == "QuantizeLinear" else []
        while todo:
            name = todo.pop()
            producer = producers.get(name)
            if name in inside or producer is None or producer.op_type == "DequantizeLinear":
                continue
            inside.add(name)
            if producer.op_type not in MULTIPLYING:
                todo += [source for source in producer.input if source]
    return [name for name in float_tensors(model) if name not in inside]


def run_rows(run: Run, rows: Batch, allowed: AxisRange) -> dict[str, np.ndarray]:
    """Outputs `{name: (N, ...)}` of all rows, in batches of a size in `allowed`; the last batch repeats its last row where it is too small."""
    total = len(next(iter(rows.values())))
    parts: dict[str, list[np.ndarray]] = {}
    for start in range(0, total, allowed.max):
        size = min(allowed.max, total - start)
        index = np.minimum(np.arange(start, start + max(size, allowed.min)), start + size - 1)
        for name, array in run({key: value[index] for key, value in rows.items()}).items():
            parts.setdefault(name, []).append(array[:size] if array.shape[:1] == (len(index),) else array)
    return {name: np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays) for name, arrays in parts.items()}
