"""When a model is to be warm until its next request: a keep-alive, then windows. What that would have cost is known when the request comes."""

from __future__ import annotations

import bisect
import itertools
import math

from fleet.seasons import FIRST_SLOT, SLOT_S, WEEK_S

NEVER = math.inf
MONDAY_S = FIRST_SLOT * SLOT_S
Window = tuple[float, float]
"""Start of the load and end of being warm, seconds since the epoch."""


class Plan:
    """Warm from `since` for `keep_s` seconds, then in `windows` (sorted, apart or touching; touching ones warm up anew without a pause).

    `load_s`: a window's first seconds are its load, in which memory is held and a request still waits. `limit_s`: once memory was held for so long
    in vain, it is given back and not taken again before the next request.
    """

    __slots__ = ("keep_s", "limit_s", "load_s", "since", "windows")

    def __init__(self, since: float, keep_s: float, windows: tuple[Window, ...] = (), load_s: float = 0.0) -> None:
        self.since, self.keep_s, self.windows, self.load_s, self.limit_s = since, keep_s, windows, load_s, NEVER

    def judge(self, until: float) -> tuple[bool, float]:
        """Whether a request at `until` would be met warm, and for how many seconds memory would have been held since `since`."""
        warm, held = self.follow(until)
        return (warm, held) if held <= self.limit_s else (False, self.limit_s)

    def wants(self, now: float) -> tuple[bool, float]:
        """Whether it wants the model warm (or loading) at `now`, and when that changes or a window starts next (NEVER when it does not)."""
        wanted, change = self.look(now)
        if self.limit_s < NEVER:
            left = self.limit_s - self.follow(now)[1]
            if left <= 0.0:
                return False, NEVER
            if wanted:
                change = min(change, now + left)
        return wanted, change

    def follow(self, until: float) -> tuple[bool, float]:
        """`judge` without the limit."""
        covered = self.since + self.keep_s
        if until <= covered:
            return True, until - self.since
        held = self.keep_s
        for start, end in self.windows:
            if start > until:
                break
            if end <= covered:
                continue
            joined = start <= covered
            held += (end if end < until else until) - (covered if joined else start)
            if until <= end:
                return joined or until >= start + self.load_s, held
            covered = end
        return False, held

    def look(self, now: float) -> tuple[bool, float]:
        """`wants` without the limit."""
        covered = self.since + self.keep_s
        if now < covered:
            return True, covered
        for start, end in self.windows:
            if now < start:
                return False, start
            if now < end:
                return True, end
        return False, NEVER

    def next_window(self, now: float) -> Window | None:
        """The window that `now` is in, or the next one."""
        for window in self.windows:
            if now < window[1]:
                return window
        return None


class Interval(Plan):
    """Warm up every `interval_s` and stay warm in between: what a cron job that calls the model does."""

    __slots__ = ("interval_s",)

    def __init__(self, since: float, interval_s: float) -> None:
        super().__init__(since, 0.0)
        self.interval_s = interval_s

    def follow(self, until: float) -> tuple[bool, float]:
        return True, until - self.since

    def look(self, now: float) -> tuple[bool, float]:
        return True, self.next_end(now)

    def next_end(self, now: float) -> float:
        """The next multiple of the interval."""
        return (math.floor(now / self.interval_s) + 1) * self.interval_s

    def next_window(self, now: float) -> Window | None:
        end = self.next_end(now)
        return end - self.interval_s, end


def joined(windows: list[Window]) -> tuple[Window, ...]:
    """Sorted windows with those that touch or overlap made one."""
    made: list[Window] = []
    for start, end in sorted(windows):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return tuple(made)


class Pattern:
    """Windows that come again every week: `parts` are (start, end) in seconds of a week that starts on Monday 00:00 UTC, sorted and apart."""

    __slots__ = ("before", "parts", "starts", "total")

    def __init__(self, parts: tuple[Window, ...]) -> None:
        self.parts = parts
        self.starts = [start for start, _ in parts]
        self.before = list(itertools.accumulate((end - start for start, end in parts), initial=0.0))
        """Warm seconds of the week before each part."""
        self.total = self.before[-1]

    def seconds(self, at: float) -> float:
        """Warm seconds from some Monday long ago to `at`."""
        week, inside = divmod(at + MONDAY_S, WEEK_S)
        index = bisect.bisect_right(self.starts, inside) - 1
        if index < 0:
            return week * self.total
        start, end = self.parts[index]
        return week * self.total + self.before[index] + min(inside, end) - start

    def window(self, at: float) -> Window | None:
        """The window that `at` is in, or the next one."""
        if not self.parts:
            return None
        inside = (at + MONDAY_S) % WEEK_S
        base = at - inside
        index = bisect.bisect_right(self.starts, inside) - 1
        if index < 0 or inside >= self.parts[index][1]:
            index += 1
        if index == len(self.parts):
            index, base = 0, base + WEEK_S
        start, end = self.parts[index]
        return base + start, base + end


class Weekly(Plan):
    """Warm for `keep_s`, then by a weekly pattern."""

    __slots__ = ("pattern",)

    def __init__(self, since: float, keep_s: float, pattern: Pattern, load_s: float) -> None:
        super().__init__(since, keep_s, (), load_s)
        self.pattern = pattern

    def follow(self, until: float) -> tuple[bool, float]:
        covered = self.since + self.keep_s
        if until <= covered:
            return True, until - self.since
        window = self.pattern.window(until)
        held = self.keep_s + self.pattern.seconds(until) - self.pattern.seconds(covered)
        if window is None or until < window[0]:
            return False, held
        return window[0] <= covered or until >= window[0] + self.load_s, held

    def look(self, now: float) -> tuple[bool, float]:
        covered = self.since + self.keep_s
        if now < covered:
            return True, covered
        window = self.pattern.window(now)
        if window is None:
            return False, NEVER
        return (True, window[1]) if now >= window[0] else (False, window[0])

    def next_window(self, now: float) -> Window | None:
        return self.pattern.window(now)
