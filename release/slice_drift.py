"""Drift in one part of the rows at a time, such as a class or a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.errors import DataError
from pipeline.records import SliceDrift
from release import metric as own

Parts = Mapping[tuple[str, str], np.ndarray]
"""Which rows (N,) of bool each value of each slice has."""
SIDE = 0.95


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
    """Of any other metric, asked for each part alone; a part of which it says nothing has its reason as `fault`."""
    corrected = 1 - (1 - SIDE) / max(len(parts), 1)
    for (of, value), part in parts.items():
        rows, some = int(part.sum()), None if labels is None else labels[part]
        agreement = None if same is None else float(same[part].mean())
        first, second = ({key: array[part] for key, array in outputs.items()} for outputs in (reference, engine))
        try:
            found = own.compare(metric, name, first, second, some, rows)
        except DataError as error:
            yield SliceDrift(of, value, rows, None, None, None, None, agreement, fault=f"{error.what}: {error.got}")
            continue
        bounds = found.interval(SIDE), found.interval(corrected)
        fault = "" if bounds[1] else f"{own.RESAMPLES} resamples bound none of {len(parts)} slices at once"
        yield SliceDrift(of, value, rows, found.reference, found.engine, None, None, agreement, *bounds, fault)
