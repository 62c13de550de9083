"""Warm-up plans: the ladder of sizes and threads, and the padding of a request to a size that was warmed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.digests import sha256_arrays
from pipeline.errors import ConfigError
from pipeline.padding import grow, named_sizes, paddable_axes
from pipeline.records import AxisRange, Engine, TensorSpec, WarmupPlan, WarmupStep
from pipeline.tensors import Batch


def ladder_plan(
    engine: Engine, rows: Batch, *, batches: Sequence[int], concurrency: Sequence[int], iterations: int, max_seconds: float, found_by: str,
    preprocess_sha256: str, shapes: Mapping[str, Sequence[int]] | None = None, retries: int = 1, max_rss_mb: float | None = None,
) -> WarmupPlan:  # fmt: skip
    """Every batch size at every size of the other named axes with every thread count, the largest first, so that what is warmed last is what
    a first request most resembles.

    `rows` are the warm-up arrays `{"image": (N, C, H, W)}`, made by the preprocessing of `preprocess_sha256`; steps walk through them in
    turn, so that all are used. `shapes` lists the sizes of named axes other than the batch (default: min, opt, max); `rows_at` brings
    rows there. `concurrency` are thread counts; the largest is the session's, and at least one step then holds every slot at once. Raises
    ConfigError for a size outside the engine's range, or for
    no batch, thread, iteration or row.
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
    steps, start = [], 0
    for threads in sorted(set(concurrency), reverse=True):
        for batch in sorted(set(batches), reverse=True):
            for others in other_sizes(engine.inputs, engine.shapes, shapes):
                chosen = tuple((start + offset) % count for offset in range(batch))
                steps.append(WarmupStep({axis: batch, **others}, chosen, threads, iterations))
                start = (start + batch) % count
    return WarmupPlan(
        target=engine.target,
        engine_sha256=engine.digest(),
        rows_sha256=sha256_arrays(rows),
        preprocess_sha256=preprocess_sha256,
        steps=tuple(steps),
        concurrency=max(concurrency),
        environment={},
        max_seconds=float(max_seconds),
        found_by=found_by,
        retries=retries,
        max_rss_mb=max_rss_mb,
    )


def other_sizes(
    specs: Sequence[TensorSpec], ranges: Mapping[str, AxisRange], shapes: Mapping[str, Sequence[int]] | None = None
) -> list[dict[str, int]]:
    """Every combination of sizes of the named axes other than the batch that is warmed: the largest first, the typical one (`opt`) last.

    `[{}]` for a model without such axes. Raises ConfigError for a size outside its range.
    """
    axes = sorted({axis for spec in specs for axis in spec.shape[1:] if isinstance(axis, str)})
    ladders: dict[str, list[int]] = {}
    for axis in axes:
        allowed = ranges[axis]
        ladders[axis] = sorted(set((shapes or {}).get(axis, ())) or {allowed.min, allowed.opt, allowed.max})
        if not allowed.min <= ladders[axis][0] <= ladders[axis][-1] <= allowed.max:
            expected = f"each {allowed.min} to {allowed.max}"
            raise ConfigError("A warm-up plan cannot be made", where=f"params.yaml: warmup.shapes.{axis}", expected=expected, got=str(ladders[axis]))
    typical = {axis: next((size for size in ladders[axis] if size >= ranges[axis].opt), ladders[axis][-1]) for axis in axes}
    found = [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*(ladders[axis] for axis in axes))]
    return sorted(found, key=lambda sizes: (sizes == typical, -math.prod(sizes.values())))


def expected_name(output: str, sizes: Mapping[str, int]) -> str:
    """Under which name `output` is recorded at these `sizes` of the axes other than the batch: `logits@sequence=16`, or `logits` without any."""
    return output + ("@" + ",".join(f"{axis}={size}" for axis, size in sorted(sizes.items())) if sizes else "")


def batch_axis(specs: tuple[TensorSpec, ...]) -> str:
    """Name of the batch axis: the first of the first input's shape."""
    axis = specs[0].shape[0] if specs and specs[0].shape else None
    if not isinstance(axis, str):
        raise ConfigError("The model has no batch axis", where="model.inputs", expected="a named first axis", got=str(axis))
    return axis


def rungs(plan: WarmupPlan) -> tuple[int, ...]:
    """The batch sizes that the plan warms, ascending."""
    return tuple(sorted({len(step.rows) for step in plan.steps}))


def axis_rungs(plan: WarmupPlan) -> dict[str, tuple[int, ...]]:
    """The sizes of every named axis, the batch included, that the plan warms, ascending. It warms all their combinations."""
    axes = plan.steps[0].sizes
    return {axis: tuple(sorted({step.sizes[axis] for step in plan.steps})) for axis in axes}


def pad_to_plan(inputs: Batch, specs: tuple[TensorSpec, ...], ladder: Mapping[str, Sequence[int]]) -> tuple[Batch, dict[str, int]]:
    """Grow a request to the nearest warmed size on its batch axis and on every axis that its inputs' `pad` allows to grow.

    `ladder` is `axis_rungs` of the plan. Returns the inputs and the caller's own size of each named axis, for `pipeline.padding.cut`.
    Beyond every rung an axis keeps its size, and so does one without `pad`: nothing else may change an answer. Inputs must have been checked.
    """
    sizes = named_sizes(inputs, specs)
    wanted = {axis: next((rung for rung in ladder.get(axis, ()) if rung >= sizes[axis]), sizes[axis]) for axis in paddable_axes(specs)}
    padded, _ = pad_to_rung(grow(inputs, specs, wanted), specs, ladder[batch_axis(specs)])
    return padded, sizes


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
