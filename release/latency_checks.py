"""Gates on time: INT8 against FP32, the warmed first request, the requests behind it, and the steady tail: ratios of fresh processes. Pure.

They decide at `gates.side_confidence`. Where the control workload that ran beside a timing was itself unsteady, the machine is to blame as much as
the engine: the check is then at worst UNDECIDED, and excused. Where other processes took much of the processors' time, an UNDECIDED check is
excused too, and a tail is at worst UNDECIDED.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.records import Check, Trial, Validation, Verdict
from pipeline.verdicts import judge
from release.figures import speedups
from warmup import latency
from warmup.latency import Estimate

if TYPE_CHECKING:
    from pipeline.config import GatesConfig

BUSY = 0.1
"""Part of the processors' time that, in the median process, must have gone elsewhere for a machine to count as busy."""
EARLY_REQUESTS = 100
TAILS = ("warm_sufficiency", "p99_over_p50")
"""The checks on the slowest requests of a process."""


def early_p99_over_p50(samples_ms: Sequence[float]) -> float:
    """99th percentile of the first `EARLY_REQUESTS`, the very first included, over the steady median: how well a warm-up was enough."""
    return float(np.quantile(samples_ms[:EARLY_REQUESTS], 0.99)) / latency.p50(samples_ms)


def latency_checks(validation: Validation, limits: GatesConfig) -> tuple[Check, ...]:
    """One check a ratio, in the order a reader wants them."""
    trials, side = validation.coldstart.trials, limits.side_confidence
    warm, plain = latency.variant(trials, "warm"), latency.variant(trials, "float")
    speedup = latency.estimate(speedups(warm, plain), side)
    steadiness = latency.estimate(latency.per_process(warm, latency.half_over_half, control=True), side)
    checks = [_latency_check("int8_speedup", speedup, limits.int8_speedup, "min", side, _speedup_excuse(speedup, steadiness, limits.int8_speedup))]
    for name, statistic, limit in (
        ("first_request_over_p50", latency.first_over_p50, limits.first_request_over_p50),
        ("warm_sufficiency", early_p99_over_p50, limits.p99_over_p50),
        ("p99_over_p50", latency.p99_over_p50, limits.p99_over_p50),
    ):
        measured = latency.estimate(latency.per_process(warm, statistic), side)
        control = latency.estimate(latency.per_process(warm, statistic, control=True), side)
        checks.append(_latency_check(name, measured, limit, "max", side, _ratio_excuse(measured, control, limit)))
    return tuple(_busy_excuse(check, warm) for check in checks)


def _busy_excuse(check: Check, trials: tuple[Trial, ...]) -> Check:
    """Excused where the machine was busy with other work: an UNDECIDED check, and a tail that FAILs. Any other FAIL was shown in spite of the noise.

    The control is a part of each process and waits in the kernel; a runtime whose threads spin is disturbed by a busy
    neighbour far more than it is (seen: first requests at 2.1 times their p50 in a quarter of the processes, control calls at 1.1). A process that
    must share its processor loses it for some milliseconds every few requests, so that the tail is beyond the limit in every one of them (seen:
    8.9 times the p50 over the first hundred requests where others took 60 %, 1.9 where they took little).
    """
    explained = check.verdict is Verdict.UNDECIDED or (check.verdict is Verdict.FAIL and check.name in TAILS)
    busy = sorted(trial.busy_elsewhere for trial in trials)
    if not explained or check.interval is None or check.excused or not busy or (share := busy[len(busy) // 2]) <= BUSY:
        return check
    text = f"{check.evidence}; other processes took {100 * share:.0f} % of the processors' time"
    return dataclasses.replace(check, verdict=Verdict.UNDECIDED, evidence=text, decide="a quieter machine", excused=True)


def _ratio_excuse(measured: Estimate | None, control: Estimate | None, limit: float) -> str:
    """Why the control excuses a ratio inside a process, or "".

    It does when its own ratio (its first sample over its p50; its p99 over its p50) is beyond the limit, or cannot be shown
    within it. But not the latter when the engine's ratio is shown to be worse than the control's: then the
    machine's unsteadiness does not explain it.
    """
    if measured is None or measured.interval is None or control is None:
        return ""
    if control.figure > limit:
        return f"the control workload's own ratio was {control.figure:.3g}x"
    if control.interval and control.interval.high > limit and measured.interval.low <= control.interval.high:
        return f"the control workload's own ratio was only shown to be within {control.interval.high:.3g}x"
    return ""


def _speedup_excuse(measured: Estimate | None, control: Estimate | None, limit: float) -> str:
    """Why the control excuses a ratio between two processes, or "".

    The control is sized anew in each process to take as long as a request, so that its times cannot be compared between two. Its
    ratio here is that of its later half over its earlier half in one process, which is 1 on a steady machine; how far its
    interval reaches from 1 is how much a p50 moved within one process, the least it can move between two. It excuses a figure
    that is no farther from the limit than that.
    """
    if measured is None or measured.interval is None or control is None or control.interval is None:
        return ""
    drift = max(control.interval.high, 1 / control.interval.low)
    if limit / drift <= measured.figure <= limit * drift:
        return f"the control workload's p50 moved by up to {drift:.3g}x within a process"
    return ""


def _latency_check(name: str, measured: Estimate | None, limit: float, limit_is: str, side: float, excuse: str) -> Check:
    if measured is None:
        why = "no fresh process of this variant was measured"
        return Check(name, Verdict.NOT_MEASURED, None, None, limit, limit_is, "ratio", why, "run `dvc repro` where the target runs")
    evidence = f"median of {len(measured.values)} fresh processes"
    if measured.interval is None:
        missing = latency.trials_needed(side) - len(measured.values)
        text = f"{evidence}; too few for a bound at {side:.4g} a side"
        return Check(name, Verdict.UNDECIDED, measured.figure, None, limit, limit_is, "ratio", text, f"{missing} more fresh processes a variant")
    verdict = judge(measured.interval, limit, limit_is)
    evidence += "; order-statistic interval"
    if verdict is Verdict.PASS:
        return Check(name, verdict, measured.figure, measured.interval, limit, limit_is, "ratio", evidence, "")
    if excuse:
        text, decide = f"{evidence}; {excuse}", "a quieter machine"
        return Check(name, Verdict.UNDECIDED, measured.figure, measured.interval, limit, limit_is, "ratio", text, decide, excused=True)
    decide = "more fresh processes (gates.max_trials)" if verdict is Verdict.UNDECIDED else ""
    return Check(name, verdict, measured.figure, measured.interval, limit, limit_is, "ratio", evidence, decide)
