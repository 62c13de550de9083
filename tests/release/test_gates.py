"""Gates: each check's verdict at its limit, what the control excuses, and who ships, is left out or refuses."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from scipy import stats

from pipeline.config import GatesConfig
from pipeline.records import (
    Agreement,
    Attribution,
    Census,
    CensusLayer,
    Check,
    ColdStartReport,
    DriftReport,
    Evidence,
    Parity,
    Parting,
    Trial,
    Validation,
    Verdict,
)  # fmt: skip
from release import gates, paired
from release.agreement import loss_text
from release.report import target_section

LIMITS = GatesConfig(max_drop=0.01, first_request_over_p50=1.5, p99_over_p50=1.3, int8_share=0.9, int8_speedup=1.0)
BOUND_TO = {"engine_sha256": "ab" * 32, "machine_id": "cd" * 32}
STEADY = [1.0] * 99


def drift(lost: int = 2, gained: int = 2, rows: int = 2000, right: int = 1950) -> DriftReport:
    after = right - lost + gained
    drop = (lost - gained) / rows
    return DriftReport(
        "top1", rows, "ef" * 32, right / rows, after / rows, lost, gained, drop, None, None, 0.99, 25.0, {"logits": 25.0}, paired.METHOD
    )


def process(variant: str, first: float = 1.0, p50: float = 1.0, slowest: float = 1.0, control: Sequence[float] = STEADY) -> Trial:
    """A process whose first request takes `first` and whose two slowest steady ones `slowest` times its p50 (ms)."""
    requests = [first * p50] + [p50] * 97 + [slowest * p50] * 2
    return Trial(variant, {"interpreter": 20.0, "ready": 300.0}, tuple(requests), tuple(control), 80.0)


def census(share: float = 0.95) -> Census:
    return Census((CensusLayer("conv", "Convolution", "int8", 950), CensusLayer("fc", "MatMul", "f32", 50)), share)


def agreement(decibels: float | None = 27.0, parted_at: Parting | None = None) -> Agreement:
    agrees = decibels is None or decibels >= 20
    return Agreement("34" * 32, "openvino-cpu as deployed", "onnxruntime-cpu as deployed", 64, {"logits": decibels}, 20.0, agrees, parted_at)


def hop(name: str, decibels: float | None) -> Parity:
    return Parity(name, {"rows": 64}, "logits", 0.1, 0.1, decibels)


ATTRIBUTION = Attribution(
    64, (hop("simplified -> qdq", 20.0), hop("qdq -> openvino-cpu", 30.0)), (hop("simplified -> openvino-cpu", 19.5),), "simplified -> qdq",
    Parting("deep", "Conv", "y", 21.0, 35.0),
)  # fmt: skip


def validation(
    trials: int = 15,
    *,
    first: Sequence[float] = (1.1,),
    slowest: Sequence[float] = (1.1,),
    p50: Sequence[float] = (1.0,),
    control: Sequence[Sequence[float]] = (STEADY,),
    rows: DriftReport | None = None,
    share: float = 0.95,
    agreed: Agreement | None = None,
) -> Validation:
    """Interleaved rounds of cold, warm and float; each sequence is cycled over the rounds of `warm` (`float` takes 2 ms)."""
    found = []
    for k in range(trials):
        found.append(process("cold", first=9.0))
        found.append(
            process("warm", first[k % len(first)], p50[k % len(p50)], slowest[k % len(slowest)], control[k % len(control)]),
        )
        found.append(process("float", 1.2, 2.0, 1.1))
    report = ColdStartReport("openvino-cpu", "cd" * 32, "12" * 32, "2026-12-01T00:00:00+00:00", tuple(found))
    return Validation("openvino-cpu", BOUND_TO, rows or drift(), report, census(share), 2_500_000, agreed or agreement(), ATTRIBUTION)


def judged(measured: Validation, limits: GatesConfig = LIMITS, *, required: bool = True, undecided: gates.Undecided = "leave-out") -> Evidence:
    evidence = gates.judge_target(
        measured, limits, required=required, undecided=undecided, machine={"cpu": "x"}, measured_at=measured.coldstart.measured_at
    )
    assert Evidence.from_json(evidence.to_json()) == evidence  # every number is finite and every field survives
    return evidence


def check(evidence: Evidence, name: str) -> Check:
    return next(found for found in evidence.checks if found.name == name)


def test_a_good_build_ships_with_every_figure() -> None:
    evidence = judged(validation())
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.PASS, True, False)
    assert evidence.reason == "ships: all 6 checks passed"
    names = ["accuracy_drop", "int8_share", "runtimes_agree", "int8_speedup", "first_request_over_p50", "p99_over_p50"]
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
    for found in few.checks[3:]:
        assert (found.verdict, found.interval, found.excused) == (Verdict.UNDECIDED, None, False)
        assert found.decide == "1 more fresh processes a variant"
    assert few.refuses
    assert judged(validation(10)).ships


def slow_first(ratio: float) -> list[float]:
    return [ratio, *[1.0] * 98]


def slow_tail(ratio: float) -> list[float]:
    return [1.0] * 97 + [ratio] * 2


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
    assert evidence.reason.startswith(f"ships with {name} UNDECIDED")


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
    assert [found.verdict for found in evidence.checks[3:]] == [Verdict.NOT_MEASURED] * 3
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, False)
    assert "warm_first_over_p50" not in evidence.figures


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
    assert "int8_share is FAIL, 50 % where at least 90 % is allowed" in reason
    assert "first_request_over_p50 is FAIL, 3x where at most 1.5x is allowed" in reason
    assert "accuracy_drop" not in reason


def test_a_target_without_hardware_is_not_measured() -> None:
    evidence = gates.not_measured("tensorrt-rtx", "no NVIDIA GPU here", required=False, machine={}, measured_at="2026-12-01T00:00:00+00:00")
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, False)
    assert "no NVIDIA GPU here" in evidence.reason
    assert gates.not_measured("tensorrt-rtx", "no GPU", required=True, machine={}, measured_at="").refuses
    assert Evidence.from_json(evidence.to_json()) == evidence


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


def test_runtimes_that_do_not_agree_refuse_the_release_and_the_node_is_named() -> None:
    parted = Parting("deep3", "Conv", "deep3_y", 9.0, 31.0)
    evidence = judged(validation(agreed=agreement(9.1, parted)))
    found = check(evidence, "runtimes_agree")
    assert (evidence.verdict, evidence.ships, evidence.refuses, found.verdict) == (Verdict.FAIL, False, True, Verdict.FAIL)
    assert "deep3 (Conv)" in found.evidence
    assert "runtimes_agree is FAIL, 9.1 dB where at least 20.0 dB is allowed" in evidence.reason
    assert check(judged(validation(agreed=agreement(None))), "runtimes_agree").verdict is Verdict.PASS


def test_the_report_says_which_hop_and_which_node_lost_most() -> None:
    evidence = judged(validation())
    assert evidence.attribution == ATTRIBUTION
    text = "\n".join(target_section(evidence))
    sentence = "From simplified to openvino-cpu: 19.5 dB on 64 rows; 91% of the error power arises in simplified -> qdq, most at deep (Conv: 35.0 dB"
    assert sentence in text
    nothing = Attribution(64, (hop("simplified -> qdq", None),), (hop("simplified -> qdq", None),), None, None)
    assert loss_text(nothing) == "Nothing is lost from simplified to qdq on 64 rows."
