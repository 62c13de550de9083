"""Pairs of signatures that agree in at least one band, found by sorting: locality-sensitive hashing without an all-pairs comparison.

Source: Indyk and Motwani, Approximate Nearest Neighbors (1998); banding as in Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

MOST_PER_ROW = 32
"""Candidates kept for one row, the closest first: where thousands share one boilerplate, memory stays linear in the rows."""
PAIRS_AT_ONCE = 500_000
ROWS_AT_ONCE = 8192

Keys = Callable[[np.ndarray], np.ndarray]
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def candidate_pairs(left: np.ndarray, right: np.ndarray, keys: Keys, score: Score, least: float) -> np.ndarray:
    """Pairs (k, 2) int64 of left and right index, distinct and sorted, that share a band key and score at least `least`.

    `left` (n, b) and `right` (m, b) are uint8 signatures. `keys` maps signatures (n, b) to band keys (n, bands) uint64; `score` maps two equally
    long stacks of signatures to one closeness a pair. Equal signatures are looked at once. The `MOST_PER_ROW` closest are kept for each right
    row, and for each left row where a right row had more: a template that a hundred left rows share does not hide the one that is near.
    """
    if not len(left) or not len(right):
        return np.empty((0, 2), np.int64)
    pairs = _closest_of_right(left, right, keys, score, least)
    if np.bincount(pairs[:, 1], minlength=1).max() >= MOST_PER_ROW:
        pairs = np.unique(np.concatenate([pairs, _closest_of_right(right, left, keys, score, least)[:, ::-1]]), axis=0)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _closest_of_right(left: np.ndarray, right: np.ndarray, keys: Keys, score: Score, least: float) -> np.ndarray:
    left_rows, left_of = _distinct(left)
    right_rows, right_of = _distinct(right)
    found = list(_scored(left_rows, right_rows, keys, score, least))
    pairs = np.concatenate([pair for pair, _ in found]) if found else np.empty((0, 2), np.int64)
    scores = np.concatenate([value for _, value in found]) if found else np.empty(0)
    pairs = _expanded(pairs, scores, left_of, len(left_rows))
    return _spread(pairs, right_of, len(right_rows))


def _distinct(signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different signatures and, for each row, which of them it has."""
    whole = np.ascontiguousarray(signatures).view(np.dtype((np.void, signatures.shape[1]))).ravel()
    _, first, which = np.unique(whole, return_index=True, return_inverse=True)
    return signatures[first], which


def _scored(left: np.ndarray, right: np.ndarray, keys: Keys, score: Score, least: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs (k, 2) and scores (k,) of right rows in order, each right row's closest `MOST_PER_ROW`."""
    left_keys = keys(left)
    order = np.argsort(left_keys, axis=0, kind="stable")
    ranked = np.take_along_axis(left_keys, order, axis=0)
    bands = left_keys.shape[1]
    for start in range(0, len(right), ROWS_AT_ONCE):
        right_keys = keys(right[start : start + ROWS_AT_ONCE])
        low = np.stack([np.searchsorted(ranked[:, band], right_keys[:, band], "left") for band in range(bands)], axis=1)
        high = np.stack([np.searchsorted(ranked[:, band], right_keys[:, band], "right") for band in range(bands)], axis=1)
        colliding = np.cumsum(np.minimum((high - low).sum(axis=1), len(left)))
        first = 0
        while first < len(right_keys):
            before = colliding[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(colliding, before + PAIRS_AT_ONCE, "right")))
            codes = _codes(order, low[first:last], high[first:last], len(left))
            pairs = np.stack([codes % len(left), codes // len(left) + start + first], axis=1)
            closeness = score(left[pairs[:, 0]], right[pairs[:, 1]])
            keep = closeness >= least
            yield _closest(pairs[keep], closeness[keep])
            first = last


def _codes(order: np.ndarray, low: np.ndarray, high: np.ndarray, left_count: int) -> np.ndarray:
    """Distinct `right * left_count + left` of all pairs that share a band key; a right row that meets as many as there are is paired with all."""
    counts = high - low
    crowded = counts.sum(axis=1) >= left_count
    codes = [np.add.outer(np.flatnonzero(crowded) * left_count, np.arange(left_count)).ravel()]
    counts[crowded] = 0
    for band in range(order.shape[1]):
        total = int(counts[:, band].sum())
        if total:
            rights = np.repeat(np.arange(len(counts)), counts[:, band])
            within = np.arange(total) - np.repeat(np.cumsum(counts[:, band]) - counts[:, band], counts[:, band])
            codes.append(rights * left_count + order[np.repeat(low[:, band], counts[:, band]) + within, band])
    ordered = np.sort(np.concatenate(codes))  # several times quicker than np.unique on what is mostly in order
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered


def _closest(pairs: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each right row the `MOST_PER_ROW` highest scores, ties by left index."""
    order = np.lexsort((pairs[:, 0], -scores, pairs[:, 1]))
    order = order[_rank(pairs[order, 1]) < MOST_PER_ROW]
    return pairs[order], scores[order]


def _rank(groups: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... within each run of equal values."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.empty(0, np.int64)
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))


def _members(which: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows sorted by signature, and where each signature's run starts and how long it is."""
    sizes = np.bincount(which, minlength=count)
    return np.argsort(which, kind="stable"), np.cumsum(sizes) - sizes, sizes


def _expanded(pairs: np.ndarray, scores: np.ndarray, left_of: np.ndarray, count: int) -> np.ndarray:
    """Distinct left signatures to the rows that have them, again at most `MOST_PER_ROW` for a right signature."""
    rows, starts, sizes = _members(left_of, count)
    order = np.lexsort((pairs[:, 0], -scores, pairs[:, 1]))
    pairs = pairs[order]
    counts = np.minimum(sizes[pairs[:, 0]], MOST_PER_ROW)
    rights = np.repeat(pairs[:, 1], counts)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    lefts = rows[np.repeat(starts[pairs[:, 0]], counts) + within]
    keep = _rank(rights) < MOST_PER_ROW
    return np.stack([lefts[keep], rights[keep]], axis=1)


def _spread(pairs: np.ndarray, right_of: np.ndarray, count: int) -> np.ndarray:
    """Distinct right signatures to the rows that have them."""
    rows, starts, sizes = _members(right_of, count)
    counts = sizes[pairs[:, 1]]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(pairs[:, 0], counts), rows[np.repeat(starts[pairs[:, 1]], counts) + within]], axis=1)
