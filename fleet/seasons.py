"""What each half-hour of the week usually brings: a mean over weeks, drawn towards a mean over days while weeks are few. Standard library only."""

from __future__ import annotations

from array import array

SLOT_S = 1800.0
DAY_SLOTS, WEEK_SLOTS = 48, 336
WEEK_S = WEEK_SLOTS * SLOT_S
FIRST_SLOT = 3 * DAY_SLOTS
"""1 January 1970 was a Thursday: places are counted from Monday 00:00 UTC."""
PRIOR = 3.0
"""So many weeks of its own a half-hour needs to count as much as those of other days beside it."""
LEAST_WEEK_SHARE, LEAST_DAY_SHARE = 0.25, 0.1
"""What the newest week or day counts for at least."""


def slot_of(at: float) -> int:
    """Half-hours since the epoch."""
    return int(at // SLOT_S)


def place_of(slot: int) -> int:
    """A slot's place in its week, 0 for Monday 00:00 UTC."""
    return (slot + FIRST_SLOT) % WEEK_SLOTS


def day_index(place: int) -> int:
    """Place in the profile of days: 0 to 47 from Monday to Friday, 48 to 95 at the weekend."""
    return place % DAY_SLOTS + (DAY_SLOTS if place >= 5 * DAY_SLOTS else 0)


class Profile:
    """1.7 kB; `close` takes half-hours in their order."""

    __slots__ = ("closed", "day", "week")

    def __init__(self) -> None:
        self.week = array("f", bytes(4 * WEEK_SLOTS))
        self.day = array("f", bytes(8 * DAY_SLOTS))
        self.closed = 0.0

    def close(self, slot: int, count: float) -> None:
        """A half-hour that ended, and what it brought."""
        place = place_of(slot)
        share = max(1.0 / (1.0 + self.closed // WEEK_SLOTS), LEAST_WEEK_SHARE)
        self.week[place] += share * (count - self.week[place])
        index = day_index(place)
        days = self.closed / WEEK_SLOTS * (2.0 if index >= DAY_SLOTS else 5.0)
        share = max(1.0 / (1.0 + round(days)), LEAST_DAY_SHARE)
        self.day[index] += share * (count - self.day[index])
        self.closed += 1.0

    def expected(self, place: int) -> float:
        """What the half-hour at `place` of the week usually brings; 0 before anything is known."""
        weeks = self.closed // WEEK_SLOTS
        index = day_index(place)
        start = index - index % DAY_SLOTS
        before, after = self.day[start + (index - 1) % DAY_SLOTS], self.day[start + (index + 1) % DAY_SLOTS]
        return (weeks * self.week[place] + PRIOR * (0.5 * self.day[index] + 0.25 * (before + after))) / (weeks + PRIOR)

    def smooth(self, at: float) -> float:
        """`expected` at a moment, interpolated between the middles of half-hours; 0 before a whole day is known."""
        if self.closed < DAY_SLOTS:
            return 0.0
        position = at / SLOT_S - 0.5
        slot = int(position // 1)
        share = position - slot
        return (1.0 - share) * self.expected(place_of(slot)) + share * self.expected(place_of(slot + 1))
