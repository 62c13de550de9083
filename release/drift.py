"""How far an engine is from its float reference on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.records import DriftReport
from pipeline.release_config import TOP1
from release import drift_details as details
from release import metric as own
from release import slice_drift
from release.paired import METHOD


def measure(
    reference: Mapping[str, np.ndarray],
    engine: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    *,
    metric: str = TOP1,
    function: own.Metric | None = None,
    classes: bool = True,
    validation_root: str,
    class_names: Sequence[str] = (),
    slices: Mapping[str, Sequence[str]] | None = None,
) -> DriftReport:
    """Compare outputs `{name: (N, ...)}` row by row; `validation_root` names the rows.

    With `classes` the first output holds scores (N, C) and `labels` (N,) are class indices; `agreement` is then the share of rows with the
    same argmax (the first of equal ones). `metric` is top1, or the name of `function`, a metric of the user's own. `sqnr_db` is
    10 log10 of the reference's energy over the difference's, output by output in float64; None where an output does not differ.
    `slices`: for each name the value of every row, or nothing for "class", whose values are the labels by `class_names`.

    Raises ConfigError for an unknown metric, DataError for fewer than two rows, labels that are all of one class, shapes that do not fit,
    a label that is no class of the model, an output that is not finite (naming the row), and a metric that fails or gives no number.
    """
    if function is None and (metric != TOP1 or not classes):
        expected = f"{TOP1} for a model with classes, or a function"
        raise ConfigError(f"Unknown metric {metric!r}", where="params.yaml: gates.metric", expected=expected, got=metric)
    reference = {name: np.asarray(array) for name, array in reference.items()}
    engine = {name: np.asarray(array) for name, array in engine.items()}
    first = next(iter(reference))
    rows = len(reference[first])
    _check_pairs(reference, engine, labels, rows)
    if classes and labels is not None:
        _check_shapes(reference[first], engine[first], labels)
        _check_labels(labels, classes=reference[first].shape[1])
    for side, outputs in (("reference", reference), ("engine", engine)):
        for name, array in outputs.items():
            _check_finite(array, side, name)
    decibels = {name: details.sqnr_db(reference[name], engine[name], name) for name in reference}
    scores = classes and reference[first].ndim == 2
    chosen, rechosen = (outputs[first].argmax(axis=1) if classes else np.zeros(rows) for outputs in (reference, engine))
    shared: dict[str, Any] = {
        "metric": metric,
        "validation_rows": rows,
        "validation_root": validation_root,
        "agreement": int((chosen == rechosen).sum()) / rows if classes else None,
        "sqnr_db": min((value for value in decibels.values() if value is not None), default=None),
        "sqnr_db_by_output": decibels,
        "kl_divergence": details.kl(reference[first], engine[first]) if scores else None,
        "channel_sqnr_db": details.by_channel(reference[first], engine[first], first),
        "worst": details.worst(reference[first], engine[first], labels, class_names if scores else None),
    }
    same = chosen == rechosen if classes else None
    named = details.parts(slices or {}, labels if classes else None, class_names, rows)
    if function is None:
        if labels is None:
            raise DataError("There are no labels to be right about", where="validation rows", expected="class indices (N,)", got="no label column")
        return _right_or_wrong(np.equal(chosen, labels), np.equal(rechosen, labels), shared, named, same)
    scored = own.compare(function, metric, reference, engine, labels, rows)
    if scored.right is not None:
        return _right_or_wrong(*scored.right, shared, named, same)
    return DriftReport(
        **shared,
        reference_value=scored.reference,
        engine_value=scored.engine,
        lost=None,
        gained=None,
        drop=scored.reference - scored.engine,
        interval=scored.interval(own.SIDE),
        reference_interval=scored.reference_interval(own.SIDE),
        method=scored.method,
        slices=tuple(slice_drift.scored(function, metric, reference, engine, labels, named, same)),
    )


def _right_or_wrong(
    right: np.ndarray, still_right: np.ndarray, shared: dict[str, Any], parts: slice_drift.Parts, same: np.ndarray | None
) -> DriftReport:
    """The report of a metric that is right or wrong for each row; the gate computes the exact interval from the counts."""
    rows = len(right)
    lost, gained = int((right & ~still_right).sum()), int((~right & still_right).sum())
    return DriftReport(
        **shared,
        reference_value=int(right.sum()) / rows,
        engine_value=int(still_right.sum()) / rows,
        lost=lost,
        gained=gained,
        drop=(lost - gained) / rows,
        interval=None,
        reference_interval=None,
        method=METHOD,
        slices=slice_drift.right_or_wrong(right, still_right, parts, same),
    )


def _check_pairs(reference: Mapping[str, np.ndarray], engine: Mapping[str, np.ndarray], labels: np.ndarray | None, rows: int) -> None:
    if set(reference) != set(engine):
        raise DataError("The outputs to compare differ in name", where="validation rows", expected=", ".join(reference), got=", ".join(engine))
    for name, array in reference.items():
        counts = {array.shape[0] if array.ndim else 0, engine[name].shape[0] if engine[name].ndim else 0, rows}
        if labels is not None:
            counts.add(labels.shape[0] if labels.ndim else 0)
        if len(counts) != 1:
            raise DataError(
                "The outputs and labels to compare have different row counts",
                where="validation rows",
                expected="one row of each",
                got=f"output {name}: reference {array.shape}, engine {engine[name].shape}, labels {None if labels is None else labels.shape}",
            )
        if array.shape != engine[name].shape:
            raise DataError(
                "The outputs to compare do not have one shape", where=f"output {name}", expected=str(array.shape), got=str(engine[name].shape)
            )
    if rows == 0:
        raise DataError("There is nothing to compare", where="validation rows", expected="two rows or more", got="none")
    if rows == 1:
        raise DataError("One row judges nothing", where="validation rows", expected="two rows or more", got="1", next="enlarge data.roles.validation")


def _check_shapes(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray) -> None:
    if reference.ndim != 2 or reference.shape[1] == 0 or labels.ndim != 1:
        raise DataError(
            "The outputs to compare do not have one score a class",
            where="validation rows",
            expected="first output (N, C), labels (N,)",
            got=f"reference {reference.shape}, engine {engine.shape}, labels {labels.shape}",
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
    if classes > 1 and len(present := np.unique(labels)) == 1:
        raise DataError(
            "The validation rows are all of one class: a model that always gives it would be right",
            where="validation rows",
            expected=f"two of the {classes} classes or more",
            got=f"class {present[0]} alone",
            next="enlarge data.roles.validation, or draw it from rows of every class",
        )


def _check_finite(outputs: np.ndarray, side: str, name: str) -> None:
    if outputs.dtype.kind not in "fc":
        return
    flat = outputs.reshape(len(outputs), -1)
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if bad.size:
        row = flat[bad[0]]
        raise DataError(
            f"An output of the {side} is not finite",
            where=f"validation row {bad[0]}" + (f" and {bad.size - 1} more" if bad.size > 1 else "") + f", output {name}",
            expected="finite numbers",
            got=f"{row[~np.isfinite(row)][0]} at place {int(np.flatnonzero(~np.isfinite(row))[0])}",
            next="look for an overflow in the model, or for such a value in the row",
        )
