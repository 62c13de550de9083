"""The gates on time: verdicts at their limits, and what an unsteady control or a busy machine excuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from measured import LIMITS, STEADY, check, drift, judged, slow_first, slow_tail, validation

from pipeline.records import Validation, Verdict
from release import gates


@pytest.mark.parametrize(
    ("name", "measured", "verdict"),
    [
        ("first_request_over_p50", {"first": (1.49,)}, Verdict.PASS),
        ("first_request_over_p50", {"first": (1.51,)}, Verdict.FAIL),
        ("first_request_over_p50", {"first": (1.2, 1.8, 1.4)}, Verdict.UNDECIDED),
        ("p99_over_p50", {"slowest": (1.29,)}, Verdict.PASS),
        ("p99_over_p50", {"slowest": (1.31,)}, Verdict.FAIL),
        ("int8_speedup", {"p50": (1.99,)}, Verdict.PASS),
        ("int8_speedup", {"p50": (2.01,)}, Verdict.FAIL),
        ("int8_speedup", {"p50": (1.2, 2.8, 1.9)}, Verdict.UNDECIDED),
    ],
)
def test_latency_checks_at_their_limits_with_a_steady_control(name: str, measured: dict[str, Sequence[float]], verdict: Verdict) -> None:
    evidence = judged(validation(**measured))
    found = check(evidence, name)
    assert (found.verdict, found.excused) == (verdict, False)
    assert evidence.ships is (verdict is Verdict.PASS)
    assert found.interval is not None
    assert found.interval.side_confidence == 0.999


def test_the_latency_interval_is_the_second_to_the_fourteenth_of_fifteen() -> None:
    firsts = [1.0 + k / 100 for k in range(15)]
    interval = check(judged(validation(first=firsts)), "first_request_over_p50").interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((1.01, 1.13))


def test_ten_processes_are_the_fewest_that_bound_anything() -> None:
    few = judged(validation(9))
    for found in few.checks[4:]:
        assert (found.verdict, found.interval, found.excused) == (Verdict.UNDECIDED, None, False)
        assert found.decide == "1 more fresh processes a variant"
    assert few.refuses
    assert judged(validation(10)).ships


@pytest.mark.parametrize(
    ("name", "measured", "control"),
    [("first_request_over_p50", {"first": (9.0,)}, slow_first(1.6)), ("p99_over_p50", {"slowest": (9.0,)}, slow_tail(1.6))],
)
def test_where_the_control_is_beyond_the_limit_the_check_is_undecided_and_excused(
    name: str, measured: dict[str, Sequence[float]], control: list[float]
) -> None:
    evidence = judged(validation(**measured, control=(control,)))
    found = check(evidence, name)
    assert (found.verdict, found.excused) == (Verdict.UNDECIDED, True)
    assert "own ratio was 1.6x" in found.evidence
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.PASS, True, False)
    assert name in evidence.reason
    assert evidence.reason.startswith("ships with ")


def test_a_control_only_sometimes_beyond_the_limit_excuses_what_it_can_explain() -> None:
    """In 5 of 15 processes the control took 2x: its median is fine, its upper bound (the 14th) is 2."""
    control = (slow_first(2.0), STEADY, STEADY)
    excused = check(judged(validation(first=(1.6,), control=control)), "first_request_over_p50")
    assert (excused.verdict, excused.excused) == (Verdict.UNDECIDED, True)
    worse = check(judged(validation(first=(9.0,), control=control)), "first_request_over_p50")
    assert (worse.verdict, worse.excused) == (Verdict.FAIL, False)


def test_a_pass_beside_an_unsteady_control_stays_a_pass() -> None:
    found = check(judged(validation(control=(slow_first(5.0),))), "first_request_over_p50")
    assert (found.verdict, found.excused) == (Verdict.PASS, False)


def test_an_unsteady_control_excuses_nothing_when_processes_are_too_few() -> None:
    evidence = judged(validation(9, first=(9.0,), control=(slow_first(5.0),)))
    assert not check(evidence, "first_request_over_p50").excused
    assert evidence.refuses


def test_int8_slower_than_float_fails_unless_the_control_moved_as_much() -> None:
    moving = [1.0] * 59 + [1.3] * 40
    slow = (2.2,)  # INT8 takes 2.2 ms where FP32 takes 2
    steady = check(judged(validation(p50=slow)), "int8_speedup")
    assert (steady.verdict, steady.excused) == (Verdict.FAIL, False)
    assert steady.figure == pytest.approx(2.0 / 2.2)
    drifted = check(judged(validation(p50=slow, control=(moving,))), "int8_speedup")
    assert (drifted.verdict, drifted.excused) == (Verdict.UNDECIDED, True)
    assert "up to 1.3x" in drifted.evidence
    too_slow = check(judged(validation(p50=(3.0,), control=(moving,))), "int8_speedup")
    assert (too_slow.verdict, too_slow.excused) == (Verdict.FAIL, False)


def test_without_control_samples_nothing_is_excused() -> None:
    found = check(judged(validation(first=(9.0,), control=((),))), "first_request_over_p50")
    assert (found.verdict, found.excused) == (Verdict.FAIL, False)


def test_a_variant_that_never_ran_is_not_measured() -> None:
    whole = validation()
    trials = tuple(trial for trial in whole.coldstart.trials if trial.variant == "cold")
    evidence = judged(dataclasses.replace(whole, coldstart=dataclasses.replace(whole.coldstart, trials=trials)), required=False)
    assert [found.verdict for found in evidence.checks[4:]] == [Verdict.NOT_MEASURED] * 4
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, False)
    assert "warm_first_over_p50" not in evidence.figures


@pytest.mark.parametrize(
    ("measured", "more"),
    [
        (validation(), False),
        (validation(9), True),
        (validation(first=(1.2, 1.8, 1.4)), True),
        (validation(first=(9.0,)), False),  # decided: FAIL
        (validation(first=(9.0,), control=(slow_first(1.6),)), True),
        (validation(rows=drift(0, 0, 50, 49)), False),  # undecided, but only more rows would help
    ],
)
def test_more_trials_are_asked_for_only_where_they_can_decide(measured: Validation, more: bool) -> None:
    assert gates.needs_more_trials(measured, LIMITS) is more


def busy(measured: Validation, share: float) -> Validation:
    trials = tuple(dataclasses.replace(trial, busy_elsewhere=share) for trial in measured.coldstart.trials)
    return dataclasses.replace(measured, coldstart=dataclasses.replace(measured.coldstart, trials=trials))


@pytest.mark.parametrize(
    ("first", "share", "verdict", "excused"),
    [
        ([1.1, 1.1, 9.0], 0.5, Verdict.UNDECIDED, True),  # a third of the processes beyond the limit, on a busy machine
        ([1.1, 1.1, 9.0], 0.05, Verdict.UNDECIDED, False),
        ([9.0], 0.5, Verdict.FAIL, False),  # shown in spite of the noise
        ([1.1], 0.5, Verdict.PASS, False),
    ],
)
def test_a_busy_machine_excuses_what_is_undecided_and_nothing_else(first: list[float], share: float, verdict: Verdict, excused: bool) -> None:
    evidence = judged(busy(validation(first=first), share))
    check = next(check for check in evidence.checks if check.name == "first_request_over_p50")
    assert (check.verdict, check.excused) == (verdict, excused)
    assert ("50 % of the processors" in check.evidence) == excused
    assert evidence.ships == (verdict is Verdict.PASS or excused)


def test_requests_behind_the_first_count_as_well() -> None:
    """The first is fast, and the next four are not: neither the first request's ratio nor the steady tail sees them."""
    whole = validation()
    slow = (1.0, *[4.0] * 4, *[1.0] * 95)
    trials = tuple(dataclasses.replace(trial, requests_ms=slow) if trial.variant == "warm" else trial for trial in whole.coldstart.trials)
    evidence = judged(dataclasses.replace(whole, coldstart=dataclasses.replace(whole.coldstart, trials=trials)))
    assert {found.name for found in evidence.checks if found.verdict is Verdict.FAIL} == {"warm_sufficiency"}
    assert check(evidence, "warm_sufficiency").figure == 4.0


@pytest.mark.parametrize(("share", "verdict"), [(0.5, Verdict.UNDECIDED), (0.05, Verdict.FAIL)])
def test_a_tail_beyond_its_limit_is_no_fault_of_the_engines_where_others_took_the_processors(share: float, verdict: Verdict) -> None:
    evidence = judged(busy(validation(slowest=[9.0]), share))
    for name in ("warm_sufficiency", "p99_over_p50"):
        found = check(evidence, name)
        assert (found.verdict, found.excused) == (verdict, verdict is Verdict.UNDECIDED)
    assert evidence.refuses is (verdict is Verdict.FAIL)
