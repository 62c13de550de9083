"""How far an engine is from its float reference on the same labelled rows."""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.records import DriftReport
from release.paired import METHOD

METRICS = ("top1",)


def measure(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray, *, metric: str = "top1", validation_root: str) -> DriftReport:
    """Compare outputs (N, C) row by row; `labels` (N,) are class indices, `validation_root` names the rows.

    `agreement` is the share of rows with the same argmax (the first of equal ones). `sqnr_db` is 10 log10 of the
    reference's energy over the difference's, over all outputs together in float64; None where no output differs.

    Raises ConfigError for an unknown metric, DataError for no rows, shapes that do not fit, a label that is no class of
    the model, and an output that is not finite (naming the row).
    """
    if metric not in METRICS:
        raise ConfigError(f"Unknown metric {metric!r}", where="params.yaml: gates.metric", expected=f"one of {', '.join(METRICS)}", got=metric)
    reference, engine, labels = np.asarray(reference), np.asarray(engine), np.asarray(labels)
    _check_shapes(reference, engine, labels)
    _check_labels(labels, classes=reference.shape[1])
    for name, outputs in (("reference", reference), ("engine", engine)):
        _check_finite(outputs, name)

    expected, got = reference.argmax(axis=1), engine.argmax(axis=1)
    right, still_right = expected == labels, got == labels
    rows = len(labels)
    lost, gained = int((right & ~still_right).sum()), int((~right & still_right).sum())
    return DriftReport(
        metric=metric,
        validation_rows=rows,
        validation_root=validation_root,
        reference_value=int(right.sum()) / rows,
        engine_value=int(still_right.sum()) / rows,
        lost=lost,
        gained=gained,
        drop=(lost - gained) / rows,
        agreement=int((expected == got).sum()) / rows,
        sqnr_db=_sqnr_db(reference, engine),
        method=METHOD,
    )


def _check_shapes(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray) -> None:
    if len({array.shape[0] if array.ndim else 0 for array in (reference, engine, labels)}) != 1:
        raise DataError(
            "The outputs and labels to compare have different row counts",
            where="validation rows",
            expected="one row of each",
            got=f"reference {reference.shape}, engine {engine.shape}, labels {labels.shape}",
        )
    if reference.ndim != 2 or engine.shape != reference.shape or labels.ndim != 1:
        raise DataError(
            "The outputs to compare do not have one score a class",
            where="validation rows",
            expected="outputs (N, C) of one shape, labels (N,)",
            got=f"reference {reference.shape}, engine {engine.shape}, labels {labels.shape}",
        )
    if reference.size == 0:
        raise DataError(
            "There is nothing to compare", where="validation rows", expected="at least one row and one class", got=f"outputs {reference.shape}"
        )


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError("Labels are no class indices", where="validation rows", expected="integers", got=str(labels.dtype))
    beyond = np.flatnonzero((labels < 0) | (labels >= classes))
    if beyond.size:
        raise DataError(
            "A label is no class of the model",
            where=f"validation row {beyond[0]}" + (f" and {beyond.size - 1} more" if beyond.size > 1 else ""),
            expected=f"0 to {classes - 1}",
            got=str(labels[beyond[0]]),
            next="check data.labels and the label column against the model's classes",
        )


def _check_finite(outputs: np.ndarray, name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if bad.size:
        row = outputs[bad[0]]
        raise DataError(
            f"An output of the {name} is not finite",
            where=f"validation row {bad[0]}" + (f" and {bad.size - 1} more" if bad.size > 1 else ""),
            expected="finite scores",
            got=f"{row[~np.isfinite(row)][0]} for class {int(np.flatnonzero(~np.isfinite(row))[0])}",
            next="look for an overflow in the model, or for such a value in the row",
        )


def _sqnr_db(reference: np.ndarray, engine: np.ndarray) -> float | None:
    exact = reference.astype(np.float64)
    noise = float(np.square(exact - engine.astype(np.float64)).sum())
    if noise == 0:
        return None
    signal = float(np.square(exact).sum())
    if signal == 0:
        raise DataError(
            "Every output of the reference is zero, and the engine's are not",
            where="validation rows",
            expected="a reference that answers",
            got="zeros",
            next="check the checkpoint and the exported model",
        )
    return 10 * math.log10(signal / noise)
