"""What fixed keep-alives of every length would have cost: the frontier that any other policy is compared with, at an equal cold rate."""

from __future__ import annotations

import dataclasses

import numpy as np

from fleet.replay import Workload

LENGTHS = 90
SHORTEST_S, LONGEST_S = 1.0, 8 * 86400.0


@dataclasses.dataclass(frozen=True)
class Frontier:
    """Keep-alives in seconds (0 to never unloading, one for all models), each with its cold rate and its seconds of warm idle memory."""

    keep_s: np.ndarray
    cold_rate: np.ndarray
    warm_idle_s: np.ndarray
    requests: int

    def idle_at(self, cold_rate: float) -> float:
        """Least warm idle time at that cold rate, mixtures of two lengths included (the lower convex hull)."""
        least: dict[float, float] = {}
        for cold, idle in zip(self.cold_rate.tolist(), self.warm_idle_s.tolist(), strict=True):
            least[cold] = min(idle, least.get(cold, idle))
        hull: list[tuple[float, float]] = []
        for point in sorted(least.items()):
            while len(hull) > 1 and _turns(hull[-2], hull[-1], point) <= 0.0:
                hull.pop()
            hull.append(point)
        return float(np.interp(cold_rate, [cold for cold, _ in hull], [idle for _, idle in hull]))

    def least_cost(self, price_s: float) -> float:
        """Of the best length in hindsight, in seconds of warm memory."""
        return float((self.cold_rate * self.requests * price_s + self.warm_idle_s).min())


def _turns(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def frontier(workload: Workload) -> Frontier:
    """All lengths at once, by the rules of `Replay`: a request during a load waits and counts as cold, the pause begins when the load has ended,
    and a request at the very moment when the pause ends is cold."""
    keep = np.concatenate([[0.0], np.geomspace(SHORTEST_S, LONGEST_S, LENGTHS), [np.inf]])
    idle, cold, requests = np.zeros(len(keep)), np.zeros(len(keep)), 0
    for spec in workload.specs:
        times = workload.times.get(spec.name, ())
        requests += len(times)
        since = np.full(len(keep), -np.inf)
        for index, at in enumerate(times):
            gap = at - since
            loading = gap < 0.0
            if index:
                idle += np.where(loading, 0.0, np.minimum(gap, keep))
            warm = ~loading & (gap < keep) if index else np.zeros(len(keep), bool)
            cold += ~warm
            since = np.where(warm, at, np.where(loading, since, at + spec.load_s))
        if len(times):
            idle += np.minimum(np.maximum(workload.end - since, 0.0), keep)
    return Frontier(keep, cold / max(1, requests), idle, requests)
