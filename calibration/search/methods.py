"""Which range method a scheme is given: the one whose activations are nearest to float on the search rows."""

from __future__ import annotations

from collections.abc import Mapping

from calibration.float_layers import activations_only
from calibration.search.measure import Measure
from calibration.variants import Job, Rules, source_of
from pipeline.records import Ranges


def judged(rules: Rules, job: Job, by_method: Mapping[str, Ranges], float_layers: Mapping[str, str]) -> dict[str, float]:
    """Drift by method, of the graph with quantized activations and float weights; empty where there is nothing to choose.

    Weights are left in float because the error of rounding them to the nearest, which fitting takes away, hides what ranges do.
    """
    if len(by_method) == 1:
        return {}
    source = source_of(job)
    first = next(iter(by_method.values()))
    placed = rules.placed(source, job, first, float_layers)
    measure = Measure(job, {}, placed)
    return {
        method: measure.whole(activations_only(rules.rescaled(placed, source, job, ranges, float_layers), source))
        for method, ranges in by_method.items()
    }
