"""The gate on slices: a class or a site that got worse may hide in a good average."""

from __future__ import annotations

import math

from pipeline.records import Check, DriftReport, Interval, SliceDrift, Verdict
from pipeline.verdicts import judge
from release import paired
from release.metric import SIDE, rows_to_decide
from release.texts import metric_unit

METHOD = (
    "PASS needs every slice within the limit at 95 % (intersection-union, Berger 1982, Technometrics 24:295-300), FAIL one beyond it at 95 % after"
    " Bonferroni"
)


def slice_check(drift: DriftReport, limit: float) -> Check:
    """Is the drop within `limit` (a fraction of its rows, or in the metric's unit) in every slice?

    To pass, all must hold at once, so that testing each at 95 % errs in at most 5 %; to fail, one of many is enough, so that each is tested
    at 5 % over their number. The figure and the interval are those of the slice whose upper bound is the largest, or that fails most clearly; a
    slice of which the metric says nothing is as bad as any.
    """
    parts = drift.slices
    unit = "fraction" if drift.interval is None else metric_unit(drift.metric)
    if not parts:
        why = "no slice to look at: gates.slices names none that these rows have"
        return Check("worst_slice", Verdict.NOT_MEASURED, None, None, limit, "max", unit, why, "name slices, or leave out gates.max_slice_drop")
    strict = 1 - (1 - SIDE) / len(parts)
    beyond = {part: interval for part in parts if (part.drop or 0) > limit and (interval := bounds(part, strict)) and interval.low > limit}
    if beyond:
        shown = max(beyond, key=lambda part: beyond[part].low)
        verdict, interval = Verdict.FAIL, bounds(shown, strict)
    else:
        intervals = {part: bounds(part) for part in parts}
        shown = max(parts, key=lambda part: math.inf if (found := intervals[part]) is None else found.high)
        interval = intervals[shown]
        verdict = Verdict.PASS if interval is not None and judge(interval, limit) is Verdict.PASS else Verdict.UNDECIDED
    flips = "" if shown.lost is None else f", {shown.lost} lost, {shown.gained} gained"
    how = "exact paired bound" if shown.lost is not None else drift.method
    evidence = f"{shown.name}: {shown.rows} rows{flips}; the worst of {len(parts)} slices; each slice: {how}; {METHOD}"
    decide = _decide(shown, interval, limit) if verdict is Verdict.UNDECIDED else ""
    return Check("worst_slice", verdict, shown.drop, interval, limit, "max", unit, evidence, decide)


def bounds(part: SliceDrift, side_confidence: float = SIDE) -> Interval | None:
    """Interval of the drop in one slice at 95 % a side, or, at any other confidence, the one that is corrected for the number of slices."""
    if part.lost is not None and part.gained is not None:
        return paired.compare(part.lost, part.gained, part.rows, side_confidence)
    return part.interval if side_confidence == SIDE else part.corrected


def _decide(part: SliceDrift, interval: Interval | None, limit: float) -> str:
    if interval is None or part.drop is None:
        return f"{part.fault}: take {part.name} out, or choose a metric that every slice has"
    if part.lost is not None and part.gained is not None:
        wanted = paired.rows_to_decide(part.lost, part.gained, part.rows, limit, SIDE)
    else:
        wanted = rows_to_decide(part.drop, interval, limit, part.rows)
    if wanted is None or wanted >= paired.MAX_ROWS_TO_DECIDE:
        return "no number of rows: the observed drop is too near the limit"
    return f"about {wanted} validation rows of {part.name}, if rows go on as these did"
