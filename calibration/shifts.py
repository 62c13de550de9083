"""How far the calibration rows are from the validation rows: in labels, and in what the model's inputs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.records import Role, Shift

Figures = Mapping[str, float]
"""Of one row: `{"image: mean": .., "image: standard deviation": ..}`, for each floating-point input."""


def figures(prepared: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Mean and standard deviation of each floating-point input of one preprocessed row."""
    found = {}
    for name, array in sorted(prepared.items()):
        if array.dtype.kind == "f" and array.size:
            wide = array.astype(np.float64)
            found[f"input {name}: mean"], found[f"input {name}: standard deviation"] = float(wide.mean()), float(wide.std())
    return found


def shifts(calibration: Role, validation: Role, calibration_figures: Sequence[Figures], validation_figures: Sequence[Figures]) -> tuple[Shift, ...]:
    """Total variation of the label histograms, and the two-sample Kolmogorov-Smirnov distance of each figure of the rows."""
    from scipy import stats

    found = []
    labels = sorted({*calibration.labels, *validation.labels})
    if len(labels) > 1:
        parts = [np.array([role.labels.get(label, 0) for label in labels]) / max(len(role.rows), 1) for role in (calibration, validation)]
        found.append(Shift("labels", "total variation", float(np.abs(parts[0] - parts[1]).sum() / 2), None))
    for name in sorted({name for figures in calibration_figures for name in figures}):
        ours, theirs = ([figures[name] for figures in side if name in figures] for side in (calibration_figures, validation_figures))
        if ours and theirs:
            result = stats.ks_2samp(ours, theirs, method="asymp")
            found.append(Shift(name, "Kolmogorov-Smirnov", float(result.statistic), float(result.pvalue)))
    return tuple(found)
