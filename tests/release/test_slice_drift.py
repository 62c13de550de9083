"""Slices of a metric that is not right or wrong for each row: a bad one is found, a small one decides nothing, and many need more to fail."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from measured import LIMITS, drift, validation
from sklearn import metrics

from pipeline.records import DriftReport, SliceDrift, Verdict
from release import charts, gates, known_metrics
from release import drift as measuring
from release.slice_check import slice_check

ROWS = 900
RANDOM = np.random.default_rng(5)
LABELS = RANDOM.integers(0, 3, ROWS)
REFERENCE = (np.eye(3)[LABELS] + 0.3 * RANDOM.standard_normal((ROWS, 3))).astype(np.float32)
SITES = ["b" if place % 3 == 0 else "a" for place in range(ROWS)]
BAD = REFERENCE.copy()
BAD[::6] = BAD[::6, ::-1]  # every second row of site b answers another class


def margin(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    return outputs["logits"][np.arange(len(labels)), labels]


def report(function: Any, engine: np.ndarray = BAD, sites: list[str] = SITES) -> DriftReport:
    found = measuring.measure(
        {"logits": REFERENCE}, {"logits": engine}, LABELS, metric="f1", function=function, validation_root="ab" * 32, slices={"site": sites}
    )
    assert DriftReport.from_json(found.to_json()) == found
    return found


@pytest.mark.parametrize("function", [known_metrics.f1, margin])
def test_the_slice_that_got_worse_is_named_though_the_mean_may_hold(function: Any) -> None:
    found = report(function)
    good, bad = found.slices
    assert (good.name, good.drop, bad.name, bad.rows) == ("site a", 0.0, "site b", 300)
    assert bad.drop is not None
    assert bad.drop > 0.2
    assert bad.interval is not None
    assert bad.corrected is not None
    assert bad.corrected.low < bad.interval.low < bad.drop < bad.interval.high < bad.corrected.high
    assert (bad.lost, bad.agreement) == (None, pytest.approx(0.667, abs=0.02))
    check = slice_check(found, 0.1)
    assert (check.verdict, check.figure, check.interval, check.unit) == (Verdict.FAIL, bad.drop, bad.corrected, "f1")
    assert check.evidence.startswith("site b: 300 rows; the worst of 2 slices")
    assert slice_check(found, 0.5).verdict is Verdict.PASS
    near = slice_check(found, bad.drop + 0.01)
    assert (near.verdict, "validation rows of site b" in near.decide) == (Verdict.UNDECIDED, True)
    assert charts.drift(found, (check,)).count("site b") >= 1


def test_a_class_has_its_own_f1_over_all_rows() -> None:
    """One row of class 0 is taken for class 1: both lose a little; among the rows of class 0 alone, macro F1 would be halved."""
    engine = REFERENCE.copy()
    rows = np.flatnonzero((LABELS == 0) & (REFERENCE.argmax(axis=1) == 0))[:9]
    engine[rows] = [0, 1, 0]
    found = measuring.measure(
        {"logits": REFERENCE}, {"logits": engine}, LABELS, metric="f1", function=known_metrics.f1, validation_root="ab" * 32, slices={"class": []}
    )
    answers = engine.argmax(axis=1)
    for k, part in enumerate(found.slices):
        assert part.engine_value == pytest.approx(metrics.f1_score(k == LABELS, answers == k))
        assert part.interval is not None
        assert part.drop is not None
        assert part.interval.low <= part.drop <= part.interval.high
    assert [part.drop > 0 for part in found.slices if part.drop is not None] == [True, True, False]
    assert slice_check(found, 0.1).verdict is Verdict.PASS
    assert slice_check(found, 0.001).verdict is Verdict.FAIL


def test_a_slice_of_too_few_rows_decides_nothing_and_says_so() -> None:
    found = report(known_metrics.f1, REFERENCE, ["tiny" if place < 10 else "rest" for place in range(ROWS)])
    tiny = found.slices[1]
    assert (tiny.rows, tiny.drop, tiny.interval, tiny.fault) == (10, None, None, "There are too few rows for a metric: 10")
    check = slice_check(found, 0.9)
    assert (check.verdict, check.figure) == (Verdict.UNDECIDED, None)
    assert "take site tiny out" in check.decide


def test_what_so_few_resamples_cannot_show_never_fails() -> None:
    many = report(known_metrics.f1, BAD, [f"{place % 45}" if place % 3 == 0 else f"x{place % 30}" for place in range(ROWS)])
    assert len(many.slices) < 50
    assert all(part.corrected for part in many.slices if part.drop is not None)
    more = tuple(SliceDrift("site", str(k), 300, 0.9, 0.5, None, None, 1.0, many.slices[0].interval, None, "2000 resamples") for k in range(60))
    assert slice_check(dataclasses.replace(many, slices=more), 0.01).verdict is Verdict.UNDECIDED


def test_the_limit_of_a_slice_is_in_the_metrics_unit() -> None:
    limits = LIMITS.model_copy(update={"metric": "metric.py:mine", "max_slice_drop": 7.0, "max_drop": 5.0})
    checks = gates.checks_of(validation(rows=drift()), limits)
    assert next(check for check in checks if check.name == "worst_slice").limit == 7.0
