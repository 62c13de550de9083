"""Warm-up plans: the ladder of sizes and threads, and the padding of a request to a size that was warmed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.digests import sha256_arrays
from pipeline.errors import ConfigError
from pipeline.padding import grow, named_sizes, paddable_axes
from pipeline.records import AxisRange, Engine, Situation, StepGain, TensorSpec, WarmupPlan, WarmupStep
from pipeline.tensors import Batch


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes plans for one engine and its warm-up arrays `rows` `{"image": (N, C, H, W)}`, made by the preprocessing of `preprocess_sha256`.

    `shapes` lists the sizes of named axes other than the batch (default: min, opt, max); `fit` brings rows there. `concurrency` are
    numbers of callers; the largest is the session's. Raises ConfigError for a size outside the engine's range, or for no batch, caller or row.
    """

    engine: Engine
    rows: Batch
    batches: Sequence[int]
    concurrency: Sequence[int]
    max_seconds: float
    preprocess_sha256: str
    shapes: Mapping[str, Sequence[int]] | None = None
    retries: int = 1
    max_rss_mb: float | None = None
    max_power_w: float | None = None
    max_celsius: float | None = None

    def __post_init__(self) -> None:
        allowed = self.engine.shapes[batch_axis(self.engine.inputs)]
        _refuse_outside("batches", self.batches, allowed.min, allowed.max)
        _refuse_outside("concurrency", self.concurrency, 1, None)
        if not min((len(array) for array in self.rows.values()), default=0):
            raise ConfigError("A warm-up plan needs rows", where="warm-up rows", expected="one row or more", got="none")

    def situations(self) -> list[Situation]:
        """Every batch size at every size of the other named axes with every number of callers, the largest first: the last is the typical request."""
        axis = batch_axis(self.engine.inputs)
        return [
            Situation({axis: batch, **others}, callers)
            for callers in sorted(set(self.concurrency), reverse=True)
            for batch in sorted(set(self.batches), reverse=True)
            for others in other_sizes(self.engine.inputs, self.engine.shapes, self.shapes)
        ]

    def ladder(self, iterations: int, found_by: str) -> WarmupPlan:
        """Every situation, `iterations` times."""
        return self.plan([(situation, iterations) for situation in self.situations()], found_by)

    def plan(self, steps: Sequence[tuple[Situation, int]], found_by: str, gains: Sequence[StepGain] = ()) -> WarmupPlan:
        """These situations in this order, each so many times. Steps walk through the rows in turn, so that all are used."""
        _refuse_outside("iterations", [iterations for _, iterations in steps] or [1], 1, None)
        axis, count = batch_axis(self.engine.inputs), min(len(array) for array in self.rows.values())
        made, start = [], 0
        for situation, iterations in steps:
            batch = situation.sizes[axis]
            chosen = tuple((start + offset) % count for offset in range(batch))
            made.append(WarmupStep(dict(situation.sizes), chosen, situation.callers, iterations))
            start = (start + batch) % count
        reached = [situation.sizes for situation in self.situations()]
        return WarmupPlan(
            target=self.engine.target,
            engine_sha256=self.engine.digest(),
            rows_sha256=sha256_arrays(self.rows),
            preprocess_sha256=self.preprocess_sha256,
            steps=tuple(made),
            ladder={name: tuple(sorted({sizes[name] for sizes in reached})) for name in reached[0]},
            concurrency=max(self.concurrency),
            max_seconds=float(self.max_seconds),
            found_by=found_by,
            retries=self.retries,
            max_rss_mb=self.max_rss_mb,
            max_power_w=self.max_power_w,
            max_celsius=self.max_celsius,
            gains=tuple(gains),
        )


def _refuse_outside(name: str, values: Sequence[int], low: int, high: int | None) -> None:
    if not values or min(values) < low or (high is not None and max(values) > high):
        expected = f"at least one, each {low} to {high}" if high is not None else f"at least one, each {low} or more"
        raise ConfigError("A warm-up plan cannot be made", where=f"params.yaml: warmup.{name}", expected=expected, got=str(list(values)))


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


def pad_to_plan(inputs: Batch, specs: tuple[TensorSpec, ...], ladder: Mapping[str, Sequence[int]]) -> tuple[Batch, dict[str, int]]:
    """Grow a request to the nearest warmed size on its batch axis and on every axis that its inputs' `pad` allows to grow.

    `ladder` is the plan's. Returns the inputs and the caller's own size of each named axis, for `pipeline.padding.cut`.
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
