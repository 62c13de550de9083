"""What is known of one model's traffic, and what follows from it for staying warm. Each answer is kept until what it rests on changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fleet.arrivals import BINS, EDGES, FORGET, Arrivals, bin_of
from fleet.bursts import Bursts
from fleet.periods import Period, find_period
from fleet.plans import Pattern, Window
from fleet.seasons import DAY_SLOTS, SLOT_S, WEEK_SLOTS, day_index, place_of, slot_of

AHEAD_SLOTS = 48
GROWTH = 1.08
"""The gap histogram is read again when it holds so many times the gaps."""
MOST_WINDOWS = 8
MOST_LEAD = 15.0
"""In loads: the most that one is begun ahead of the moment from which the model is to be warm."""
LIKELY = 0.7
"""Sessions expected until one is likely: half of all first ones have come by then, were they a Poisson process."""


class Habits:
    """One model: `arrivals`, and per-price conclusions.

    `price_s`: a cold start is worth so many seconds of warm memory; being warm for a moment pays while the chance of a session's start in it is
    above 1 / price_s a second. `lead_s`: a load is begun so many seconds before it must be done.
    """

    __slots__ = (
        "_gap_key",
        "_gaps",
        "_hot",
        "_pattern",
        "_period",
        "_period_key",
        "arrivals",
        "bridge_s",
        "bursts",
        "forecast_windows",
        "lead_s",
        "price_s",
    )

    def __init__(self, arrivals: Arrivals, price_s: float, lead_s: float) -> None:
        self.arrivals, self.price_s, self.lead_s = arrivals, price_s, lead_s
        self.bursts = Bursts()
        self.bridge_s = min(arrivals.session_s, price_s / 40.0)
        self._hot = bytearray(self.pays(arrivals.profile.expected(place)) for place in range(WEEK_SLOTS))
        self._pattern: Pattern | None = None
        self._period: Period | None = None
        self._period_key = -1.0
        self._gaps: tuple[float, tuple[Window, ...]] = (0.0, ())
        self._gap_key = 0.0
        self.forecast_windows: tuple[Window, ...] = ()
        """The half-hours of the day that was forecast that pay."""

    def pays(self, sessions: float) -> bool:
        """Whether a half-hour that starts so many sessions is worth being warm."""
        return sessions * self.price_s > SLOT_S

    def pass_slots(self, at: float) -> list[tuple[int, float, float]]:
        """Half-hours that ended before `at`, as `Arrivals.pass_slots` gives them; learns from them which of the week pay."""
        profile = self.arrivals.profile
        closed = self.arrivals.pass_slots(at)
        for slot, _, _ in closed:
            index = day_index(place_of(slot))
            days = range(5, 7) if index >= DAY_SLOTS else range(5)
            for place in (day * DAY_SLOTS + index % DAY_SLOTS for day in days):
                hot = self.pays(profile.expected(place))
                if hot != self._hot[place]:
                    self._hot[place], self._pattern = hot, None
        return closed

    def begin_earlier(self, load_s: float) -> None:
        """A load that was to be ahead of demand was still going on, perhaps behind others': begin the next ones half as long again before."""
        self.lead_s = min(1.5 * self.lead_s, MOST_LEAD * load_s)
        self._pattern, self._period_key = None, -1.0

    def pattern(self) -> Pattern:
        """The half-hours of the week that pay, each run of them begun `lead_s` early."""
        if self._pattern is None:
            self._pattern = Pattern(tuple(self._runs([bool(hot) for hot in self._hot], 0.0)))
        return self._pattern

    def forecast(self, slot: int, rates: list[float]) -> None:
        """Take in the sessions forecast for the half-hours from `slot` on."""
        self.forecast_windows = tuple(self._runs([self.pays(rate) for rate in rates], slot * SLOT_S))

    def _runs(self, hot: list[bool], origin: float) -> list[Window]:
        edges = [index for index, (before, after) in enumerate(pairwise([False, *hot, False])) if before != after]
        return [
            (origin + start * SLOT_S - self.lead_s * (start > 0), origin + end * SLOT_S) for start, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def period(self) -> Period | None:
        """Of the last sessions' starts; None while they are few or keep no period that is worth knowing."""
        if self.arrivals.session != self._period_key:
            self._period_key = self.arrivals.session
            self._period = find_period(list(self.arrivals.sessions), self.price_s, self.lead_s)
        return self._period

    def bridge(self) -> float:
        """Shortest keep-alive of the learned policies, in seconds: as far into a session as the gap histogram finds worth it."""
        return min(max(self.gap_windows()[0], self.bridge_s), self.arrivals.session_s)

    def wait_s(self, now: float) -> float | None:
        """Seconds until the next request is likely: by its period, else by usual half-hours and past gaps; None before anything is known."""
        found, start = self.period(), self.arrivals.session
        for low, high in found.windows(start) if found is not None else ():
            if now < high:
                return max(0.0, 0.5 * (low + high) - now)
        usual = self._usual_wait(now)
        likely = self._gap_wait(now - self.arrivals.last)
        if usual is None or likely is None:
            return usual if likely is None else likely
        return min(usual, likely)

    def _usual_wait(self, now: float) -> float | None:
        """Seconds until half-hours that usually start so many sessions."""
        profile, awaited, slot = self.arrivals.profile, 0.0, slot_of(now)
        if profile.closed < DAY_SLOTS:
            return None
        for ahead in range(WEEK_SLOTS):
            rate = profile.expected(place_of(slot + ahead))
            if awaited + rate >= LIKELY:
                return (ahead + (LIKELY - awaited) / rate) * SLOT_S
            awaited += rate
        return WEEK_SLOTS * SLOT_S

    def _gap_wait(self, age: float) -> float | None:
        """Seconds in which half of the gaps end that have lasted for `age`."""
        gaps, first = self.arrivals.gaps, bin_of(max(0.0, age))
        beyond = sum(gaps[first:])
        if beyond < 3.0 * self.arrivals.unit / FORGET**3:
            return None
        passed = 0.0
        for index in range(first, BINS):
            passed += gaps[index]
            if passed >= 0.5 * beyond:
                return max(1.0, EDGES[index + 1] - age)
        return None

    def gap_windows(self) -> tuple[float, tuple[Window, ...]]:
        """Keep-alive and windows after a request, in seconds since it, that would have cost least on the gap histogram."""
        if self.arrivals.total > self._gap_key * GROWTH:
            self._gap_key = max(self.arrivals.total, 4.0)
            self._gaps = cheapest_windows(self.arrivals.gaps, self.price_s, self.lead_s)
        return self._gaps


def cheapest_windows(gaps: Sequence[float], price_s: float, lead_s: float) -> tuple[float, tuple[Window, ...]]:
    """Keep-alive and windows that cost least on a histogram of gaps (bins of `EDGES`), by dynamic programming over bins from the longest gap back.

    A warm bin costs its width for each gap that gets through it, a cold one `price_s` for each gap that ends in it, and each start of a window
    its load. Exact for the histogram, which is smoothed by half a bin to each side; O(bins).
    """
    beyond = warm_cost = cold_cost = 0.0
    choices: list[tuple[bool, bool]] = []
    for index in range(BINS - 1, -1, -1):
        count = 0.5 * gaps[index] + 0.25 * (gaps[max(1, index - 1)] + gaps[min(BINS - 1, index + 1)]) if index > 1 else gaps[index]
        enter = lead_s * beyond + warm_cost
        choices.append((warm_cost < cold_cost, enter < cold_cost))  # is the next bin warm, after a warm and after a cold one?
        warm = (EDGES[index + 1] - EDGES[index]) * (beyond + 0.5 * count) + min(warm_cost, cold_cost)
        cold_cost = price_s * count + min(cold_cost, enter)
        warm_cost = warm
        beyond += count
    parts: list[Window] = []
    start: float | None = 0.0
    for index, (after_warm, after_cold) in enumerate(reversed(choices)):
        end = EDGES[index + 1]
        if start is not None and not after_warm:
            parts.append((start, end))
            start = None
        elif start is None and after_cold:
            start = end - lead_s
    if start is not None:
        parts.append((start, EDGES[BINS]))
    return parts[0][1], tuple(parts[1 : 1 + MOST_WINDOWS])
