"""Streamed histograms against numpy on all values at once."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.histograms import BINS, Histogram, Tally
from calibration.observe import Seen

RANDOM = np.random.default_rng(5)
ROWS = (RANDOM.normal(size=(40, 1000)) * RANDOM.uniform(0.01, 7, size=(40, 1))).astype(np.float32)


def tallied(rows: np.ndarray, middle: int = 20) -> Tally:
    tally = Tally(histograms=True)
    for number, row in enumerate(rows):
        tally.add(int(number >= middle), Seen(row[None], row.min(keepdims=True), row.max(keepdims=True), (str(number),)))
    return tally


def assert_counts(histogram: Histogram | None, values: np.ndarray) -> None:
    """The right value by one histogram of all magnitudes over the final bins."""
    assert histogram is not None
    edges = np.arange(BINS + 1) * histogram.width
    magnitudes = np.abs(values.astype(np.float64))
    expected = np.histogram(magnitudes, edges)[0]
    np.testing.assert_array_equal(histogram.positive + histogram.negative, expected)
    np.testing.assert_array_equal(histogram.positive[1:], np.histogram(values[values > 0].astype(np.float64), edges)[0][1:])
    assert histogram.negative[0] == 0
    assert (histogram.low, histogram.high) == (values.min(), values.max())
    assert histogram.width * BINS / 2 <= magnitudes.max() < histogram.width * BINS


def test_rows_of_all_magnitudes_end_in_one_histogram_exactly() -> None:
    tally = tallied(ROWS)
    assert len(tally.groups) > 4
    assert_counts(tally.histogram(), ROWS)
    assert_counts(tally.histogram(halves=[0]), ROWS[:20])
    assert_counts(tally.histogram(halves=[1]), ROWS[20:])


def test_values_of_one_sign() -> None:
    assert_counts(tallied(np.abs(ROWS)).histogram(), np.abs(ROWS))
    assert_counts(tallied(-np.abs(ROWS)).histogram(), -np.abs(ROWS))


@pytest.mark.parametrize("tiny", [0.0, 1e-42, 1e-36, -1e-40])
def test_rows_of_nothing_count_as_zeros(tiny: float) -> None:
    rows = ROWS.copy()
    rows[::2] = np.float32(tiny)
    histogram = tallied(rows).histogram()
    assert histogram is not None
    assert histogram.positive.sum() + histogram.negative.sum() == rows.size
    assert histogram.positive[0] >= 20 * 1000
    assert tallied(np.full((40, 10), tiny, dtype=np.float32)).histogram() is None


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_any_scale_of_float32(scale: float) -> None:
    rows = ROWS * np.float32(scale)
    assert_counts(tallied(rows).histogram(), rows)


def test_magnitudes_far_apart_keep_their_counts() -> None:
    rows = np.stack([np.full(10, 1e-20), np.full(10, 3.0)]).astype(np.float32)
    histogram = tallied(rows, 1).histogram()
    assert histogram is not None
    assert histogram.positive[0] == 10
    assert histogram.positive[int(3.0 / histogram.width)] == 10


def test_memory_does_not_follow_the_rows() -> None:
    def size(tally: Tally) -> int:
        return sum(group.counts.nbytes + len(group.names) for group in tally.groups.values() if group.counts is not None)

    few, many = tallied(ROWS), tallied(np.concatenate([ROWS] * 50))
    assert size(few) == pytest.approx(size(many), rel=0.001)


def test_an_outlier_row_is_named_and_can_be_left_out() -> None:
    rows = ROWS.copy()
    rows[17, 3] = 1e4
    tally = tallied(rows)
    found = tally.outliers()
    assert found is not None
    assert (found.names, found.rows, found.largest) == (("17",), 1, 1e4)
    assert found.others == np.abs(np.delete(rows, 17, axis=0)).max()
    assert_counts(tally.histogram(found.exponents), np.delete(rows, 17, axis=0))


def test_many_rows_are_no_outliers_and_neither_is_a_row_among_zeros() -> None:
    rows = ROWS.copy()
    rows[::10, 3] = 1e4  # four of forty: more than one in 32
    assert tallied(rows).outliers() is None
    rows[:] = 0
    rows[17, 3] = 1e4  # all that this tensor ever does
    assert tallied(rows).outliers() is None
    few = ROWS[:8].copy()
    few[3, 3] = 1e4
    assert tallied(few).outliers() is None  # one of eight rows may be the rule
