"""Sessions that start at a steady period, like those of a cron job: the period, and the window to await the next one in."""

from __future__ import annotations

import math
from typing import NamedTuple

LEAST_SESSIONS = 3
MOST_MULTIPLES = 3
MOST_TRIMMED = 4
"""Outliers at each end that the window may give up."""
REGULAR = 0.25
"""An interval is regular within this share of the middle one, or of its multiple."""
SIGMAS_MOST = 4.0
LEAST_SPREAD_S = 0.5


class Period(NamedTuple):
    """After a session's start the next is awaited `ahead_s` later, from `low_s` to `high_s` of that; if it does not come, `period_s` later again."""

    period_s: float
    ahead_s: float
    low_s: float
    high_s: float
    repeats: int

    def windows(self, start: float) -> list[tuple[float, float]]:
        """When the next session may start, `start` being when the last one did."""
        centres = (start + self.ahead_s + index * self.period_s for index in range(self.repeats))
        return [(centre + self.low_s, centre + self.high_s) for centre in centres]


def find_period(intervals: list[float], price_s: float, lead_s: float) -> Period | None:
    """From the last `intervals` between starts of sessions, in seconds, oldest first. Skipped sessions give multiples of the period.

    Starts keep to a clock (their jitter does not add up: a line is fitted through them) or follow one another (it does); the closer fit counts.
    The window is what is worth it at `price_s` a miss and a second of memory for each second of it. None where awaiting is not worth it.
    """
    if len(intervals) < LEAST_SESSIONS:
        return None
    middle = sorted(intervals)[len(intervals) // 2]
    if middle <= 0.0:
        return None
    multiples = [max(1, round(interval / middle)) for interval in intervals]
    regular = sum(abs(interval - multiple * middle) < REGULAR * middle for interval, multiple in zip(intervals, multiples, strict=True))
    if 3 * regular < 2 * len(intervals):
        return None
    numbers, starts = [0], [0.0]
    for interval, multiple in zip(intervals, multiples, strict=True):
        numbers.append(numbers[-1] + multiple)
        starts.append(starts[-1] + interval)
    following = starts[-1] / numbers[-1]
    chain = [interval - multiple * following for interval, multiple in zip(intervals, multiples, strict=True)]
    slope, offset = _line(numbers, starts)
    clock = [start - offset - slope * number for number, start in zip(numbers, starts, strict=True)]
    if _spread(clock) * len(clock) / (len(clock) - 2) < 0.9 * _spread(chain):
        period, rests, ahead = slope, sorted(clock), offset + slope * (numbers[-1] + 1) - starts[-1]
    else:
        period, rests, ahead = following, sorted(chain), following
    found = _window(rests, price_s, lead_s)
    if found is None or found[2] >= min(price_s, 0.9 * period):
        return None
    return Period(period, ahead, found[0], found[1], min(MOST_MULTIPLES, max(multiples)))


def _line(numbers: list[int], values: list[float]) -> tuple[float, float]:
    """Slope and offset by least squares."""
    count = len(numbers)
    mean_x, mean_y = sum(numbers) / count, sum(values) / count
    squares = sum((x - mean_x) ** 2 for x in numbers)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(numbers, values, strict=True)) / squares
    return slope, mean_y - slope * mean_x


def _spread(rests: list[float]) -> float:
    return math.sqrt(sum(rest * rest for rest in rests) / len(rests)) + LEAST_SPREAD_S


def _window(rests: list[float], price_s: float, lead_s: float) -> tuple[float, float, float] | None:
    """(low, high, cost): the run of sorted `rests` that costs least, widened to where a normal tail is no longer worth it."""
    count = len(rests)
    best, first, last = price_s, -1, -1
    trimmed = min(MOST_TRIMMED, count // 4)
    for start in range(trimmed + 1):
        for end in range(count - 1 - trimmed, count):
            cost = price_s * (count - 1 - end + start) / count + 0.5 * (rests[end] - rests[start]) + lead_s
            if cost < best:
                best, first, last = cost, start, end
    if first < 0:
        return None
    inside = rests[first : last + 1]
    mean = sum(inside) / len(inside)
    sigma = 1.15 * math.sqrt(sum((rest - mean) ** 2 for rest in inside) / (len(inside) - 1)) + LEAST_SPREAD_S
    sigmas = min(SIGMAS_MOST, math.sqrt(2.0 * math.log(max(1.0, price_s / (2.5 * sigma)))))
    return min(inside[0], mean - sigmas * sigma), max(inside[-1], mean + sigmas * sigma), best
