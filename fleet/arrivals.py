"""When a model's requests came, in constant memory: gap histogram, sessions a half-hour, starts of the last sessions. Standard library only."""

from __future__ import annotations

import math
from array import array

from fleet.seasons import DAY_SLOTS, WEEK_SLOTS, Profile, place_of, slot_of

BINS = 240
BINS_PER_E = 18.0
"""Gap bins: one below a second, then each 5.7 % wider than the one before, up to a week (the last takes all that is longer)."""
SESSIONS = 24
FORGET, FORGET_S = 1.003, 3600.0
"""Weight of a gap of an hour or more against the one before: a gap counts half after 230 such. By a shorter gap the older ones fade less, in
proportion: after a burst of a hundred the pauses between bursts are still known."""
FUTURE_S = 1.0
JUMP_S = 3600.0
SCALARS = ("session_s", "first", "last", "total", "late", "future", "jumps", "session", "slot", "slot_sessions", "unit")
EDGES = (0.0, *(math.exp(index / BINS_PER_E) for index in range(BINS)))
"""`EDGES[b]` to `EDGES[b + 1]` seconds is bin `b`."""


def bin_of(gap_s: float) -> int:
    """The histogram bin of a gap in seconds."""
    return 0 if gap_s < 1.0 else min(BINS - 1, 1 + int(math.log(gap_s) * BINS_PER_E))


class Arrivals:
    """One model's past, at most 4 kB; each request is O(1), after a pause O(half-hours passed, a week's at most).

    A session starts with a request that comes more than `session_s` after the one before: what a short keep-alive cannot bridge.
    `late`, `future`, `jumps`: requests whose time was before the last one's, after the clock's, or an hour before the last one's.
    `first`, `last`, `session` (start of the running one) are seconds since the epoch, negative when there is none.
    """

    __slots__ = ("gaps", "profile", "sessions", *SCALARS)

    def __init__(self, session_s: float = 60.0) -> None:
        self.session_s = session_s
        self.gaps = array("f", bytes(4 * BINS))
        self.profile = Profile()
        """Sessions that half-hours start."""
        self.sessions = array("d")
        """Seconds from the start of each of the last sessions to the next one's, oldest first."""
        self.first = self.last = self.session = self.slot = -1.0
        self.total = self.late = self.future = self.jumps = self.slot_sessions = 0.0
        self.unit = 1.0

    def observe(self, at: float, now: float | None = None) -> float | None:
        """Take in a request at `at`, seconds since the epoch; returns the gap in seconds since the last one, None where there is none to tell.

        `now` is the clock: a time more than a second after it counts as `now`. An earlier time than the last one's counts as that; one that is an
        hour earlier is a clock that jumped, and gaps are counted afresh from there. What is not finite or negative counts as `now`, or is left out.
        """
        if not 0.0 <= at < math.inf or (now is not None and at > now + FUTURE_S):
            self.future += 1
            if now is None:
                return None
            at = now
        if at < self.last:
            self.late += 1
            if self.last - at > JUMP_S:
                self.restart(at)
            else:
                at = self.last
        self.total += 1
        self.pass_slots(at)
        gap = None
        if self.last >= 0.0:
            gap = at - self.last
            self._count_gap(gap)
        elif self.first < 0.0:
            self.first = at
        if gap is None or gap > self.session_s:
            if self.session >= 0.0:
                if len(self.sessions) == SESSIONS:
                    del self.sessions[0]
                self.sessions.append(at - self.session)
            self.session = at
            self.slot_sessions += 1
        self.last = at
        return gap

    def _count_gap(self, gap: float) -> None:
        self.gaps[bin_of(gap)] += self.unit
        self.unit *= FORGET ** min(1.0, gap / FORGET_S)
        if self.unit > 1e6:
            for index in range(BINS):
                self.gaps[index] /= self.unit
            self.unit = 1.0

    def restart(self, at: float) -> None:
        """The clock jumped to `at`: what was learnt stays, gaps and the half-hour that was being counted start anew."""
        self.jumps += 1
        self.last = self.session = -1.0
        self.slot, self.slot_sessions = float(slot_of(at)), 0.0

    def pass_slots(self, at: float) -> list[tuple[int, float, float]]:
        """Close the half-hours that ended before `at`; returns them as (slot, sessions, sessions expected before), a week's at most."""
        slot = slot_of(at)
        current = int(self.slot) if self.slot >= 0 else slot
        closed: list[tuple[int, float, float]] = []
        while current < slot:
            closed.append((current, self.slot_sessions, self.profile.expected(place_of(current))))
            self.profile.close(current, self.slot_sessions)
            self.slot_sessions = 0.0
            current = max(current + 1, slot - WEEK_SLOTS)  # of a pause that is longer, its last week says it all
        self.slot = float(slot)
        return closed

    def to_bytes(self) -> bytes:
        """All of it, below 4 kB; `from_bytes` gives an equal one."""
        scalars = array("d", [*(getattr(self, name) for name in SCALARS), self.profile.closed, len(self.sessions), *self.sessions])
        return scalars.tobytes() + self.gaps.tobytes() + self.profile.week.tobytes() + self.profile.day.tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Arrivals:
        """Raises ValueError for what `to_bytes` cannot have written."""
        tail = 4 * (BINS + WEEK_SLOTS) + 8 * DAY_SLOTS
        fixed = len(SCALARS) + 2
        if len(content) < tail + 8 * fixed or (len(content) - tail) % 8:
            raise ValueError("not the length of saved arrivals")
        head, rest = array("d", content[:-tail]), content[-tail:]
        made = cls()
        made.gaps = array("f", rest[: 4 * BINS])
        made.profile.week = array("f", rest[4 * BINS : 4 * (BINS + WEEK_SLOTS)])
        made.profile.day = array("f", rest[4 * (BINS + WEEK_SLOTS) :])
        if not all(map(math.isfinite, (*head, *made.gaps, *made.profile.week, *made.profile.day))):
            raise ValueError("saved arrivals hold a number that is not finite")
        for name, value in zip(SCALARS, head, strict=False):
            setattr(made, name, value)
        made.profile.closed, made.sessions = head[fixed - 2], head[fixed:]
        if len(made.sessions) != head[fixed - 1] or len(made.sessions) > SESSIONS or min(made.gaps) < 0 or made.unit < 1 or made.session_s <= 0:
            raise ValueError("saved arrivals hold a number that cannot be")
        return made
