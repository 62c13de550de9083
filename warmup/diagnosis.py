"""Is warm-up needed, and what for? The first requests of fresh processes against those right behind them, and where the time went."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from pipeline.errors import TrialError
from pipeline.records import Trial
from pipeline.strict import Record
from pipeline.verdicts import Interval, Verdict, judge
from warmup.latency import estimate, p50, settled_after, trials_needed

LEADING, LOOKED_AT, FACTOR = 3, 10, 2.0
"""A process is cold when one of its first three of ten requests takes more than twice as long as the median of the other seven."""
SIDE_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class LeadingRequest(Record):
    """Request `number` (from 1) over the median of requests 4 to 10 of its own process: median over processes and its interval.

    `verdict`: FAIL when it is slow for certain (the interval is above `FACTOR`), PASS when it is not, else UNDECIDED.
    """

    number: int
    ratio: float
    interval: Interval | None
    excess_ms: float
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Diagnosis(Record):
    """Of one variant: which of the first requests are slow, by how much, and how long each phase up to them took (ms, medians).

    `settles_after`: how many requests come before the steady ones.

    `warm_up_needed`: FAIL when a leading request is slow for certain, PASS when none is, else UNDECIDED; `decide` says what would tell.
    """

    SCHEMA: ClassVar[str] = "qwarm.diagnosis/1"
    variant: str
    processes: int
    leading: tuple[LeadingRequest, ...]
    warm_up_needed: Verdict
    phase_ms: dict[str, float]
    steady_p50_ms: float
    settles_after: int
    decide: str


def diagnose(trials: Sequence[Trial], variant: str, side_confidence: float = SIDE_CONFIDENCE) -> Diagnosis:
    """Diagnose the trials of `variant`. Raises TrialError when there is none, or one with fewer than ten requests."""
    chosen = [trial for trial in trials if trial.variant == variant]
    few = min((len(trial.requests_ms) for trial in chosen), default=0)
    if few < LOOKED_AT:
        got = f"{len(chosen)} processes, the shortest with {few} requests"
        raise TrialError("A diagnosis needs more requests", where=variant, expected=f"processes with {LOOKED_AT} requests each", got=got)
    leading = tuple(_leading(chosen, number, side_confidence) for number in range(1, LEADING + 1))
    verdicts = {request.verdict for request in leading}
    needed = next((verdict for verdict in (Verdict.FAIL, Verdict.UNDECIDED) if verdict in verdicts), Verdict.PASS)
    decide = ""
    if needed is Verdict.UNDECIDED:
        least = trials_needed(side_confidence)
        decide = f"at least {least} processes" if len(chosen) < least else f"more processes, for example {2 * len(chosen)}"
    return Diagnosis(
        variant,
        len(chosen),
        leading,
        needed,
        phases(chosen),
        statistics.median(p50(trial.requests_ms) for trial in chosen),
        settled_after(chosen),
        decide,
    )


def _leading(trials: Sequence[Trial], number: int, side_confidence: float) -> LeadingRequest:
    rest = [float(np.median(trial.requests_ms[LEADING:LOOKED_AT])) for trial in trials]
    times = [trial.requests_ms[number - 1] for trial in trials]
    found = estimate([time / median for time, median in zip(times, rest, strict=True)], side_confidence)
    assert found is not None
    verdict = Verdict.UNDECIDED if found.interval is None else judge(found.interval, FACTOR)
    excess = statistics.median(time - median for time, median in zip(times, rest, strict=True))
    return LeadingRequest(number, found.figure, found.interval, excess, verdict)


def phases(trials: Sequence[Trial]) -> dict[str, float]:
    """How long each phase took by itself (ms, median over processes), in the order they ran: a trial's marks count from the process's start."""
    order = sorted(trials[0].phases_ms, key=lambda name: trials[0].phases_ms[name])
    spent: dict[str, float] = {}
    for before, name in zip([None, *order[:-1]], order, strict=True):
        spent[name] = statistics.median(trial.phases_ms[name] - (trial.phases_ms[before] if before else 0.0) for trial in trials)
    return spent
