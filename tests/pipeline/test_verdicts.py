"""PASS, FAIL, UNDECIDED: ends of the interval against the limit, on either side."""

from __future__ import annotations

import pytest

from pipeline.verdicts import Check, Interval, Verdict, combine, judge


@pytest.mark.parametrize(
    ("low", "high", "limit", "limit_is", "verdict"),
    [
        (0.0, 0.004, 0.005, "max", Verdict.PASS),
        (0.0, 0.005, 0.005, "max", Verdict.PASS),
        (0.005, 0.02, 0.005, "max", Verdict.UNDECIDED),
        (0.0051, 0.02, 0.005, "max", Verdict.FAIL),
        (1.2, 1.4, 1.0, "min", Verdict.PASS),
        (1.0, 1.4, 1.0, "min", Verdict.PASS),
        (0.9, 1.0, 1.0, "min", Verdict.UNDECIDED),
        (0.8, 0.99, 1.0, "min", Verdict.FAIL),
    ],
)
def test_judge(low: float, high: float, limit: float, limit_is: str, verdict: Verdict) -> None:
    assert judge(Interval(low, high, 0.95), limit, limit_is) is verdict


def check(verdict: Verdict, excused: bool = False) -> Check:
    return Check("c", verdict, None, None, None, "max", "ratio", "", "", excused)


def test_the_worst_verdict_wins_and_an_excused_one_does_not_count() -> None:
    p, u, f, n = Verdict.PASS, Verdict.UNDECIDED, Verdict.FAIL, Verdict.NOT_MEASURED
    assert combine([check(p), check(p)]) is p
    assert combine([check(p), check(u)]) is u
    assert combine([check(p), check(u, excused=True)]) is p
    assert combine([check(f, excused=True), check(p)]) is f
    assert combine([check(u), check(n), check(p)]) is n
    assert combine([check(n), check(f)]) is f
    assert combine([]) is n


def test_exit_codes() -> None:
    assert [v.exit_code for v in (Verdict.PASS, Verdict.FAIL, Verdict.UNDECIDED, Verdict.NOT_MEASURED)] == [0, 3, 4, 1]
