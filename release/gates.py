"""May a target ship? Each measured figure, its interval and its limit become a Check; the checks become an Evidence. Pure.

Accuracy decides at 95 % a side, latency at `gates.side_confidence`. Where the control workload that ran beside a timing
was itself unsteady, the machine is to blame as much as the engine: the check is then at worst UNDECIDED, and excused.
An UNDECIDED latency check is excused too where other processes took much of the processors' time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from scipy import special

from pipeline.records import Census, Check, Details, DriftReport, Evidence, Interval, Trial, Validation, Verdict
from pipeline.verdicts import combine, judge
from release import budgets, paired
from release.agreement import agreement_check
from release.bands import bands
from release.figures import figures_of, speedups
from release.slice_check import slice_check
from warmup import latency
from warmup.latency import Estimate

if TYPE_CHECKING:
    from pipeline.config import GatesConfig

BUSY = 0.1
"""Part of the processors' time that, in the median process, must have gone elsewhere for a machine to count as busy."""
ACCURACY_SIDE = 0.95
Undecided = Literal["refuse", "leave-out"]


def judge_target(
    validation: Validation, limits: GatesConfig, *, required: bool, undecided: Undecided, machine: Mapping[str, str], measured_at: str,
    also: tuple[Check, ...] = (), waive: Callable[[tuple[Check, ...]], tuple[Check, ...]] = lambda checks: checks,
) -> Evidence:  # fmt: skip
    """The verdict of a measured target. `machine` and `measured_at` (ISO 8601) are what the measurement holds for.

    `also`: checks that rest on other records. `waive` marks the checks that somebody lets ship all the same (release/waivers.py).
    """
    checks = waive((*checks_of(validation, limits), *also))
    verdict = combine(checks)
    ships, refuses, reason = outcome(checks, required=required, undecided=undecided)
    return Evidence(
        target=validation.target,
        required=required,
        verdict=verdict,
        ships=ships,
        reason=reason,
        checks=checks,
        figures=figures_of(validation),
        bound_to=dict(validation.bound_to),
        machine=dict(machine),
        measured_at=measured_at,
        refuses=refuses,
        attribution=validation.attribution,
        details=Details(validation.drift, validation.census, bands(validation.coldstart.trials), validation.coldstart.gains),
    )


def not_measured(target: str, why: str, *, required: bool, machine: Mapping[str, str], measured_at: str) -> Evidence:
    """The verdict of a target that this machine cannot run: NOT_MEASURED, left out or, when required, refusing."""
    check = Check("measurement", Verdict.NOT_MEASURED, None, None, None, "max", "ratio", why, "measure it on a machine that can run this target")
    ships, refuses, reason = outcome((check,), required=required, undecided="leave-out")
    return Evidence(target, required, Verdict.NOT_MEASURED, ships, reason, (check,), {}, {}, dict(machine), measured_at, refuses)


def checks_of(validation: Validation, limits: GatesConfig) -> tuple[Check, ...]:
    """Every gate's answer, in the order a reader wants them."""
    reference = () if limits.min_reference is None else (reference_check(validation.drift, limits.min_reference),)
    sliced = () if limits.max_slice_drop is None else (slice_check(validation.drift, limits.max_slice_drop),)
    return (
        drop_check(validation.drift, limits.max_drop),
        *sliced,
        *reference,
        share_check(validation.census, limits.int8_share),
        agreement_check(validation.agreement),
        *latency_checks(validation, limits),
        *budgets.checks(validation, limits),
    )


def needs_more_trials(validation: Validation, limits: GatesConfig) -> bool:
    """Whether a latency check is UNDECIDED, excused or not: more fresh processes may decide it, as more rows cannot.

    Each further look adds at most the error a side once more: 0.1 % with the default confidence.
    """
    return any(check.verdict is Verdict.UNDECIDED for check in latency_checks(validation, limits))


def outcome(checks: tuple[Check, ...], *, required: bool, undecided: Undecided) -> tuple[bool, bool, str]:
    """(ships, refuses the release, why) of a target with these checks."""
    verdict = combine(checks)
    excused = [check.name for check in checks if check.excused]
    if verdict is Verdict.PASS:
        if waived := [f"{check.name} ({check.verdict.name}, waived {check.waived})" for check in checks if check.waived]:
            return True, False, f"ships on a waiver: {'; '.join(waived)}"
        if not excused:
            return True, False, f"ships: all {len(checks)} checks passed"
        return True, False, f"ships with {', '.join(excused)} UNDECIDED: this machine was unsteady or busy and could not tell"
    causes = "; ".join(_cause(check) for check in checks if check.verdict is verdict and not check.excused) or "nothing was measured"
    if required:
        return False, True, f"refuses the release, because this target is required: {causes}"
    if verdict is Verdict.UNDECIDED and undecided == "refuse":
        return False, True, f"refuses the release, because release.undecided is refuse: {causes}"
    return False, False, f"left out of the release: {causes}"


def _cause(check: Check) -> str:
    if check.figure is None or check.limit is None:
        return f"{check.name} is {check.verdict.name} ({check.evidence})"
    side = "at most" if check.limit_is == "max" else "at least"
    return f"{check.name} is {check.verdict.name}, {_number(check.figure, check.unit)} where {side} {_number(check.limit, check.unit)} is allowed"


def _number(value: float, unit: str) -> str:
    texts = {
        "fraction": f"{100 * value:.3g} %",
        "dB": f"{value:.1f} dB",
        "ms": f"{value:.4g} ms",
        "MB": f"{value:.4g} MB",
        "rows": f"{value:.0f} rows",
        "score": f"{value:.4g}",
    }
    return texts.get(unit, f"{value:.3g}x")


def drop_check(drift: DriftReport, max_drop: float) -> Check:
    """Paired non-inferiority: is the drop within `max_drop` (a fraction of rows, or in the unit of a metric of the user's own)?"""
    if drift.interval is not None:
        return _own_metric_check("metric_drop", drift, drift.drop, drift.interval, max_drop, "max")
    if drift.lost is None or drift.gained is None:
        why = "the drift report holds neither counts nor an interval"
        return Check("accuracy_drop", Verdict.NOT_MEASURED, None, None, max_drop, "max", "fraction", why, "run `dvc repro` to validate again")
    interval = paired.compare(drift.lost, drift.gained, drift.validation_rows, ACCURACY_SIDE)
    wanted = paired.rows_to_decide(drift.lost, drift.gained, drift.validation_rows, max_drop, ACCURACY_SIDE)
    decide = "" if wanted is None else f"about {wanted} validation rows in all, if rows go on to flip as these did"
    if wanted == paired.MAX_ROWS_TO_DECIDE:
        decide = f"no number of rows up to {wanted}: the observed drop is too near the limit; choose another limit or a better build"
    evidence = f"{drift.validation_rows} paired rows, {drift.lost} lost, {drift.gained} gained; {paired.METHOD}"
    return Check("accuracy_drop", judge(interval, max_drop), drift.drop, interval, max_drop, "max", "fraction", evidence, decide)


def reference_check(drift: DriftReport, min_reference: float) -> Check:
    """Is the float reference itself good enough? Catches an FP32 and INT8 that are equally wrong. Clopper-Pearson interval."""
    if drift.reference_interval is not None:
        return _own_metric_check("reference_metric", drift, drift.reference_value, drift.reference_interval, min_reference, "min")
    rows, right = drift.validation_rows, round(drift.reference_value * drift.validation_rows)
    low = float(special.betaincinv(right, rows - right + 1, 1 - ACCURACY_SIDE)) if right else 0.0
    high = float(special.betaincinv(right + 1, rows - right, ACCURACY_SIDE)) if right < rows else 1.0
    interval = Interval(low=low, high=high, side_confidence=ACCURACY_SIDE)
    verdict = judge(interval, min_reference, "min")
    decide = "more validation rows" if verdict is Verdict.UNDECIDED else ""
    evidence = f"{right} of {rows} rows right in float; exact binomial (Clopper-Pearson)"
    return Check("reference_accuracy", verdict, drift.reference_value, interval, min_reference, "min", "fraction", evidence, decide)


def _own_metric_check(name: str, drift: DriftReport, figure: float, interval: Interval, limit: float, limit_is: str) -> Check:
    """A metric's figure against its limit, by the interval that was measured with it."""
    verdict, decide = judge(interval, limit, limit_is), ""
    if verdict is Verdict.UNDECIDED:
        gap = abs(limit - figure)
        reach = max(interval.high - figure, figure - interval.low)
        wanted = drift.validation_rows * (reach / gap) ** 2 if gap > 0 else math.inf
        decide = "another limit or a better build: the figure is too near the limit"
        if wanted < paired.MAX_ROWS_TO_DECIDE:
            decide = f"about {math.ceil(wanted)} validation rows in all, if new rows are like these"
    return Check(name, verdict, figure, interval, limit, limit_is, "score", f"{drift.validation_rows} rows, {drift.metric}; {drift.method}", decide)


def share_check(census: Census | None, least: float) -> Check:
    """Does enough of the multiply-accumulates execute in INT8? A count, so it has no interval."""
    if census is None:
        why = "nobody has asked the engine what it executes in"
        return Check("int8_share", Verdict.NOT_MEASURED, None, None, least, "min", "fraction", why, "a census of the built engine")
    if not sum(layer.macs for layer in census.layers):
        why = "the census of the executed graph counted no multiply-accumulates"
        return Check("int8_share", Verdict.NOT_MEASURED, None, None, least, "min", "fraction", why, "a census of the built engine")
    verdict = Verdict.PASS if census.int8_share >= least else Verdict.FAIL
    evidence = f"exact count over {len(census.layers)} executed layers"
    return Check("int8_share", verdict, census.int8_share, None, least, "min", "fraction", evidence, "")


def latency_checks(validation: Validation, limits: GatesConfig) -> tuple[Check, ...]:
    """INT8 against FP32, and the warmed first request and p99 over p50: ratios of fresh processes."""
    trials, side = validation.coldstart.trials, limits.side_confidence
    warm, plain = latency.variant(trials, "warm"), latency.variant(trials, "float")
    speedup = latency.estimate(speedups(warm, plain), side)
    steadiness = latency.estimate(latency.per_process(warm, latency.half_over_half, control=True), side)
    checks = [_latency_check("int8_speedup", speedup, limits.int8_speedup, "min", side, _speedup_excuse(speedup, steadiness, limits.int8_speedup))]
    for name, statistic, limit in (
        ("first_request_over_p50", latency.first_over_p50, limits.first_request_over_p50),
        ("p99_over_p50", latency.p99_over_p50, limits.p99_over_p50),
    ):
        measured = latency.estimate(latency.per_process(warm, statistic), side)
        control = latency.estimate(latency.per_process(warm, statistic, control=True), side)
        checks.append(_latency_check(name, measured, limit, "max", side, _ratio_excuse(measured, control, limit)))
    return tuple(_busy_excuse(check, warm) for check in checks)


def _busy_excuse(check: Check, trials: tuple[Trial, ...]) -> Check:
    """An UNDECIDED latency check is excused where the machine was busy with other work. A FAIL stands: it was shown in spite of the noise.

    The control is a part of each process and waits in the kernel; a runtime whose threads spin is disturbed by a busy
    neighbour far more than it is (seen: first requests at 2.1 times their p50 in a quarter of the processes, control calls at 1.1).
    """
    busy = sorted(trial.busy_elsewhere for trial in trials)
    if check.verdict is not Verdict.UNDECIDED or check.interval is None or check.excused or not busy or (share := busy[len(busy) // 2]) <= BUSY:
        return check
    text = f"{check.evidence}; other processes took {100 * share:.0f} % of the processors' time"
    return dataclasses.replace(check, evidence=text, decide="a quieter machine", excused=True)


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
