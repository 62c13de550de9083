"""What the report draws of fresh processes: how long each request took, and how a start's time divides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from pipeline.records import LatencyBand, Trial
from release.plots import VARIANTS

REQUESTS = 50
"""The first requests of each process; what follows is steady."""
QUANTILES = (0.1, 0.5, 0.9)


def bands(trials: Sequence[Trial]) -> tuple[LatencyBand, ...]:
    """One band a variant that was measured."""
    found = []
    for variant in VARIANTS:
        processes = [trial for trial in trials if trial.variant == variant]
        if not processes:
            continue
        length = min(REQUESTS, *(len(trial.requests_ms) for trial in processes))
        times = np.array([trial.requests_ms[:length] for trial in processes])
        low, median, high = (tuple(float(f"{value:.4g}") for value in np.quantile(times, quantile, axis=0)) for quantile in QUANTILES)
        phases = {name: statistics.median(trial.phases_ms[name] for trial in processes) for name in processes[0].phases_ms}
        found.append(LatencyBand(variant, len(processes), low, median, high, phases))
    return tuple(found)
