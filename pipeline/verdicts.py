"""PASS, FAIL, UNDECIDED, NOT_MEASURED: how a figure, its interval and a limit become a verdict."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from pipeline.errors import FAULT, REFUSED, UNDECIDED
from pipeline.strict import Record


class Verdict(enum.Enum):
    """Stored by name. `exit_code` is what a command that ends on this verdict returns."""

    PASS = 0
    UNDECIDED = UNDECIDED
    FAIL = REFUSED
    NOT_MEASURED = FAULT

    @property
    def exit_code(self) -> int:
        return self.value


@dataclasses.dataclass(frozen=True)
class Interval(Record):
    """Two-sided interval whose ends are one-sided bounds at `side_confidence` each (0.95 a side is the two-sided 90 %)."""

    low: float
    high: float
    side_confidence: float


@dataclasses.dataclass(frozen=True)
class Check(Record):
    """One gate's answer with its evidence. A fraction has unit "fraction", a ratio "ratio", decibels "dB", a metric of one's own "score".

    `limit` is an upper limit when `limit_is` is "max", a lower one when "min". `excused` marks a latency check that
    a noisy machine excuses (the control workload, or what other processes took): UNDECIDED there does not refuse a required
    target. `decide` says what would decide. `waived`: who let it ship all the same, until when and why; "" where nobody did.
    """

    name: str
    verdict: Verdict
    figure: float | None
    interval: Interval | None
    limit: float | None
    limit_is: str
    unit: str
    evidence: str
    decide: str
    excused: bool = False
    waived: str = ""


def judge(interval: Interval, limit: float, limit_is: str = "max") -> Verdict:
    """PASS when the whole interval is within the limit, FAIL when it is wholly beyond, else UNDECIDED."""
    low, high = (interval.low, interval.high) if limit_is == "max" else (-interval.high, -interval.low)
    bound = limit if limit_is == "max" else -limit
    if high <= bound:
        return Verdict.PASS
    return Verdict.FAIL if low > bound else Verdict.UNDECIDED


def combine(checks: Iterable[Check]) -> Verdict:
    """The verdict of a target: FAIL beats NOT_MEASURED beats UNDECIDED beats PASS; excused UNDECIDED, and what is waived, counts as PASS.

    No check at all is NOT_MEASURED: nothing was proven.
    """
    verdicts = {Verdict.PASS if check.waived or (check.excused and check.verdict is Verdict.UNDECIDED) else check.verdict for check in checks}
    for verdict in (Verdict.FAIL, Verdict.NOT_MEASURED, Verdict.UNDECIDED, Verdict.PASS):
        if verdict in verdicts:
            return verdict
    return Verdict.NOT_MEASURED
