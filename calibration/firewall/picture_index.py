"""Pairs of picture signatures that are worth a direct comparison, found by an inverted file and not by comparing all pairs.

Vectors are put into lists by the nearest of a few hundred centres, and a search reads the lists of the nearest centres only (J. Sivic and
A. Zisserman, "Video Google", ICCV 2003; here faiss). The number of lists has a limit, so that building and searching grow linearly with the rows.
"""

from __future__ import annotations

import faiss
import numpy as np

from calibration.firewall.picture_signature import FLIPS, HEADER, LENGTH, VIEWS, unit, views

MOST_LISTS, ROWS_A_LIST, TRAINING_ROWS_A_LIST = 512, 40, 60
PROBED_SHARE, LEAST_PROBED = 0.06, 8
NEIGHBOURS = 12
"""Candidates of one row: as many as are found in each view and flip, and of those the nearest as many."""
SMALL_SEARCH = 1200
"""Candidates that a search of few rows may have in all, so that forty frames of one scene do not crowd out a cropped copy of it."""
LEAST_COSINE = 0.5
ALIKE_COSINE, MOST_ALIKE = 0.985, 384
"""Rows as close as this are all kept, up to a limit: one picture may have many copies."""
STRUCTURED_FROM, FLAT_TO = 2, 6
"""Standard deviations in levels; in between a row is searched for both by its structure and by its level."""
LEVEL_SCALE, FLAT_DISTANCE = 2.0, 40.0
"""A level of difference in one colour adds 4 to the squared distance of two flat rows, two unrelated structures add 2."""
BATCH = 4096


def candidates(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n, BYTES) and (m, BYTES) uint8 signatures to (k, 2) int64 of left and right index, distinct and sorted."""
    if len(left) > len(right):
        return _sorted(candidates(right, left)[:, ::-1])
    return _sorted(np.concatenate([_alike_in_structure(left, right), _alike_in_level(left, right)]))


def _sorted(pairs: np.ndarray) -> np.ndarray:
    return np.unique(pairs.reshape(-1, 2).astype(np.int64), axis=0)


def _alike_in_structure(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    (queries, owners), (vectors, rows) = _distinct_views(left), _distinct_views(right)
    pairs = [np.zeros((0, 2), np.int64)]
    most = int(np.clip(SMALL_SEARCH // max(len(left), 1), NEIGHBOURS, MOST_ALIKE))
    if len(queries) and len(vectors):
        index = _inverted_file(vectors)
        for start in range(0, len(queries), BATCH):
            flipped = (unit(queries[start : start + BATCH])[:, None, :] * FLIPS).reshape(-1, LENGTH)
            owner = np.repeat(owners[start : start + BATCH], len(FLIPS))
            cosines, found = index.search(flipped, most)
            pairs.append(_nearest_of_each(owner, rows, cosines, found, most))
            crowded = cosines[:, NEIGHBOURS - 1] >= ALIKE_COSINE
            if crowded.any():
                cosines, found = index.search(flipped[crowded], MOST_ALIKE)
                query, place = np.nonzero((found >= 0) & (cosines >= ALIKE_COSINE))
                pairs.append(np.stack([owner[crowded][query], rows[found[query, place]]], axis=1))
    return np.concatenate(pairs)


def _nearest_of_each(owner: np.ndarray, rows: np.ndarray, cosines: np.ndarray, found: np.ndarray, most: int) -> np.ndarray:
    """Pairs of the `most` nearest distinct rows of each owner, by the largest cosine over its views and flips."""
    query, place = np.nonzero((found >= 0) & (cosines >= LEAST_COSINE))
    left, right, cosine = owner[query], rows[found[query, place]], cosines[query, place]
    order = np.lexsort((-cosine, right, left))
    left, right, cosine = left[order], right[order], cosine[order]
    first = np.ones(len(left), bool)
    first[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    left, right, cosine = left[first], right[first], cosine[first]
    order = np.lexsort((-cosine, left))
    left, right = left[order], right[order]
    rank = np.arange(len(left)) - np.searchsorted(left, left)
    return np.stack([left, right], axis=1)[rank < most]


def _alike_in_level(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pairs of rows without structure: near in mean colour, and of those the nearest in what structure there is."""
    mine, theirs = (np.flatnonzero(signatures[:, 0] <= FLAT_TO) for signatures in (left, right))
    if not len(mine) or not len(theirs):
        return np.zeros((0, 2), np.int64)
    queries, vectors = (
        np.concatenate([signatures[:, 1:HEADER] * np.float32(LEVEL_SCALE), unit(views(signatures)[:, VIEWS // 2])], axis=1, dtype=np.float32)
        for signatures in (left[mine], right[theirs])
    )
    index = _inverted_file(vectors, faiss.METRIC_L2)
    distances, found = index.search(queries, NEIGHBOURS)
    query, place = np.nonzero((found >= 0) & (distances <= FLAT_DISTANCE))
    return np.stack([mine[query], theirs[found[query, place]]], axis=1)


def _distinct_views(signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k, LENGTH) int8 views of the rows that have structure, equal ones of a row once, and the (k,) row each belongs to."""
    chosen = np.flatnonzero(signatures[:, 0] >= STRUCTURED_FROM)
    every = views(signatures[chosen])
    new = np.ones(every.shape[:2], bool)
    for view in range(1, VIEWS):
        for earlier in range(view):
            new[:, view] &= (every[:, view] != every[:, earlier]).any(axis=1)
    return every[new], np.broadcast_to(chosen[:, None], new.shape)[new]


def _inverted_file(vectors: np.ndarray, metric: int = faiss.METRIC_INNER_PRODUCT) -> faiss.IndexIVFFlat:
    """Float vectors for the metric L2, int8 coefficients for the inner product of their directions."""
    lists = int(np.clip(len(vectors) // ROWS_A_LIST, 1, MOST_LISTS))
    width = vectors.shape[1]
    by_angle = metric == faiss.METRIC_INNER_PRODUCT
    ready = unit if by_angle else np.asarray
    centres = faiss.IndexFlatIP(width) if by_angle else faiss.IndexFlatL2(width)
    index = faiss.IndexIVFFlat(centres, width, lists, metric)
    index.cp.min_points_per_centroid = 1
    index.cp.spherical = by_angle
    index.train(ready(vectors[:: max(1, len(vectors) // (lists * TRAINING_ROWS_A_LIST))]))
    for start in range(0, len(vectors), BATCH):
        index.add(ready(vectors[start : start + BATCH]))
    index.nprobe = min(lists, max(LEAST_PROBED, round(lists * PROBED_SHARE)))
    return index
