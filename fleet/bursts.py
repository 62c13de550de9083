"""Bursts: counts and runs of requests that a Poisson process of the usual rate hardly brings, and how long to stay warm in one.

The test is the Poisson surprise of Legendy and Salcman, J. Neurophysiology 53 (1985): the chance of at least as many events in as short a
time, at the usual rate. It is made at each request of a run, so a run of many is tested often. Standard library only.
"""

from __future__ import annotations

import math

RARE = 3e-4
"""Chance below which a count is a burst; with a test at each request, one ordinary request in a thousand begins a false one."""
LEAST = 3
"""Requests that are a burst at least."""
RECENT, USUAL = 0.9, 0.998
"""Weight of an older gap against the next newer one in a run's own rate (and of an older burst in their length), and in the usual rate."""
SHORT = 0.5
"""A run is of gaps that are shorter than half the usual one."""
OVER = 7.0
"""A burst is over after so many of its gaps without a request; one gap in e^7 is as long."""
SHORTEST_GAP_S = 0.5
"""A run's own rate is at most one in so long: requests of one moment are no rate."""


def poisson_tail(count: int, mean: float) -> float:
    """P(X >= count) for X ~ Poisson(mean), `mean` at least 0."""
    if count <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    first = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1.0))  # P(X = count)
    if count > mean:
        tail, term, index = first, first, count
        while term > 1e-16 * tail:
            index += 1
            term *= mean / index
            tail += term
        return tail
    below, term, index = 0.0, first, count
    while index > 0 and term > 1e-16 * below:
        term *= index / mean
        index -= 1
        below += term
    return max(0.0, 1.0 - below)


class Bursts:
    """One model's runs, told of each gap; O(1). `active`: whether the run is a burst."""

    __slots__ = ("active", "count", "elapsed_s", "ended", "gap_s", "usual", "usual_s", "weight")

    def __init__(self) -> None:
        self.active = False
        self.count, self.elapsed_s = 0, 0.0
        """Of the run."""
        self.weight = self.gap_s = 0.0
        """Gaps of the run with their weights, and their sum: its rate now."""
        self.usual = self.usual_s = 0.0
        """The same of all gaps."""
        self.ended = (0.0, 0.0)
        """Requests in bursts that ended, and how many these were, by weight."""

    def observe(self, gap_s: float) -> None:
        """A request, `gap_s` seconds after the one before."""
        usual, usual_s = self.usual, self.usual_s
        self.usual, self.usual_s = USUAL * usual + 1.0, USUAL * usual_s + gap_s
        if self.active and gap_s > OVER * max(SHORTEST_GAP_S, self.gap_s / self.weight):
            self.ended = (RECENT * self.ended[0] + self.count, RECENT * self.ended[1] + 1.0)
            self._begin()
        elif not self.active and gap_s * usual > SHORT * usual_s:
            self._begin()
        else:
            self.count += 1
            self.elapsed_s += gap_s
            self.weight, self.gap_s = RECENT * self.weight + 1.0, RECENT * self.gap_s + gap_s
            if not self.active and self.count >= LEAST and usual_s > 0.0:
                self.active = poisson_tail(self.count, self.elapsed_s * usual / usual_s) < RARE

    def _begin(self) -> None:
        self.active, self.count, self.elapsed_s, self.weight, self.gap_s = False, 0, 0.0, 0.0, 0.0

    def keep_s(self, price_s: float) -> float | None:
        """How long a request of this burst is worth waiting for, in seconds; None in no burst, or where none is.

        After a gap of t the next request comes at a rate of r p e^(-rt) / (p e^(-rt) + 1 - p): r is the run's rate and p the chance that the burst
        goes on, by the length of earlier ones (before one has ended: its own so far). That pays until it falls to 1 / price_s. The rate of few gaps
        is uncertain: some longer then.
        """
        if not self.active:
            return None
        rate = self.weight / max(SHORTEST_GAP_S * self.weight, self.gap_s)
        length = self.ended[0] / self.ended[1] if self.ended[1] else float(self.count)
        worth = length * (rate * price_s - 1.0)
        return math.log(worth) / rate * (1.0 + self.weight**-0.5) if worth > 1.0 else None


class BurstLevel:
    """A moving average that begins anew at a burst and at its end: at a count that it hardly brings, at its usual dispersion (a `Part`)."""

    __slots__ = ("dispersion", "level", "steps")

    def __init__(self) -> None:
        self.level, self.dispersion, self.steps = 0.0, 1.0, 0

    def learn(self, count: float, usual: float) -> None:  # noqa: ARG002
        """A step ended with `count`."""
        level = self.level
        if self.steps >= SETTLED and level > 0.0:
            unit = max(1.0, self.dispersion)
            self.dispersion += DISPERSION_STEP * (min((count - level) ** 2 / max(level, 0.5), MOST_DISPERSION) - self.dispersion)
            more, less = poisson_tail(math.ceil(count / unit), level / unit), 1.0 - poisson_tail(math.floor(count / unit) + 1, level / unit)
            if (more < RARE and count >= LEAST) or less < RARE:
                self.level, self.steps = count, ANEW
        self.steps += 1
        self.level += max(1.0 / self.steps, SHARE) * (count - self.level)

    def ahead(self, usuals: list[float]) -> list[float]:
        """The level, in each step."""
        return [self.level] * len(usuals)


SETTLED, ANEW = 10, 4
"""Steps of an average before it is tested; those that the count of a burst stands for."""
SHARE, DISPERSION_STEP, MOST_DISPERSION = 0.1, 0.02, 100.0
