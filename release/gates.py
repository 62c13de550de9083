"""May a target ship? Each measured figure, its interval and its limit become a Check; the checks become an Evidence. Pure.

Accuracy decides at 95 % a side; latency: release/latency_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from scipy import special

from pipeline.records import Census, Check, Details, DriftReport, Evidence, Interval, Validation, Verdict
from pipeline.verdicts import combine, judge
from release import budgets, paired
from release.agreement import agreement_check
from release.bands import bands
from release.figures import figures_of
from release.latency_checks import latency_checks
from release.metric import SIDE, rows_to_decide
from release.rebuild_check import rebuild_check
from release.slice_check import slice_check
from release.texts import figure_text, limit_text, metric_unit

if TYPE_CHECKING:
    from pipeline.config import GatesConfig

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
        details=Details(validation.drift, validation.census, bands(validation.coldstart.trials), validation.padding, validation.coldstart.gains),
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
    again = () if limits.rebuild_agree_db is None else (rebuild_check(validation.rebuild, limits.rebuild_agree_db),)
    return (
        drop_check(validation.drift, limits.max_drop),
        *sliced,
        *reference,
        share_check(validation.census, limits.int8_share),
        agreement_check(validation.agreement),
        *again,
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
    return f"{check.name} is {check.verdict.name}, {figure_text(check)} where {limit_text(check)} is allowed"


def drop_check(drift: DriftReport, max_drop: float) -> Check:
    """Paired non-inferiority: is the drop within `max_drop` (a fraction of rows, or in the unit of a metric of the user's own)?"""
    if drift.interval is not None:
        return _own_metric_check("metric_drop", drift, drift.drop, drift.interval, max_drop, "max")
    if drift.lost is None or drift.gained is None:
        why = "the drift report holds neither counts nor an interval"
        return Check("accuracy_drop", Verdict.NOT_MEASURED, None, None, max_drop, "max", "fraction", why, "run `dvc repro` to validate again")
    interval = paired.compare(drift.lost, drift.gained, drift.validation_rows, SIDE)
    wanted = paired.rows_to_decide(drift.lost, drift.gained, drift.validation_rows, max_drop, SIDE)
    decide = "" if wanted is None else f"about {wanted} validation rows in all, if rows go on to flip as these did"
    if wanted == paired.MAX_ROWS_TO_DECIDE:
        decide = f"no number of rows up to {wanted}: the observed drop is too near the limit; choose another limit or a better build"
    difference = f"exact McNemar p {paired.mcnemar(drift.lost, drift.gained):.3g}"
    evidence = f"{drift.validation_rows} paired rows, {drift.lost} lost, {drift.gained} gained, {difference}; {paired.METHOD}"
    return Check("accuracy_drop", judge(interval, max_drop), drift.drop, interval, max_drop, "max", "fraction", evidence, decide)


def reference_check(drift: DriftReport, min_reference: float) -> Check:
    """Is the float reference itself good enough? Catches an FP32 and INT8 that are equally wrong. Clopper-Pearson interval."""
    if drift.reference_interval is not None:
        return _own_metric_check("reference_metric", drift, drift.reference_value, drift.reference_interval, min_reference, "min")
    rows, right = drift.validation_rows, round(drift.reference_value * drift.validation_rows)
    low = float(special.betaincinv(right, rows - right + 1, 1 - SIDE)) if right else 0.0
    high = float(special.betaincinv(right + 1, rows - right, SIDE)) if right < rows else 1.0
    interval = Interval(low=low, high=high, side_confidence=SIDE)
    verdict = judge(interval, min_reference, "min")
    decide = "more validation rows" if verdict is Verdict.UNDECIDED else ""
    evidence = f"{right} of {rows} rows right in float; exact binomial (Clopper-Pearson)"
    return Check("reference_accuracy", verdict, drift.reference_value, interval, min_reference, "min", "fraction", evidence, decide)


def _own_metric_check(name: str, drift: DriftReport, figure: float, interval: Interval, limit: float, limit_is: str) -> Check:
    """A metric's figure against its limit, by the interval that was measured with it."""
    verdict, decide = judge(interval, limit, limit_is), ""
    if verdict is Verdict.UNDECIDED:
        wanted = rows_to_decide(figure, interval, limit, drift.validation_rows)
        decide = "another limit or a better build: the figure is too near the limit"
        if wanted is not None and wanted < paired.MAX_ROWS_TO_DECIDE:
            decide = f"about {wanted} validation rows in all, if new rows are like these"
    evidence = f"{drift.validation_rows} rows, {drift.metric}; {drift.method}"
    return Check(name, verdict, figure, interval, limit, limit_is, metric_unit(drift.metric), evidence, decide)


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
