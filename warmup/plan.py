"""Warm-up plans: the ladder of batch sizes and threads, and the padding of a request to a size that was warmed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.digests import sha256_arrays
from pipeline.errors import ConfigError
from pipeline.records import Engine, TensorSpec, WarmupPlan, WarmupStep
from pipeline.tensors import Batch


def ladder_plan(
    engine: Engine, rows: Batch, *, batches: Sequence[int], concurrency: Sequence[int], iterations: int, max_seconds: float, found_by: str
) -> WarmupPlan:
    """Every batch size with every thread count, the largest first, so that what is warmed last is what a first request most resembles.

    `rows` are the warm-up arrays `{"image": (N, C, H, W)}`; steps walk through them in turn, so that all are used. Named axes other than the batch
    take the size the rows have. `concurrency` are thread counts; the largest is the session's, and at least one step then holds
    every slot at once. Raises ConfigError for a batch outside the engine's range, or for no batch, thread, iteration or row.
    """
    axis = batch_axis(engine.inputs)
    allowed = engine.shapes[axis]
    count = min((len(array) for array in rows.values()), default=0)
    limits = (("batches", batches, allowed.min, allowed.max), ("concurrency", concurrency, 1, None), ("iterations", [iterations], 1, None))
    for name, values, low, high in limits:
        if not values or min(values) < low or (high is not None and max(values) > high):
            expected = f"at least one, each {low} to {high}" if high is not None else f"at least one, each {low} or more"
            raise ConfigError("A warm-up plan cannot be made", where=f"params.yaml: warmup.{name}", expected=expected, got=str(list(values)))
    if not count:
        raise ConfigError("A warm-up plan needs rows", where="warm-up rows", expected="one row or more", got="none")
    others = {
        name: size
        for spec in engine.inputs
        for name, size in zip(spec.shape, rows[spec.name].shape, strict=True)
        if isinstance(name, str) and name != axis
    }  # fmt: skip
    steps, start = [], 0
    for threads in sorted(set(concurrency), reverse=True):
        for batch in sorted(set(batches), reverse=True):
            chosen = tuple((start + offset) % count for offset in range(batch))
            steps.append(WarmupStep({axis: batch, **others}, chosen, threads, iterations))
            start = (start + batch) % count
    return WarmupPlan(
        target=engine.target,
        engine_sha256=engine.digest(),
        rows_sha256=sha256_arrays(rows),
        steps=tuple(steps),
        concurrency=max(concurrency),
        environment={},
        max_seconds=float(max_seconds),
        found_by=found_by,
    )


def batch_axis(specs: tuple[TensorSpec, ...]) -> str:
    """Name of the batch axis: the first of the first input's shape."""
    axis = specs[0].shape[0] if specs and specs[0].shape else None
    if not isinstance(axis, str):
        raise ConfigError("The model has no batch axis", where="model.inputs", expected="a named first axis", got=str(axis))
    return axis


def rungs(plan: WarmupPlan) -> tuple[int, ...]:
    """The batch sizes that the plan warms, ascending."""
    return tuple(sorted({len(step.rows) for step in plan.steps}))


def pad_to_rung(inputs: Batch, specs: tuple[TensorSpec, ...], rungs: Sequence[int]) -> tuple[Batch, int]:
    """Grow a request to the next warmed batch size by repeating its last row: a fresh shape would cost a fresh compile.

    Returns the inputs and how many rows of the outputs are the caller's: `{name: array[:rows]}`. Larger than every
    rung, empty, or with unequal first axes, the request is returned as it is (the session then checks it).
    """
    lengths = {inputs[spec.name].shape[0] for spec in specs if spec.name in inputs and inputs[spec.name].ndim}
    rows = min(lengths, default=0)
    rung = next((rung for rung in sorted(rungs) if rung >= rows), None)
    if len(lengths) != 1 or not rows or rung is None or rung == rows:
        return inputs, rows
    return {name: np.concatenate([array, np.repeat(array[-1:], rung - rows, axis=0)]) for name, array in inputs.items()}, rows
