"""Candidate policies: from what is known of a model to its plan until the next request."""

from __future__ import annotations

from collections.abc import Callable

from fleet.arrivals import EDGES
from fleet.habits import Habits
from fleet.periods import LEAST_SESSIONS
from fleet.plans import NEVER, Interval, Plan, Weekly

RANGE_S = 4 * 3600.0
"""Shahrad et al., "Serverless in the Wild", USENIX ATC 2020: range of the histogram, and the keep-alive where it says nothing."""
HEAD, TAIL, MARGIN, REPRESENTATIVE_CV = 0.05, 0.99, 0.10, 2.0
"""The same paper's percentiles, margin, and test that a histogram is concentrated."""
KEEP_ALIVES_S = (0.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, NEVER)
INTERVAL_S = 900.0
Policy = Callable[[Habits, float], Plan]
"""`policy(habits, now)`: the plan from `now`, when the model became idle."""


class KeepAlive:
    """Warm for so long after each request."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _: Habits, now: float) -> Plan:
        return Plan(now, self.seconds)


def conservative(habits: Habits, now: float) -> Plan:
    """Keep-alive of the price itself: at most twice the cost of knowing the future (ski rental; Karlin et al., Algorithmica 3, 1988)."""
    return Plan(now, habits.price_s)


def interval(_: Habits, now: float) -> Plan:
    """A warm-up every 15 minutes."""
    return Interval(now, INTERVAL_S)


def schedule(habits: Habits, now: float) -> Plan:
    """The half-hours of the week that usually pay."""
    return Weekly(now, habits.bridge(), habits.pattern(), habits.lead_s)


def forecast(habits: Habits, now: float) -> Plan:
    """The half-hours of the next day that the forecast says will pay."""
    return Plan(now, habits.bridge(), habits.forecast_windows, habits.lead_s)


def gaps(habits: Habits, now: float) -> Plan:
    """What would have cost least on the histogram of gaps."""
    keep, windows = habits.gap_windows()
    return Plan(now, max(keep, habits.bridge_s), tuple((now + start, now + end) for start, end in windows), habits.lead_s)


def burst(habits: Habits, now: float) -> Plan:
    """In a burst, as long as this one's rate makes waiting worth it; then, and in no burst, what the histogram of gaps says."""
    keep, windows = habits.gap_windows()
    here = habits.bursts.keep_s(habits.price_s)
    keep = keep if here is None else here
    return Plan(now, max(keep, habits.bridge_s), tuple((now + start, now + end) for start, end in windows), habits.lead_s)


def period(habits: Habits, now: float) -> Plan:
    """Around the next starts of sessions that come at a steady period; the conservative keep-alive where there is none."""
    found = habits.period()
    if found is None:
        return conservative(habits, now)
    windows = tuple((low - habits.lead_s, high) for low, high in found.windows(habits.arrivals.session))
    return Plan(now, habits.bridge(), windows, habits.lead_s)


def histogram(habits: Habits, now: float) -> Plan:
    """Shahrad et al. 2020: unload, load again at the 5th percentile of gaps, keep to the 99th; their keep-alive where gaps are not concentrated.

    Gaps beyond four hours are out of its range; where they are half of all, the conservative keep-alive stands for the paper's ARIMA.
    """
    counts = habits.arrivals.gaps
    total = sum(counts)
    if habits.arrivals.total <= LEAST_SESSIONS:
        return conservative(habits, now)
    head = tail = 0.0
    seen = 0.0
    inside = squares = 0.0
    for index, count in enumerate(counts):
        if count == 0.0:
            continue
        if EDGES[index] >= RANGE_S:
            break
        if seen <= HEAD * total < seen + count:
            head = EDGES[index]
        if seen < TAIL * total:
            tail = EDGES[index + 1]
        seen += count
        inside += count
        squares += count * count
    if inside < 0.5 * total:
        return conservative(habits, now)
    bins = next(index for index, edge in enumerate(EDGES) if edge >= RANGE_S)
    mean = inside / bins
    variance = max(0.0, squares / bins - mean * mean)
    if variance**0.5 < REPRESENTATIVE_CV * mean:
        return Plan(now, RANGE_S)
    head, tail = head * (1 - MARGIN), min(tail, RANGE_S) * (1 + MARGIN)
    if head <= 60.0:
        return Plan(now, tail)
    return Plan(now, 0.0, ((now + head - habits.lead_s, now + tail),), habits.lead_s)


def candidates() -> dict[str, Policy]:
    """What the selector chooses from; the first is the one it falls back to."""
    fixed = {f"keep-alive-{seconds:g}s": KeepAlive(seconds) for seconds in KEEP_ALIVES_S}
    return {"conservative": conservative, **fixed, "schedule": schedule, "gaps": gaps, "burst": burst, "period": period, "forecast": forecast}
