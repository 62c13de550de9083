"""Gates on what a host must give: seconds until ready, memory, bytes of the engine. Judged where params.yaml has a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.records import Check, Validation, Verdict
from pipeline.verdicts import judge
from warmup import latency

if TYPE_CHECKING:
    from pipeline.config import GatesConfig


def checks(validation: Validation, limits: GatesConfig) -> tuple[Check, ...]:
    """Those of `max_ready_ms`, `max_peak_rss_mb` and `max_engine_mb` that have a limit, in this order."""
    warm = latency.variant(validation.coldstart.trials, "warm")
    found = []
    if limits.max_ready_ms is not None:
        ready = [trial.phases_ms["ready"] for trial in warm if "ready" in trial.phases_ms]
        found.append(_over_processes("ready", ready, limits.max_ready_ms, "ms", limits.side_confidence))
    if limits.max_peak_rss_mb is not None:
        peaks = [trial.peak_rss_mb for trial in warm]
        found.append(_over_processes("peak_rss", peaks, limits.max_peak_rss_mb, "MB", limits.side_confidence))
    if limits.max_engine_mb is not None:
        size = validation.engine_bytes / 1e6
        verdict = Verdict.PASS if size <= limits.max_engine_mb else Verdict.FAIL
        found.append(Check("engine_size", verdict, size, None, limits.max_engine_mb, "max", "MB", "exact: every file of the engine", ""))
    return tuple(found)


def _over_processes(name: str, values: Sequence[float], limit: float, unit: str, side: float) -> Check:
    """The median over fresh, warmed processes with its order-statistic interval.

    An absolute time holds for this machine alone and the control workload cannot excuse it: it is sized by requests, not by starts.
    """
    estimate = latency.estimate(values, side)
    if estimate is None:
        why = "no fresh process said so"
        return Check(name, Verdict.NOT_MEASURED, None, None, limit, "max", unit, why, "run `dvc repro` where the target runs")
    evidence = f"median of {len(values)} fresh processes; order-statistic interval"
    if estimate.interval is None:
        missing = f"{latency.trials_needed(side) - len(values)} more fresh processes a variant"
        return Check(name, Verdict.UNDECIDED, estimate.figure, None, limit, "max", unit, f"{evidence}; too few for a bound", missing)
    verdict = judge(estimate.interval, limit)
    decide = "more fresh processes (gates.trials)" if verdict is Verdict.UNDECIDED else ""
    return Check(name, verdict, estimate.figure, estimate.interval, limit, "max", unit, evidence, decide)
