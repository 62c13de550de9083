"""The ways to quantize one float model under a scheme: weights to the nearest code and fitted ones, with any layers left in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.float_layers import NONE
from calibration.onnx_model import read_lean
from calibration.rounding.check import NOT_FITTED
from calibration.rounding.equalize import equalized
from calibration.rounding.methods import Calibration
from calibration.rounding.reconstruct import Rounded, reconstruct
from calibration.rounding.replay import parts
from calibration.rounding.split import carried, split
from calibration.rounding.write import written
from calibration.safe_names import name_nodes
from calibration.scheme import Placement, bound
from pipeline.records import ExportedModel, Ranges
from pipeline.side_files import MAX_INSIDE
from pipeline.tensors import AxisRange, Batch
from pipeline.weights import Scratch

if TYPE_CHECKING:
    import onnx

Progress = Callable[[int, int, str], None]
NEAREST, FITTED = "nearest", "fitted"


def silent(_done: int, _total: int, _note: str) -> None:
    """The progress that nobody watches."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is quantized: a float model with its ranges, the rows `{input: (n, ...)}` that judge, and those that fit weights, if any."""

    float_model: Path
    exported: ExportedModel
    ranges: Ranges
    rows: Batch
    calibration: Calibration | None = None
    limit: int = MAX_INSIDE
    """Bytes of weights beyond which they go to a side file."""
    reference: Path | None = None
    """The float model that judges, where it is not the one that is quantized."""
    scratch: Scratch = dataclasses.field(default_factory=Scratch)
    """Where the weights of large graphs are."""

    @property
    def judge(self) -> Path:
        """The float model whose outputs are right."""
        return self.reference or self.float_model

    @property
    def batch(self) -> AxisRange:
        """Numbers of rows that the model takes at once."""
        return self.exported.shapes[str(self.exported.inputs[0].shape[0])]


@dataclasses.dataclass(frozen=True)
class Rules:
    """A scheme, `calibration/<scheme>_scheme.py`. Its `float_layers` are `{node: reason}`.

    `int32_bias`: whether biases are int32. `quantizer(ranges)`: tool, version and rules in words.
    `placed(source, job, ranges, float_layers)` gives the float graph `source` with Q/DQ, weights to the nearest code.
    `checked(source, model, job, ranges, rounded, float_layers)` says where they stand; raises QuantizeError where it is not what was asked for.
    `sketched(variant, job, float_layers)` gives the variant with further layers in float and the weights of all others as they are,
    unchecked, in a second or less.
    `rescaled(model, source, job, ranges, float_layers)` gives what `placed` would, `model` being what it gave for other ranges.
    """

    scheme: str
    int32_bias: bool
    placed: Callable[[onnx.ModelProto, Job, Ranges, Mapping[str, str]], onnx.ModelProto]
    checked: Callable[[onnx.ModelProto, onnx.ModelProto, Job, Ranges, Mapping[str, Rounded], Mapping[str, str]], Placement]
    sketched: Callable[[Variant, Job, Mapping[str, str]], onnx.ModelProto]
    rescaled: Callable[[onnx.ModelProto, onnx.ModelProto, Job, Ranges, Mapping[str, str]], onnx.ModelProto]
    quantizer: Callable[[Ranges], str]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to quantize a float model. `source` is the float graph whose weights it holds, `ranges` are that graph's own.

    `rounded`: the weights that were fitted, by node.
    """

    model: onnx.ModelProto
    placement: Placement
    source: onnx.ModelProto
    ranges: Ranges
    rounded: Mapping[str, Rounded] = dataclasses.field(default_factory=dict)


def variants(rules: Rules, job: Job, float_layers: Mapping[str, str] = NONE, progress: Progress = silent) -> dict[str, Variant]:
    """By name, the model with its weights to the nearest code and, where the job has rows to fit on, with fitted ones.

    Raises RangeError for ranges of another model, QuantizeError for what a scheme refuses.
    """
    source = source_of(job)
    progress(0, 3, "Q/DQ")
    found = {NEAREST: nearest(rules, job, source, job.ranges, float_layers)}
    if job.calibration is None or not job.calibration.methods.any:
        return found
    calibration = job.calibration.without_outliers(job.ranges)
    own, ranges = source, job.ranges
    if calibration.methods.splitting:
        own = split(own, ranges, (part for rows in calibration.batches() for part in parts(rows, job.batch))) or own
    if calibration.methods.equalization and (equal := equalized(own, job.exported, ranges, calibration, job.batch)) is not None:
        own, ranges = equal.model, equal.ranges
    start = found[NEAREST] if own is source else nearest(rules, job, own, ranges, float_layers)
    return {**found, FITTED: fitted(rules, job, start, float_layers, progress)}


def source_of(job: Job) -> onnx.ModelProto:
    """The float graph of a job, its nodes named; raises RangeError where file, export record and ranges are not of one model."""
    bound(job.float_model, job.exported, job.ranges)
    source = read_lean(job.float_model, job.scratch.path)
    name_nodes(source)
    return source


def nearest(rules: Rules, job: Job, source: onnx.ModelProto, ranges: Ranges, float_layers: Mapping[str, str]) -> Variant:
    """`source` with every weight to the nearest code."""
    model = rules.placed(source, job, ranges, float_layers)
    carried(source, model)
    return Variant(model, rules.checked(source, model, job, ranges, NOT_FITTED, float_layers), source, ranges)


def fitted(rules: Rules, job: Job, start: Variant, float_layers: Mapping[str, str], progress: Progress = silent) -> Variant:
    """`start` with weights fitted on the calibration rows of the job."""
    if job.calibration is None:
        return start
    calibration = job.calibration.without_outliers(job.ranges)
    rounded = reconstruct(start.source, start.model, calibration, job.batch, int32_bias=rules.int32_bias, progress=progress)
    model = written(start.source, start.model, rounded)
    placement = rules.checked(start.source, model, job, start.ranges, rounded, float_layers)
    return dataclasses.replace(start, model=model, placement=placement, rounded=rounded)
