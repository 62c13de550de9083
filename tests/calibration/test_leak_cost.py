"""What a leak costs: seen where there is one, within chance where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.leak_cost import CLEAN, LEAKED, measure
from pipeline.errors import DataError
from pipeline.records import LeakCost

BOUND = {
    "scheme": "cpu",
    "method": "max",
    "calibration_rows": 100,
    "preprocess_sha256": "c" * 64,
    "calibration_root": "a" * 64,
    "leaked_root": "b" * 64,
}
ROWS = 400


Outputs = dict[str, np.ndarray]


def outputs(error_on_leaked: float, error_elsewhere: float = 0.1) -> tuple[Outputs, Outputs, Outputs, np.ndarray]:
    g = np.random.default_rng(3)
    reference = g.normal(size=(ROWS, 5))
    was_leaked = np.arange(ROWS) % 2 == 0
    clean = reference + 0.1 * g.normal(size=reference.shape)
    leaked = reference + np.where(was_leaked, error_on_leaked, error_elsewhere)[:, None] * g.normal(size=reference.shape)
    return {"y": reference}, {"y": clean}, {"y": leaked}, was_leaked


def test_a_leak_that_flatters_is_shown_with_its_size() -> None:
    cost = measure(*outputs(0.05), classes=True, **BOUND)
    assert cost.flattery_db == pytest.approx(6.0, abs=0.7)  # half the error on the leaked rows alone
    assert cost.flattery_interval.low > 4
    assert cost.flattery_changed is not None
    assert cost.flattery_changed > 0
    assert "would have flattered the result by +6" in cost.sentence or "by +5" in cost.sentence
    by = {(claim.calibrated_on, claim.judged_on): claim for claim in cost.claims}
    assert by[LEAKED, LEAKED].sqnr_db == pytest.approx(26, abs=0.5)
    assert by[LEAKED, CLEAN].sqnr_db == pytest.approx(20, abs=0.5)
    assert all(claim.sqnr_interval.low < claim.sqnr_db < claim.sqnr_interval.high for claim in cost.claims)  # type: ignore[union-attr, operator]
    assert LeakCost.from_json(cost.to_json()) == cost


def test_no_leak_is_no_more_than_chance() -> None:
    cost = measure(*outputs(0.1), classes=False, **BOUND)
    assert cost.flattery_interval.low < 0 < cost.flattery_interval.high
    assert "no more than chance" in cost.sentence
    assert all(claim.changed is None for claim in cost.claims)


def test_easier_leaked_rows_alone_flatter_nothing() -> None:
    """Rows that both calibrations find easier are no gain of the leak: a difference of differences."""
    reference, clean, leaked, was_leaked = outputs(0.1)
    for side in (clean, leaked):
        side["y"][was_leaked] = reference["y"][was_leaked] + 0.2 * (side["y"][was_leaked] - reference["y"][was_leaked])
    cost = measure(reference, clean, leaked, was_leaked, classes=False, **BOUND)
    assert cost.flattery_interval.low < 0 < cost.flattery_interval.high


def test_equal_outputs_and_too_few_rows() -> None:
    reference, _, _, was_leaked = outputs(0.1)
    cost = measure(reference, reference, reference, was_leaked, classes=True, **BOUND)
    assert cost.flattery_db == 0
    assert all(claim.sqnr_db is None and claim.changed == 0 for claim in cost.claims)
    with pytest.raises(DataError, match="too few rows"):
        measure(reference, reference, reference, np.zeros(ROWS, bool), classes=True, **BOUND)
