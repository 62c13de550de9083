"""The metrics known by name, against scikit-learn and SciPy, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from measured import judged, validation
from scipy import stats
from sklearn import metrics

from pipeline.errors import ConfigError, DataError
from release import drift, known_metrics, summary
from release.texts import figure_text, limit_text

RANDOM = np.random.default_rng(3)
SCORES = RANDOM.standard_normal((300, 8)).astype(np.float32)
LABELS = np.where(RANDOM.random(300) < 0.6, SCORES.argmax(axis=1), RANDOM.integers(0, 8, 300))


def test_top5_and_f1_are_those_of_scikit_learn() -> None:
    assert known_metrics.top5({"logits": SCORES}, LABELS).mean() == pytest.approx(metrics.top_k_accuracy_score(LABELS, SCORES, k=5))
    few = {"logits": SCORES[:40]}  # some classes occur only as answers
    assert known_metrics.f1(few, LABELS[:40]) == pytest.approx(metrics.f1_score(LABELS[:40], SCORES[:40].argmax(axis=1), average="macro"))


def test_spearman_is_that_of_scipy_ties_included() -> None:
    values, wanted = np.round(SCORES[:, :1], 1), np.round(SCORES[:, 0] + SCORES[:, 1], 1)
    assert known_metrics.spearman({"value": values}, wanted) == pytest.approx(stats.spearmanr(values[:, 0], wanted).statistic)


@pytest.mark.parametrize("name", ["top5", "f1"])
def test_drift_by_name(name: str) -> None:
    engine = SCORES + 0.3 * RANDOM.standard_normal(SCORES.shape).astype(np.float32)
    report = drift.measure(
        {"logits": SCORES}, {"logits": engine}, LABELS, metric=name, function=known_metrics.function(name), validation_root="ab", slices={"class": []}
    )
    assert (report.interval is None) == (name == "top5")  # right or wrong a row: counted, and exact
    assert {part.interval is None for part in report.slices} == {name == "top5"}
    assert len(report.slices) == 8
    assert 0 < report.engine_value < 1


@pytest.mark.parametrize(("name", "label", "unit"), [("f1", "f1 FP32 -> INT8", "f1"), ("top5", "top5 FP32 -> INT8", "fraction")])
def test_a_metric_is_called_by_its_name(name: str, label: str, unit: str) -> None:
    report = drift.measure({"logits": SCORES}, {"logits": SCORES}, LABELS, metric=name, function=known_metrics.function(name), validation_root="ab")
    evidence = judged(validation(rows=report))
    check = evidence.checks[0]
    assert (summary.lines(evidence)[0][0], check.unit) == (label, unit)
    assert figure_text(check) == ("0 f1" if unit == "f1" else "0.00 %")
    assert limit_text(check) == ("at most 0.01 f1" if unit == "f1" else "at most 1 %")


@pytest.mark.parametrize(
    ("name", "scores", "labels", "says"),
    [
        ("top5", SCORES[:, :5], LABELS % 5, "every label is among"),
        ("f1", SCORES[:, 0], LABELS, "class scores"),
        ("spearman", SCORES, LABELS, "one number and one numeric label"),
        ("spearman", SCORES[:, :1], None, "one number and one numeric label"),
        ("spearman", np.ones((300, 1), np.float32), LABELS, "finite numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_a_metric_cannot_score_is_refused_by_its_name(name: str, scores: np.ndarray, labels: np.ndarray | None, says: str) -> None:
    with pytest.raises(DataError, match=rf"(?s)cannot be used.*{name}.*{says}"):
        drift.measure(
            {"out": scores}, {"out": scores}, labels, metric=name, function=known_metrics.function(name), classes=False, validation_root="ab"
        )


def test_a_name_that_is_not_known_is_a_reference() -> None:
    with pytest.raises(ConfigError, match="does not name an object"):
        known_metrics.function("top3")
    assert known_metrics.function("top1") is None
