"""Where two models differ: by output, by class and by output channel. A good average hides a class that is lost or a channel at 0 dB."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.decibels import sqnr_db
from pipeline.errors import DataError
from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class OutputDrift(Record):
    """One output over all rows. `channel_sqnr_db`: by place along axis 1, empty for outputs of one axis; null where nothing differs."""

    sqnr_db: float | None
    max_absolute: float
    max_relative: float
    channel_sqnr_db: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class ClassDrift(Record):
    """The rows of one class: how many, which share each model gets right, on which share they agree, and the SQNR of the first output."""

    rows: int
    first_right: float
    second_right: float
    agreement: float
    sqnr_db: float | None


@dataclasses.dataclass(frozen=True)
class Top1(Record):
    """Right or wrong row by row: `lost` rows only the first model gets right, `gained` only the second; the interval is the two-sided 90 %."""

    first: float
    second: float
    lost: int
    gained: int
    drop: float
    interval_low: float
    interval_high: float


@dataclasses.dataclass(frozen=True)
class Breakdown(Record):
    """The second model held to the first. `agreement`: share of rows with the same largest score, null without classes."""

    rows: int
    outputs: dict[str, OutputDrift]
    agreement: float | None
    top1: Top1 | None
    classes: dict[str, ClassDrift]


def breakdown(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], labels: np.ndarray | None = None, class_names: Sequence[str] = ()
) -> Breakdown:
    """Compare outputs `{name: (N, ...)}`; the first one holds class scores where it is (N, C) and of floats, and `labels` (N,) are then its indices.

    Raises DataError for no rows, outputs that differ in name or shape, a number that is not finite (naming row and output) and a label that is no
    class.
    """
    if set(first) != set(second):
        raise DataError("The two models have other outputs", where="outputs", expected=", ".join(first), got=", ".join(second))
    rows = _checked(first, second)
    drifts = {name: _output(first[name], second[name]) for name in first}
    scores, others = (next(iter(side.values())) for side in (first, {name: second[name] for name in first}))
    if scores.ndim != 2 or scores.dtype.kind != "f" or scores.shape[1] < 2:
        if labels is not None:
            raise DataError(
                "Labels need class scores", where="first output", expected="(rows, classes) of floats", got=f"{scores.dtype} {scores.shape}"
            )
        return Breakdown(rows, drifts, None, None, {})
    same = scores.argmax(axis=1) == others.argmax(axis=1)
    if labels is None:
        return Breakdown(rows, drifts, float(same.mean()), None, {})
    _check_labels(labels, rows, scores.shape[1])
    right, still = (each.argmax(axis=1) == labels for each in (scores, others))
    classes = {}
    for label in np.unique(labels):
        of = labels == label
        name = class_names[label] if label < len(class_names) else str(label)
        classes[name] = ClassDrift(
            int(of.sum()), float(right[of].mean()), float(still[of].mean()), float(same[of].mean()), sqnr_db(scores[of], others[of])
        )
    from release import paired  # scipy takes 0.4 s, which `qwarm --help` need not wait for

    lost, gained = int((right & ~still).sum()), int((~right & still).sum())
    interval = paired.compare(lost, gained, rows, 0.95)
    top1 = Top1(float(right.mean()), float(still.mean()), lost, gained, (lost - gained) / rows, interval.low, interval.high)
    return Breakdown(rows, drifts, float(same.mean()), top1, classes)


def _checked(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> int:
    counts = {len(array) if array.ndim else 0 for array in first.values()}
    if len(counts) != 1 or not min(counts):
        got = ", ".join(f"{name} {array.shape}" for name, array in first.items())
        raise DataError("There is nothing to compare", where="outputs", expected="one row or more in each", got=got)
    for name, array in first.items():
        if array.shape != second[name].shape:
            expected, got = str(list(array.shape)), str(list(second[name].shape))
            raise DataError("An output has another shape", where=f"output {name}", expected=expected, got=got)
        for side, values in (("first", array), ("second", second[name])):
            if values.dtype.kind == "f":
                bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
                if bad.size:
                    where = f"row {bad[0]}" + (f" and {bad.size - 1} more" if bad.size > 1 else "") + f", output {name} of the {side} model"
                    raise DataError("An output is not finite", where=where, expected="finite numbers", got="NaN or infinity")
    return counts.pop()


def _check_labels(labels: np.ndarray, rows: int, classes: int) -> None:
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise DataError("Labels are no class indices", where="labels", expected=f"{rows} integers", got=f"{labels.dtype} {labels.shape}")
    beyond = np.flatnonzero((labels < 0) | (labels >= classes))
    if beyond.size:
        got = str(labels[beyond[0]])
        raise DataError("A label is no class of the model", where=f"row {beyond[0]}", expected=f"0 to {classes - 1}", got=got)


def _output(first: np.ndarray, second: np.ndarray) -> OutputDrift:
    wide, narrow = first.astype(np.float64), second.astype(np.float64)
    absolute, largest = float(np.abs(wide - narrow).max(initial=0)), float(np.abs(wide).max(initial=0))
    relative = absolute / largest if largest > 0 else float(absolute > 0)
    count = first.shape[1] if first.ndim > 1 else 0
    channels = tuple(sqnr_db(first[:, place], second[:, place]) for place in range(count))
    return OutputDrift(sqnr_db(first, second), absolute, relative, channels)
