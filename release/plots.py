"""What `dvc plots show` draws: each request's time by its number, cold and warm and in float."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence

from pipeline.records import Trial

VARIANTS = ("cold", "warm", "float")


def latency_csv(trials: Sequence[Trial]) -> str:
    """Columns `request` (1 is the first), `cold_ms`, `warm_ms`, `float_ms`: medians over the fresh processes of a variant.

    The header alone where nothing was measured; as many rows as the shortest process has requests.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["request", *(f"{variant}_ms" for variant in VARIANTS)])
    samples = [[trial.requests_ms for trial in trials if trial.variant == variant] for variant in VARIANTS]
    length = min((len(requests) for processes in samples for requests in processes), default=0)
    for index in range(length if all(samples) else 0):
        writer.writerow([index + 1, *(f"{statistics.median(requests[index] for requests in processes):.6f}" for processes in samples)])
    return text.getvalue()
