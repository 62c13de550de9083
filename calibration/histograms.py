"""What is kept of a tensor while rows stream past: extremes, and histograms of rows of like magnitude.

The bins of rows whose largest magnitude lies in [2^(e-1), 2^e) are 2^e / BINS wide, and values truncate towards zero. So no range has to be known
beforehand or grown, the bins of a finer grid nest exactly in those of a coarser one, and any order or batching of the rows gives equal counts.
A row of a magnitude of its own (one burnt pixel) has a histogram of its own, and can be left out once all rows are known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np

from calibration.observe import Seen

BINS = 4096
"""For each sign; 2048 to 4096 of them are in use. TensorRT's entropy calibration takes 2048 (Migacz, GTC 2017)."""
SMALLEST = 2.0**-110
"""A row of smaller magnitudes counts as zeros: beyond this, a scale or its reciprocal would leave float32's normal numbers."""
NOTHING = -(2**20)
"""Stands for the exponent of rows that count as zeros."""
NAMED = 8
"""Rows of one magnitude that are remembered by name."""
GAP = 4.0
"""Rows are outliers when their magnitudes are this many times those of every other row: they would cost a tensor two of its eight bits."""
OUTLIER_SHARE = 32
"""One in so many rows may be an outlier; what more rows do is how the tensor behaves."""
BOTH = (0, 1)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Values of one tensor by magnitude.

    `positive` and `negative` (BINS,) count the values of each sign with k <= |x| / width < k + 1; all with k = 0 are in `positive[0]`.
    `low` and `high` are the smallest and the largest value.
    """

    width: float
    positive: np.ndarray
    negative: np.ndarray
    low: float
    high: float

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


@dataclasses.dataclass
class Group:
    """Rows whose largest magnitude has the same exponent. Lists of two go by half of the calibration rows."""

    rows: int = 0
    names: list[str] = dataclasses.field(default_factory=list)
    smallest: float = math.inf
    largest: float = 0.0
    low: list[float] = dataclasses.field(default_factory=lambda: [math.inf, math.inf])
    high: list[float] = dataclasses.field(default_factory=lambda: [-math.inf, -math.inf])
    zeros: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    counts: np.ndarray | None = None
    """(2, 2 * BINS) int64, zero at BINS."""

    def add(self, half: int, name: str, low: float, high: float) -> None:
        """One more row; `smallest` and `largest` are extremes of the rows' magnitudes."""
        magnitude = max(-low, high)
        self.rows += 1
        self.smallest, self.largest = min(self.smallest, magnitude), max(self.largest, magnitude)
        self.low[half], self.high[half] = min(self.low[half], low), max(self.high[half], high)
        if len(self.names) < NAMED:
            self.names.append(name)

    def count(self, half: int, row: np.ndarray, exponent: int) -> None:
        """Count the values of one row (n,), all of magnitude below 2^exponent."""
        if self.counts is None:
            self.counts = np.zeros((2, 2 * BINS), dtype=np.int64)
        codes = np.empty(row.size, dtype=np.intp)
        np.multiply(row, np.float32(math.ldexp(BINS, -exponent)), out=codes, casting="unsafe")  # a power of two: exact, then truncated
        codes += BINS
        self.counts[half] += np.bincount(codes, minlength=2 * BINS)


@dataclasses.dataclass(frozen=True)
class Outliers:
    """`rows` rows of magnitudes up to `largest`, the first few by name, in the groups `exponents`; every other row ends at `others`."""

    exponents: frozenset[int]
    rows: int
    names: tuple[str, ...]
    largest: float
    others: float


class Tally:
    """One tensor's groups, by exponent: memory that does not depend on the number of rows."""

    def __init__(self, histograms: bool) -> None:
        self.histograms = histograms
        self.groups: dict[int, Group] = {}

    def add(self, half: int, seen: Seen) -> None:
        """Add finite values that belong to half 0 or 1 of the calibration rows."""
        for name, row, low, high in zip(seen.ids, seen.values, seen.low.tolist(), seen.high.tolist(), strict=True):
            magnitude = max(-low, high)
            exponent = math.frexp(magnitude)[1] if magnitude >= SMALLEST else NOTHING
            group = self.groups.setdefault(exponent, Group())
            group.add(half, name, low, high)
            if exponent == NOTHING:
                group.zeros[half] += row.size
            elif self.histograms:
                group.count(half, row, exponent)

    def extremes(self, halves: Sequence[int] = BOTH) -> tuple[float, float]:
        """Smallest and largest value of the rows in `halves`; (inf, -inf) where there is none."""
        return _extremes(self.groups.values(), halves)

    def histogram(self, without: Collection[int] = (), halves: Sequence[int] = BOTH) -> Histogram | None:
        """All rows of `halves` outside the groups `without`; None where nothing but zeros is left."""
        kept = {exponent: group for exponent, group in self.groups.items() if exponent not in without}
        zeros = sum(kept[NOTHING].zeros[half] for half in halves) if NOTHING in kept else 0
        counted = {e: group.counts[list(halves)].sum(axis=0) for e, group in kept.items() if group.counts is not None}
        counted = {exponent: counts for exponent, counts in counted.items() if counts.any()}
        if not counted:
            return None
        top = max(counted)
        positive, negative = np.zeros(BINS, dtype=np.int64), np.zeros(BINS, dtype=np.int64)
        positive[0] = zeros
        for exponent, counts in counted.items():
            positive += _coarser(counts[BINS:], top - exponent)
            below = counts[BINS:0:-1].copy()
            below[0] = 0  # the bin around zero has been counted
            negative += _coarser(below, top - exponent)
        positive[0], negative[0] = positive[0] + negative[0], 0
        low, high = _extremes([kept[exponent] for exponent in counted], halves)
        return Histogram(math.ldexp(1 / BINS, top), positive, negative, min(low, 0.0) if zeros else low, max(high, 0.0) if zeros else high)

    def outliers(self) -> Outliers | None:
        """The few rows whose magnitude is GAP times that of every other row (that is not zero throughout), or None."""
        allowed = sum(group.rows for group in self.groups.values()) // OUTLIER_SHARE
        exponents = sorted((exponent for exponent in self.groups if exponent != NOTHING), reverse=True)
        found, rows = None, 0
        for place, exponent in enumerate(exponents[:-1]):
            rows += self.groups[exponent].rows
            if rows > allowed:
                break
            above, others = exponents[: place + 1], self.groups[exponents[place + 1]].largest
            if self.groups[exponent].smallest >= GAP * others:
                names = tuple(name for e in above for name in self.groups[e].names)[:NAMED]
                found = Outliers(frozenset(above), rows, names, self.groups[above[0]].largest, others)
        return found


def _extremes(groups: Collection[Group], halves: Sequence[int]) -> tuple[float, float]:
    low = min((group.low[half] for group in groups for half in halves), default=math.inf)
    return low, max((group.high[half] for group in groups for half in halves), default=-math.inf)


def _coarser(counts: np.ndarray, octaves: int) -> np.ndarray:
    """`counts` (BINS,) in bins 2^octaves times as wide."""
    merged = np.zeros(BINS, dtype=np.int64)
    parts = counts.reshape(-1, min(1 << octaves, BINS)).sum(axis=1)
    merged[: len(parts)] = parts
    return merged
