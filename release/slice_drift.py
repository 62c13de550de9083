"""Drift in one part of the rows at a time, such as a class or a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.errors import DataError
from pipeline.records import SliceDrift
from release import metric as own
from release.known_metrics import F1, class_f1

Parts = Mapping[tuple[str, str], np.ndarray]
"""Which rows (N,) of bool each value of each slice has."""


def right_or_wrong(right: np.ndarray, still_right: np.ndarray, parts: Parts, same: np.ndarray | None) -> tuple[SliceDrift, ...]:
    """Of a metric that is right or wrong for each row, (N,) of bool in the reference and in the engine; `same`: rows with the same answer."""
    return tuple(
        SliceDrift(
            of=of,
            value=value,
            rows=int(part.sum()),
            reference_value=float(right[part].mean()),
            engine_value=float(still_right[part].mean()),
            lost=int((right & ~still_right & part).sum()),
            gained=int((~right & still_right & part).sum()),
            agreement=None if same is None else float(same[part].mean()),
        )
        for (of, value), part in parts.items()
    )


def scored(
    metric: own.Metric, name: str, reference: own.Outputs, engine: own.Outputs, labels: np.ndarray | None, parts: Parts, same: np.ndarray | None
) -> Iterator[SliceDrift]:
    """Of any other metric, asked for each part alone; a part of which it says nothing has its reason as `fault`.

    A class's F1 is that of all rows: its own rows alone do not know which others were taken for it.
    """
    corrected = 1 - (1 - own.SIDE) / max(len(parts), 1)
    f1s = _class_f1s(reference, engine, labels) if name == F1 and labels is not None and any(of == "class" for of, _ in parts) else ()
    for (of, value), part in parts.items():
        rows, some = int(part.sum()), None if labels is None else labels[part]
        agreement = None if same is None else float(same[part].mean())
        try:
            if f1s and some is not None and of == "class" and rows >= own.LEAST_ROWS:
                found: own.ByRow | own.Whole = f1s[int(some[0])]
            else:
                first, second = ({key: array[part] for key, array in outputs.items()} for outputs in (reference, engine))
                found = own.compare(metric, name, first, second, some, rows)
        except DataError as error:
            yield SliceDrift(of, value, rows, None, None, None, None, agreement, fault=f"{error.what}: {error.got}")
            continue
        bounds = found.interval(own.SIDE), found.interval(corrected)
        fault = "" if bounds[1] else f"{own.RESAMPLES} resamples bound none of {len(parts)} slices at once"
        yield SliceDrift(of, value, rows, found.reference, found.engine, None, None, agreement, *bounds, fault)


def _class_f1s(reference: own.Outputs, engine: own.Outputs, labels: np.ndarray) -> tuple[own.Whole, ...]:
    """Of each class, resampled over all rows; a class that a resample lacks counts as all right there."""
    scores = next(iter(reference.values()))
    answers, classes = [next(iter(outputs.values())).argmax(axis=1) for outputs in (reference, engine)], scores.shape[1]

    def pair(chosen: np.ndarray) -> np.ndarray:
        first, second = (np.nan_to_num(class_f1(side[chosen], labels[chosen], classes), nan=1.0) for side in answers)
        return np.stack([first, first - second])

    rows, counts = len(labels), np.bincount(labels, minlength=classes)
    whole, drawn, left = pair(np.arange(rows)), own.resampled(pair, rows), own.left_out(pair, rows)
    return tuple(own.Whole(float(whole[0, k]), float(whole[0, k] - whole[1, k]), drawn[..., k], left[..., k], int(counts[k])) for k in range(classes))
