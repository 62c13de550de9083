"""Drift: figures against hand counts, and outputs, rows and labels that must be refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.records import DriftReport
from release import drift
from release import drift_details as details

ROOT = "ab" * 32
REFERENCE = np.array([[2, 1, 0], [0, 2, 1], [0, 1, 2], [2, 0, 1], [1, 2, 0]], np.float32)
LABELS = np.array([0, 1, 2, 1, 0])  # the reference is right in rows 0, 1, 2


def measure(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray, **settings: Any) -> DriftReport:
    return drift.measure({"logits": reference}, {"logits": engine}, labels, **settings)


def test_figures_of_a_small_example() -> None:
    engine = REFERENCE.copy()
    engine[2] = [3, 1, 2]  # lost
    engine[3] = [0, 2, 1]  # gained
    engine[4] = [0, 1, 2]  # wrong before and after, differently
    report = measure(REFERENCE, engine, LABELS, validation_root=ROOT)
    assert (report.lost, report.gained, report.validation_rows) == (1, 1, 5)
    assert (report.reference_value, report.engine_value, report.drop) == (0.6, 0.6, 0.0)
    assert report.agreement == pytest.approx(2 / 5)
    signal, noise = 5 * 5.0, 9 + (4 + 4) + (1 + 1 + 4)
    assert report.sqnr_db == pytest.approx(10 * math.log10(signal / noise))
    assert DriftReport.from_json(report.to_json()) == report


def test_drop_is_lost_minus_gained_over_rows() -> None:
    engine = REFERENCE.copy()
    engine[:2] = [[0, 0, 1], [1, 0, 0]]
    report = measure(REFERENCE, engine, LABELS, validation_root=ROOT)
    assert (report.lost, report.gained, report.drop, report.engine_value) == (2, 0, 0.4, 0.2)


def test_equal_outputs_agree_wholly_and_have_no_sqnr() -> None:
    report = measure(REFERENCE, REFERENCE.copy(), LABELS, validation_root=ROOT)
    assert (report.agreement, report.drop, report.sqnr_db) == (1.0, 0.0, None)


def test_sqnr_is_taken_in_double_precision() -> None:
    reference = np.full((1000, 100), 1e4, np.float32)
    engine = reference + np.float32(1.0)
    report = measure(reference, engine, np.arange(1000) % 2, validation_root=ROOT)
    assert report.sqnr_db == pytest.approx(80.0, abs=1e-6)


@pytest.mark.parametrize(("name", "value"), [("reference", np.nan), ("engine", np.inf), ("engine", -np.inf)])
def test_an_output_that_is_not_finite_names_the_row(name: str, value: float) -> None:
    outputs = {"reference": REFERENCE.copy(), "engine": REFERENCE.copy()}
    outputs[name][3, 1] = value
    with pytest.raises(DataError, match=rf"(?s)output of the {name} is not finite.*row 3\b.*place 1"):
        measure(outputs["reference"], outputs["engine"], LABELS, validation_root=ROOT)


@pytest.mark.parametrize(
    ("reference", "engine", "labels", "message"),
    [
        (REFERENCE, REFERENCE[:4], LABELS, "different row counts"),
        (REFERENCE, REFERENCE, LABELS[:4], "different row counts"),
        (REFERENCE[:0], REFERENCE[:0], LABELS[:0], "nothing to compare"),
        (REFERENCE, REFERENCE[:, :2], LABELS, "one shape"),
        (REFERENCE[:1], REFERENCE[:1], LABELS[:1], "One row judges nothing"),
        (REFERENCE, REFERENCE, np.full(5, 2), r"(?s)all of one class.*class 2 alone"),
        (REFERENCE[:, 0], REFERENCE[:, 0], LABELS, "one score a class"),
        (REFERENCE, REFERENCE, LABELS[:, None], "one score a class"),
        (REFERENCE, REFERENCE, LABELS.astype(float), "no class indices"),
        (REFERENCE, REFERENCE, np.array([0, 1, 3, 1, 0]), r"(?s)no class of the model.*row 2"),
        (REFERENCE, REFERENCE, np.array([0, 1, 2, -1, -1]), r"(?s)row 3 and 1 more.*0 to 2"),
        (np.zeros_like(REFERENCE), REFERENCE, LABELS, "Every output of the reference is zero"),
    ],
)
def test_what_cannot_be_compared_is_refused(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        measure(reference, engine, labels, validation_root=ROOT)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown metric 'top5'"):
        measure(REFERENCE, REFERENCE, LABELS, metric="top5", validation_root=ROOT)


def test_slices_channels_divergence_and_the_rows_that_moved_most() -> None:
    engine = REFERENCE.copy()
    engine[2] = [3, 1, 2]  # lost
    engine[4] = [0, 1, 2]  # wrong before and after, and moved further
    report = measure(
        REFERENCE, engine, LABELS, validation_root=ROOT, class_names=["a", "b", "c"], slices={"class": [], "site": ["x", "x", "y", "y", "x"]}
    )
    assert [(part.of, part.value, part.rows, part.lost, part.gained) for part in report.slices] == [
        ("class", "a", 2, 0, 0), ("class", "b", 2, 0, 0), ("class", "c", 1, 1, 0), ("site", "x", 3, 0, 0), ("site", "y", 2, 1, 0),
    ]  # fmt: skip
    assert (report.slices[3].reference_value, report.slices[4].engine_value, report.slices[3].agreement) == (2 / 3, 0.0, 2 / 3)
    assert [(row.place, row.label, row.reference, row.engine) for row in report.worst] == [(2, "c", "c", "a"), (4, "a", "b", "c")]
    assert report.worst[0].distance == pytest.approx(3 / math.sqrt(5))
    assert report.channel_sqnr_db == pytest.approx([10 * math.log10(9 / 10), 10 * math.log10(10 / 1), 10 * math.log10(6 / 4)])
    softmax = [np.exp(side) / np.exp(side).sum(axis=1, keepdims=True) for side in (REFERENCE.astype(float), engine.astype(float))]
    assert report.kl_divergence == pytest.approx(float((softmax[0] * np.log(softmax[0] / softmax[1])).sum(axis=1).mean()))
    assert DriftReport.from_json(report.to_json()) == report


def test_a_slice_must_name_every_row() -> None:
    with pytest.raises(DataError, match=r"(?s)does not name every row.*site.*5 values"):
        measure(REFERENCE, REFERENCE, LABELS, validation_root=ROOT, slices={"site": ["x"]})


def test_by_batch_holds_a_row_alone_to_the_same_row_in_a_full_batch() -> None:
    def run(batch: Any) -> dict[str, np.ndarray]:
        return {"a": batch["x"] + (0.1 if len(batch["x"]) == 2 else 0.0), "b": batch["x"]}

    found = details.by_batch(run, {"x": np.ones((4, 3), np.float32)}, [1, 2, 4, 8])
    assert found["1"] is None
    assert found["2"] == pytest.approx(20.0, abs=1e-4)
    assert set(found) == {"1", "2"}
