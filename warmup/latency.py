"""Latency statistics over fresh processes: the process is the unit, because requests of one process share its luck.

Each process gives one ratio; the figure is the median over processes and its interval is distribution-free. A ratio is
taken inside one process (first request over its own steady p50) or between two processes of one interleaved round, so
that a slow spell of the machine weighs on both sides of it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline.errors import TrialError
from pipeline.records import Trial
from pipeline.verdicts import Interval

UNSTEADY_SHARE = 0.2
"""Part of a process's requests, from the start, that does not count as steady. Fixed beforehand, so that no request is
dropped for being slow: an unwarmed OpenVINO engine is within 1.03 of its p50 after 10 requests."""
FEWEST_REQUESTS = 5
SETTLED, WINDOW = 1.1, 5


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Median over processes with its interval, or None where so few processes give no bound at this confidence."""

    values: tuple[float, ...]
    figure: float
    interval: Interval | None


def steady(samples_ms: Sequence[float]) -> np.ndarray:
    """The steady samples (ms): without the first fifth, which holds the first request.

    Raises TrialError for fewer than five samples, or one that is not a positive, finite time.
    """
    samples = np.asarray(samples_ms, dtype=np.float64)
    if len(samples) < FEWEST_REQUESTS:
        raise TrialError(
            "A measured process answered too few requests", where="latency", expected=f"{FEWEST_REQUESTS} or more", got=str(len(samples))
        )
    if not (np.isfinite(samples) & (samples > 0)).all():
        worst = int(np.flatnonzero(~(np.isfinite(samples) & (samples > 0)))[0])
        raise TrialError("A measured time is no time", where=f"request {worst}", expected="more than 0 ms", got=str(samples[worst]))
    return samples[math.ceil(UNSTEADY_SHARE * len(samples)) :]


def settled_after(trials: Sequence[Trial]) -> int:
    """After how many requests processes of one variant are steady: the first place from which `WINDOW` in a row are within `SETTLED` of p50, each
    in the median over the processes; all there are where none is.

    Averaging over replications finds what every process pays at the same place and no noise of one (Welch, "The statistical analysis of simulation
    results", in Computer Performance Modeling Handbook, 1983). MSER-5 of each process alone cuts a workload that is steady from its start in
    16 of 30 processes (measured), by up to half, and so loses slow requests.
    """
    length = min(len(trial.requests_ms) for trial in trials)
    profile = np.median([np.asarray(trial.requests_ms[:length]) / p50(trial.requests_ms) for trial in trials], axis=0)
    within = profile <= SETTLED
    return next((place for place in range(length - WINDOW + 1) if within[place : place + WINDOW].all()), length)


def p50(samples_ms: Sequence[float]) -> float:
    """Median steady time (ms)."""
    return float(np.median(steady(samples_ms)))


def p99(samples_ms: Sequence[float]) -> float:
    """99th percentile of the steady times (ms), interpolated linearly: with 100 steady requests nearly the second largest."""
    return float(np.quantile(steady(samples_ms), 0.99))


def first_over_p50(samples_ms: Sequence[float]) -> float:
    """The first request's time over the steady median."""
    return float(samples_ms[0]) / p50(samples_ms)


def p99_over_p50(samples_ms: Sequence[float]) -> float:
    """How much slower the slowest hundredth is than the median, when steady."""
    return p99(samples_ms) / p50(samples_ms)


def half_over_half(samples_ms: Sequence[float]) -> float:
    """Median of the later half of the steady samples over that of the earlier half: 1 on a steady machine."""
    samples = steady(samples_ms)
    return float(np.median(samples[len(samples) // 2 :]) / np.median(samples[: len(samples) // 2]))


def variant(trials: Iterable[Trial], name: str) -> tuple[Trial, ...]:
    """The trials of one variant, in the order they ran."""
    return tuple(trial for trial in trials if trial.variant == name)


def per_process(trials: Iterable[Trial], statistic: Callable[[Sequence[float]], float], control: bool = False) -> tuple[float, ...]:
    """One value a process: `statistic` of its requests, or of its control workload's samples where it took enough of them."""
    if not control:
        return tuple(statistic(trial.requests_ms) for trial in trials)
    return tuple(statistic(trial.control_ms) for trial in trials if len(trial.control_ms) >= FEWEST_REQUESTS)


def paired(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Ratios round by round of two interleaved variants: `above[k] / below[k]` ran side by side.

    Raises TrialError when a round is not complete: pairs could then no longer be told.
    """
    if len(above) != len(below):
        raise TrialError(
            "Two interleaved variants have different numbers of processes",
            where="latency",
            expected="complete rounds",
            got=f"{len(above)} and {len(below)}",
        )
    return tuple(one / other for one, other in zip(above, below, strict=True))


def median_interval(values: Sequence[float], side_confidence: float) -> Interval | None:
    """Distribution-free interval of the median from independent `values`: two order statistics, exact by the binomial.

    The k-th smallest exceeds the true median only when fewer than k of n values fall below it: chance
    P(Binomial(n, 1/2) < k), which must be at most 1 - side_confidence (David & Nagaraja, Order Statistics, 3rd ed., 7.1).
    None where even the extremes are no bound at that confidence: see `trials_needed`.
    """
    ordered, count = sorted(values), len(values)
    rank, below = 0, 0
    while 2 * (rank + 1) <= count + 1:
        below += math.comb(count, rank)
        if below / 2**count > 1 - side_confidence:
            break
        rank += 1
    return Interval(low=ordered[rank - 1], high=ordered[count - rank], side_confidence=side_confidence) if rank else None


def trials_needed(side_confidence: float) -> int:
    """Fewest processes that bound the median at this confidence: the smallest n with 2^-n at most 1 - side_confidence."""
    return max(1, math.ceil(-math.log2(1 - side_confidence) - 1e-9))


def estimate(values: Sequence[float], side_confidence: float) -> Estimate | None:
    """Median and interval of one value a process; None without any value."""
    if not values:
        return None
    return Estimate(values=tuple(values), figure=float(statistics.median(values)), interval=median_interval(values, side_confidence))
