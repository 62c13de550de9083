"""The banded index gives what an all-pairs comparison would, without making it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.firewall import bands
from calibration.firewall.bands import candidate_pairs


def keys(signatures: np.ndarray) -> np.ndarray:
    """Each byte is a band."""
    return signatures.astype(np.uint64)


def score(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.mean(left == right, axis=1)


def all_pairs(left: np.ndarray, right: np.ndarray, least: float) -> list[list[int]]:
    return [[i, j] for i in range(len(left)) for j in range(len(right)) if np.mean(left[i] == right[j]) >= least]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 25), st.integers(0, 25), st.integers(2, 40), st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_index_gives_what_all_pairs_give_whatever_the_order_and_chunks(n: int, m: int, alphabet: int, seed: int, at_once: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = (rng.integers(0, alphabet, (count, 6), dtype=np.uint8) for count in (n, m))
    order = rng.permutation(m)
    patch = pytest.MonkeyPatch()
    patch.setattr(bands, "PAIRS_AT_ONCE", at_once)
    patch.setattr(bands, "ROWS_AT_ONCE", max(1, at_once // 4))
    patch.setattr(bands, "MOST_PER_ROW", 1000)
    try:
        found = candidate_pairs(left, right, keys, score, 0.3)
        shuffled = candidate_pairs(left, right[order], keys, score, 0.3)
    finally:
        patch.undo()
    assert found.dtype == np.int64
    assert found.tolist() == all_pairs(left, right, 0.3)
    assert sorted([i, int(order[j])] for i, j in shuffled.tolist()) == found.tolist()


def test_a_crowd_keeps_the_closest_for_each_row() -> None:
    """5,000 equal rows against 300: without a limit 1.5 million pairs; and the one closer row is among those kept."""
    left = np.zeros((5000, 6), np.uint8)
    right = np.zeros((300, 6), np.uint8)
    left[4321], right[7] = [0, 0, 0, 0, 0, 9], [0, 0, 0, 0, 0, 9]
    found = candidate_pairs(left, right, keys, score, 0.3)
    assert len(found) <= bands.MOST_PER_ROW * (5000 + 300)
    assert (np.bincount(found[:, 1], minlength=300) >= bands.MOST_PER_ROW).all()
    assert (np.bincount(found[:, 0], minlength=5000) >= bands.MOST_PER_ROW).all()
    assert [4321, 7] in found.tolist()
    assert (np.diff(found[:, 0]) >= 0).all()


def test_unrelated_rows_are_not_compared() -> None:
    """The score, which is the costly part, sees a small share of all pairs."""
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, 250, (400, 6), dtype=np.uint8), rng.integers(0, 250, (2000, 6), dtype=np.uint8)
    seen = []

    def counted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen.append(len(a))
        return score(a, b)

    candidate_pairs(left, right, keys, counted, 0.3)
    assert 0 < sum(seen) < 0.05 * 400 * 2000


def test_a_crowd_of_closer_rows_does_not_hide_another() -> None:
    """Forty left rows are closer to right row 0 than left row 40 is, which has no other."""
    rng = np.random.default_rng(2)
    left, right = rng.integers(100, 250, (50, 6), dtype=np.uint8), rng.integers(0, 50, (60, 6), dtype=np.uint8)
    left[:40, :5], left[40, :3] = right[0, :5], right[0, :3]
    assert [40, 0] in candidate_pairs(left, right, keys, score, 0.3).tolist()
