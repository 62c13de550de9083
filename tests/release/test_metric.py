"""A metric of one's own: its interval covers what it should, and a metric that fails is told as one error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.records import DriftReport, Verdict
from release import drift, gates, metric
from release.paired import METHOD

ROOT = "ab" * 32
ROWS = 400
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.standard_normal(ROWS)
REFERENCE = {
    "amount": (LABELS + 0.1 * RANDOM.standard_normal(ROWS))[:, None].astype(np.float32),
    "extra": RANDOM.random((ROWS, 3)).astype(np.float32),
}
ENGINE = {name: array + np.float32(0.02) * RANDOM.standard_normal(array.shape).astype(np.float32) for name, array in REFERENCE.items()}


def error_by_row(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    return -np.abs(outputs["amount"][:, 0] - labels)


def error_as_a_whole(outputs: dict[str, np.ndarray], labels: np.ndarray) -> float:
    return float(error_by_row(outputs, labels).mean())


def report(function: Any, engine: dict[str, np.ndarray] = ENGINE, labels: np.ndarray | None = LABELS) -> DriftReport:
    return drift.measure(REFERENCE, engine, labels, metric="metric.py:mine", function=function, classes=False, validation_root=ROOT)


def test_scores_by_row_give_a_paired_interval_and_survive_the_record() -> None:
    found = report(error_by_row)
    difference = error_by_row(REFERENCE, LABELS) - error_by_row(ENGINE, LABELS)
    assert found.drop == pytest.approx(difference.mean())
    assert found.interval is not None
    reach = 1.6486 * difference.std(ddof=1) / np.sqrt(ROWS)  # Student's t, 399 degrees of freedom, 95 % a side
    assert (found.interval.low, found.interval.high) == pytest.approx((difference.mean() - reach, difference.mean() + reach), rel=1e-3)
    assert (found.lost, found.gained, found.agreement, found.method) == (None, None, None, metric.BY_ROW)
    assert set(found.sqnr_db_by_output) == {"amount", "extra"}
    assert found.sqnr_db == min(value for value in found.sqnr_db_by_output.values() if value is not None)
    assert DriftReport.from_json(found.to_json()) == found


def test_one_number_is_bootstrapped_near_the_paired_interval_and_the_same_each_time() -> None:
    by_row, whole = report(error_by_row), report(error_as_a_whole)
    assert whole.drop == pytest.approx(by_row.drop)
    assert whole.interval is not None
    assert by_row.interval is not None
    width = by_row.interval.high - by_row.interval.low
    assert whole.interval.low == pytest.approx(by_row.interval.low, abs=0.15 * width)
    assert whole.interval.high == pytest.approx(by_row.interval.high, abs=0.15 * width)
    assert whole.method == metric.WHOLE
    assert report(error_as_a_whole) == whole


def test_the_bca_bound_covers_the_true_mean_of_skewed_rows_about_as_often_as_it_says() -> None:
    """One-sided 95 % upper bounds of a mean difference of 1; coverage over 60 samples, whose own deviation is 2.8 points."""
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(60):
        lost = random.exponential(1.0, 60)

        def pair(chosen: np.ndarray, lost: np.ndarray = lost) -> tuple[float, float]:
            return 0.0, float(lost[chosen].mean())

        drawn = np.array([pair(random.integers(0, 60, 60)) for _ in range(400)])[:, 1]
        left = np.array([lost[np.arange(60) != index].mean() for index in range(60)])
        covered += metric._bca(drawn, left, float(lost.mean()), 0.95).high >= 1.0
    assert covered >= 50


def test_right_or_wrong_scores_take_the_exact_method() -> None:
    def right(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
        return np.sign(outputs["amount"][:, 0]) == np.sign(labels)

    found = report(right)
    assert found.method == METHOD
    assert found.lost is not None
    assert found.interval is None
    assert found.drop == (found.lost - (found.gained or 0)) / ROWS


@pytest.mark.parametrize("function", [error_by_row, error_as_a_whole])
def test_no_difference_is_not_certainty(function: Any) -> None:
    """Equal outputs on 400 rows bound the difference as no flip in 400 would: not at zero."""
    found = report(function, {name: array.copy() for name, array in REFERENCE.items()})
    assert found.drop == 0
    assert found.interval is not None
    assert found.interval.high > 0 > found.interval.low
    assert metric.NO_DIFFERENCE in found.method


def raises(_outputs: dict[str, np.ndarray], _labels: np.ndarray) -> float:
    raise RuntimeError("no such table")


def scribbles(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    outputs["amount"][0] = 5
    return labels


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises, "RuntimeError: no such table"),
        (lambda outputs, _labels: outputs["logits"].mean(), "(?s)one of the model's outputs: amount, extra.*KeyError: 'logits'"),
        (lambda _outputs, _labels: float("nan"), "(?s)finite numbers.*nan"),
        (lambda _outputs, _labels: np.where(np.arange(ROWS) == 7, np.inf, 0.5), "inf for row 7"),
        (lambda _outputs, _labels: "good", "str: 'good'"),
        (lambda _outputs, _labels: None, "NoneType"),
        (lambda _outputs, _labels: 1 + 2j, "complex"),
        (lambda _outputs, labels: labels[:-1], r"shape \(399,\)"),
        (lambda outputs, _labels: outputs["extra"], r"shape \(400, 3\)"),
        (lambda _outputs, _labels: [[1.0], [2.0, 3.0]], "list"),
        (scribbles, "read-only"),
        (lambda: 0.0, "TypeError"),
    ],
)
def test_a_metric_that_cannot_be_used_is_one_error_with_its_name(function: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        report(function)
    assert caught.value.where == "gates.metric metric.py:mine"


def test_a_number_that_some_rows_do_not_have_is_told_as_such() -> None:
    def picky(_outputs: dict[str, np.ndarray], labels: np.ndarray) -> float:
        return 1.0 if len(np.unique(labels)) == ROWS else float("nan")

    with pytest.raises(DataError, match="(?s)on a resample of the rows.*one score a row"):
        report(picky)


def test_a_metric_may_need_no_labels_and_needs_rows() -> None:
    assert report(lambda outputs, _labels: outputs["amount"][:, 0], labels=None).metric == "metric.py:mine"
    few = {name: array[:5] for name, array in REFERENCE.items()}
    with pytest.raises(DataError, match="too few rows"):
        drift.measure(few, few, LABELS[:5], metric="m.py:f", function=error_by_row, classes=False, validation_root=ROOT)


def test_outputs_that_do_not_pair_are_refused() -> None:
    with pytest.raises(DataError, match="differ in name"):
        report(error_by_row, {"amount": ENGINE["amount"]})
    with pytest.raises(DataError, match="one shape"):
        report(error_by_row, {**ENGINE, "extra": ENGINE["extra"][:, :2]})
    broken = {**ENGINE, "extra": np.where(np.arange(ROWS)[:, None] == 3, np.nan, ENGINE["extra"])}
    with pytest.raises(DataError, match=r"(?s)row 3, output extra"):
        report(error_by_row, broken)
    with pytest.raises(ConfigError, match="Unknown metric 'top1'"):
        drift.measure(REFERENCE, ENGINE, LABELS, classes=False, validation_root=ROOT)


@pytest.mark.parametrize(("share", "verdict"), [(50, Verdict.PASS), (1.01, Verdict.UNDECIDED), (0.01, Verdict.FAIL)])
def test_the_gate_judges_the_interval_in_the_metrics_unit(share: float, verdict: Verdict) -> None:
    found = report(error_by_row)
    limit = share * found.drop
    check = gates.drop_check(found, limit)
    assert (check.name, check.unit, check.verdict) == ("metric_drop", "mine", verdict)
    assert check.interval == found.interval
    assert "metric.py:mine" in check.evidence
    assert bool(check.decide) == (verdict is Verdict.UNDECIDED)
    worse = {**ENGINE, "amount": ENGINE["amount"] + np.float32(1)}
    assert gates.drop_check(report(error_by_row, worse), limit).verdict is Verdict.FAIL
    assert gates.reference_check(found, -0.5).verdict is Verdict.PASS
    assert gates.reference_check(found, -0.01).verdict is Verdict.FAIL
