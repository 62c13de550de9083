"""Gates: each check's verdict at its limit, and who ships, is left out or refuses."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from measured import BOUND_TO, LIMITS, check, drift, judged, validation
from scipy import stats

from pipeline.records import Census, Check, Evidence, Verdict
from release import gates, paired


def test_a_good_build_ships_with_every_figure() -> None:
    evidence = judged(validation())
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.PASS, True, False)
    assert evidence.reason == "ships: all 8 checks passed"
    names = ["accuracy_drop", "int8_share", "runtimes_agree", "rebuild_variance", "int8_speedup", "first_request_over_p50"]
    names += ["warm_sufficiency", "p99_over_p50"]
    assert [found.name for found in evidence.checks] == names
    assert {found.verdict for found in evidence.checks} == {Verdict.PASS}
    assert evidence.bound_to == BOUND_TO
    assert evidence.machine == {"cpu": "x"}
    expected = {
        "float_accuracy": 0.975, "int8_accuracy": 0.975, "drop": 0.0, "agreement": 0.99, "sqnr_db": 25.0, "validation_rows": 2000.0,
        "int8_share": 0.95, "trials": 15.0, "cold_first_over_p50": 9.0, "warm_first_over_p50": 1.1, "cold_first_request_ms": 9.0,
        "warm_first_request_ms": 1.1, "steady_p50_ms": 1.0, "float_p50_ms": 2.0, "speedup": 2.0, "ready_ms": 300.0, "peak_rss_mb": 80.0,
        "steady_p99_ms": 1.1, "engine_mb": 2.5,
    }  # fmt: skip
    assert evidence.figures == pytest.approx(expected)


def test_the_drop_check_carries_the_paired_interval_and_what_would_decide() -> None:
    few = check(judged(validation(rows=drift(1, 0, 100, 98))), "accuracy_drop")
    assert few.verdict is Verdict.UNDECIDED
    assert few.interval == paired.compare(1, 0, 100)
    assert (few.figure, few.limit, few.limit_is, few.unit) == (0.01, 0.01, "max", "fraction")
    assert "no number of rows" in few.decide  # the observed drop is the limit itself
    assert "about 310 validation rows" in check(judged(validation(rows=drift(0, 0, 100, 98))), "accuracy_drop").decide
    assert check(judged(validation(rows=drift(90, 2))), "accuracy_drop").verdict is Verdict.FAIL


def test_reference_accuracy_is_judged_only_when_asked_with_an_exact_binomial_interval() -> None:
    wrong = judged(validation(rows=drift(2, 2, 2000, 1000)))
    assert wrong.ships
    limits = LIMITS.model_copy(update={"min_reference": 0.9})
    evidence = judged(validation(rows=drift(2, 2, 2000, 1000)), limits)
    reference = check(evidence, "reference_accuracy")
    assert (reference.verdict, reference.figure) == (Verdict.FAIL, 0.5)
    assert evidence.refuses
    exact = stats.binomtest(1000, 2000).proportion_ci(0.9, method="exact")
    assert reference.interval is not None
    assert (reference.interval.low, reference.interval.high) == pytest.approx((exact.low, exact.high))
    assert check(judged(validation(rows=drift(0, 0, 2000, 2000)), limits), "reference_accuracy").verdict is Verdict.PASS
    assert check(judged(validation(rows=drift(0, 0, 20, 19)), limits), "reference_accuracy").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("share", "verdict"), [(0.9, Verdict.PASS), (0.8999, Verdict.FAIL)])
def test_int8_share_is_exact(share: float, verdict: Verdict) -> None:
    found = check(judged(validation(share=share)), "int8_share")
    assert (found.verdict, found.figure, found.interval) == (verdict, share, None)


@pytest.mark.parametrize("nothing", [Census((), 0.0), None])
def test_a_census_that_counted_nothing_or_was_never_taken_is_not_measured(nothing: Census | None) -> None:
    evidence = judged(dataclasses.replace(validation(), census=nothing))
    assert ("int8_share" in evidence.figures) == (nothing is not None)
    assert check(evidence, "int8_share").verdict is Verdict.NOT_MEASURED
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, True)


def one(verdict: Verdict, excused: bool = False) -> Check:
    return Check("some_check", verdict, 2.0, None, 1.5, "max", "ratio", "evidence", "", excused)


OUTCOMES = [
    (Verdict.PASS, False, True, "refuse", (True, False)),
    (Verdict.FAIL, False, True, "leave-out", (False, True)),
    (Verdict.FAIL, False, False, "refuse", (False, False)),
    (Verdict.UNDECIDED, False, True, "leave-out", (False, True)),
    (Verdict.UNDECIDED, False, True, "refuse", (False, True)),
    (Verdict.UNDECIDED, False, False, "leave-out", (False, False)),
    (Verdict.UNDECIDED, False, False, "refuse", (False, True)),
    (Verdict.UNDECIDED, True, True, "refuse", (True, False)),
    (Verdict.UNDECIDED, True, False, "leave-out", (True, False)),
    (Verdict.NOT_MEASURED, False, True, "leave-out", (False, True)),
    (Verdict.NOT_MEASURED, False, False, "refuse", (False, False)),
]


@pytest.mark.parametrize(("verdict", "excused", "required", "undecided", "expected"), OUTCOMES)
def test_who_ships_who_is_left_out_and_who_refuses(
    verdict: Verdict, excused: bool, required: bool, undecided: gates.Undecided, expected: tuple[bool, bool]
) -> None:
    ships, refuses, reason = gates.outcome((one(Verdict.PASS), one(verdict, excused)), required=required, undecided=undecided)
    assert (ships, refuses) == expected
    assert reason.startswith("ships" if ships else "refuses the release" if refuses else "left out of the release")
    if not ships:
        assert "some_check is" in reason


def test_no_check_at_all_never_ships() -> None:
    for required, undecided in itertools.product((True, False), ("refuse", "leave-out")):
        assert gates.outcome((), required=required, undecided=undecided)[0] is False


def test_a_reason_names_every_failing_check_with_figure_and_limit() -> None:
    reason = judged(validation(first=(3.0,), share=0.5)).reason
    assert "int8_share is FAIL, 50.00 % where at least 90 % is allowed" in reason
    assert "first_request_over_p50 is FAIL, 3.00x where at most 1.5x is allowed" in reason
    assert "accuracy_drop" not in reason


def test_a_target_without_hardware_is_not_measured() -> None:
    evidence = gates.not_measured("tensorrt-rtx", "no NVIDIA GPU here", required=False, machine={}, measured_at="2026-12-01T00:00:00+00:00")
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, False)
    assert "no NVIDIA GPU here" in evidence.reason
    assert gates.not_measured("tensorrt-rtx", "no GPU", required=True, machine={}, measured_at="").refuses
    assert Evidence.from_json(evidence.to_json()) == evidence
