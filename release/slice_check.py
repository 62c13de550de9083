"""The gate on slices: a class or a site that got worse may hide in a good average."""

from __future__ import annotations

from pipeline.records import Check, DriftReport, SliceDrift, Verdict
from pipeline.verdicts import judge
from release import paired

SIDE = 0.95
METHOD = (
    "each slice: exact paired bound; PASS needs every slice within the limit at 95 % (intersection-union, Berger 1982, Technometrics 24:295-300),"
    " FAIL one beyond it at 95 % after Bonferroni"
)


def slice_check(drift: DriftReport, limit: float) -> Check:
    """Is the drop within `limit` (a fraction of its rows) in every slice?

    To pass, all must hold at once, so that testing each at 95 % errs in at most 5 %; to fail, one of many is enough, so that each is tested
    at 5 % over their number. The figure and the interval are those of the slice whose upper bound is the largest, or that fails most clearly.
    """
    parts = drift.slices
    if not parts:
        why = f"no slice to look at: gates.slices names none, or {drift.metric} is not right or wrong for each row"
        return Check("worst_slice", Verdict.NOT_MEASURED, None, None, limit, "max", "fraction", why, "name slices, or leave out gates.max_slice_drop")
    strict = 1 - (1 - SIDE) / len(parts)
    shown = max(parts, key=lambda part: paired.upper_bound(part.lost, part.gained, part.rows, SIDE))
    interval = paired.compare(shown.lost, shown.gained, shown.rows, SIDE)
    beyond = {part: -paired.upper_bound(part.gained, part.lost, part.rows, strict) for part in parts if part.lost > limit * part.rows}
    verdict = Verdict.PASS if judge(interval, limit) is Verdict.PASS else Verdict.UNDECIDED
    if any(low > limit for low in beyond.values()):
        verdict, shown = Verdict.FAIL, max(beyond, key=lambda part: beyond[part])
        interval = paired.compare(shown.lost, shown.gained, shown.rows, strict)
    evidence = f"{name(shown)}: {shown.rows} rows, {shown.lost} lost, {shown.gained} gained; the worst of {len(parts)} slices; {METHOD}"
    return Check(
        "worst_slice", verdict, (shown.lost - shown.gained) / shown.rows, interval, limit, "max", "fraction", evidence, _decide(shown, limit, verdict)
    )


def name(part: SliceDrift) -> str:
    """For example "class 7"."""
    return f"{part.of} {part.value}"


def _decide(part: SliceDrift, limit: float, verdict: Verdict) -> str:
    if verdict is not Verdict.UNDECIDED:
        return ""
    wanted = paired.rows_to_decide(part.lost, part.gained, part.rows, limit, SIDE)
    if wanted is None or wanted == paired.MAX_ROWS_TO_DECIDE:
        return "no number of rows: the observed drop is too near the limit"
    return f"about {wanted} validation rows of {name(part)}, if rows go on to flip as these did"
