"""Paired right/wrong non-inferiority: how large can the drop be, given the rows lost and gained?

Rows fall into three cells: lost (only the reference is right), gained (only the candidate is right), unchanged. The
drop is `pL - pG`; how many rows flip at all, `tau = pL + pG`, is a nuisance. The bounds are exact and unconditional:

1. outcomes are ordered by Tango's upper score limit (Tango 1998, Statistics in Medicine 17:891-908);
2. the upper bound is the largest drop under which an outcome ordered no higher than the observed one is not rarer than
   `alpha` (Buehler 1957, JASA 52:482-493: the smallest valid bound that keeps that order), from trinomial probabilities
   and not from a normal approximation;
3. the nuisance is maximised over a 1 - gamma Clopper-Pearson interval of `tau`, and `gamma` is spent from `alpha`
   (Berger & Boos 1994, JASA 89:1012-1016).

So each side errs with at most `alpha` whatever the flip rate is, none included: 0 flips in n rows bounds the drop near
3 / n. Tango's limits alone err with up to 7.5 % (564 rows, 1 flip in 200); benchmarks/gates.py enumerates both.
The lower bound is the upper one with the roles exchanged.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import optimize, special

from pipeline.errors import DataError
from pipeline.verdicts import Interval, Verdict, judge

METHOD = "exact unconditional, ordered by Tango's score limit (Buehler), nuisance over a confidence set (Berger-Boos)"
MAX_ROWS_TO_DECIDE = 10_000_000
"""`rows_to_decide` never says more: an observed drop that equals the limit is decided by no number of rows."""

NUISANCE_SHARE = 0.02
"""Part of alpha spent on the nuisance's confidence set: large enough to keep the set short, small enough to cost little."""
GRID_STEP = 0.3
"""Nuisance values are tried at this step of the square root of the expected count of the rarer kind of flip (a third of two
standard deviations of it), and once more between the neighbours of the worst: the chance ripples where that count is small."""
NEGLIGIBLE = 1e-8
"""Flip counts less likely than this are not summed; their mass is added to the probability instead, so it errs high."""

Array = np.ndarray


def score(lost: Array | float, flips: Array | float, rows: int, drop: float) -> Array:
    """Tango's score statistic of `lost` out of `flips` in `rows`, for a hypothetical drop; the larger, the more was lost."""
    gained = flips - lost
    linear = (2 * rows - lost + gained) * drop - flips
    root = np.sqrt(np.maximum(linear * linear + 8.0 * rows * gained * drop * (1 - drop), 0.0))
    gain_rate = (root - linear) / (4.0 * rows)
    variance = rows * (2 * gain_rate + drop * (1 - drop))
    return np.asarray((2 * lost - flips - rows * drop) / np.sqrt(np.maximum(variance, 1e-300)))


def score_upper(lost: float, gained: float, rows: int, side_confidence: float = 0.95) -> float:
    """Tango's upper limit of the drop: the order of outcomes here, and approximate as a bound."""
    quantile = float(special.ndtri(side_confidence))

    def excess(drop: float) -> float:
        return float(score(float(lost), float(lost + gained), rows, drop)) + quantile

    last = 1 - 1e-12
    return 1.0 if excess(last) > 0 else float(optimize.brentq(excess, (lost - gained) / rows, last, xtol=1e-12))


@functools.lru_cache(maxsize=4096)
def upper_bound(lost: int, gained: int, rows: int, side_confidence: float = 0.95) -> float:
    """Exact one-sided upper bound of the drop (a fraction): it is below the true drop in at most 1 - side_confidence of samples."""
    alpha, flips, observed = 1 - side_confidence, lost + gained, (lost - gained) / rows
    gamma = alpha * NUISANCE_SHARE
    lowest = float(special.betaincinv(flips, rows - flips + 1, gamma / 2)) if flips else 0.0
    highest = float(special.betaincinv(flips + 1, rows - flips, 1 - gamma / 2)) if flips < rows else 1.0
    limit = score_upper(lost, gained, rows, side_confidence)

    counts = _likely_counts(lowest, highest, rows)
    edges = counts if limit >= 1 else _edges(counts, rows, limit, side_confidence)
    edges = np.where(counts == flips, np.maximum(edges, lost), edges)
    combinations = special.gammaln(rows + 1) - special.gammaln(counts + 1) - special.gammaln(rows - counts + 1)

    def probability(drop: float) -> float:
        """Largest chance, over the nuisance set, of an outcome ordered no higher than the observed one."""
        first = max(lowest, abs(drop), 1e-12)
        if first > highest:
            return gamma
        ends = math.sqrt(rows * (first - abs(drop)) / 2), math.sqrt(rows * (highest - abs(drop)) / 2)
        roots = np.linspace(*ends, max(math.ceil((ends[1] - ends[0]) / GRID_STEP), 4) + 1)
        taus = np.clip(abs(drop) + 2 * roots**2 / rows, first, highest)
        chances = _chance(drop, taus, counts, edges, combinations, rows)
        worst = int(np.argmax(chances))
        between = np.linspace(taus[max(worst - 1, 0)], taus[min(worst + 1, len(taus) - 1)], 7)
        return gamma + max(float(chances[worst]), float(_chance(drop, between, counts, edges, combinations, rows).max()))

    def excess(drop: float) -> float:
        return math.log(probability(drop) / alpha)

    # The score limit is nearly always within one row of the exact one.
    low, high = limit - 1 / rows, min(highest, limit + 1 / rows)
    if low <= observed or excess(low) <= 0:
        low = observed
    while excess(high) > 0:
        if high >= highest:
            return highest
        high = min(highest, high + (high - observed))
    tolerance = 1e-4 / rows
    return min(float(optimize.brentq(excess, low, high, xtol=tolerance)) + tolerance, highest)


def _likely_counts(lowest: float, highest: float, rows: int) -> Array:
    """Flip counts that matter for any flip rate between `lowest` and `highest`: six standard deviations and some more."""
    first = rows * lowest - 6 * math.sqrt(rows * lowest * (1 - lowest)) - 6
    last = rows * highest + 6 * math.sqrt(rows * highest * (1 - highest)) + 12
    return np.arange(max(0, math.floor(first)), min(rows, math.ceil(last)) + 1, dtype=float)


def _edges(counts: Array, rows: int, limit: float, side_confidence: float) -> Array:
    """For each flip count, the largest `lost` whose score limit is at most `limit` (-1 when none is)."""
    quantile = float(special.ndtri(side_confidence))
    low, high = np.full(counts.shape, -1.0), counts.copy()
    while (low < high).any():
        middle = np.floor((low + high + 1) / 2)
        inside = score(middle, counts, rows, limit) <= -quantile
        low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
    return low


def _chance(drop: float, taus: Array, counts: Array, edges: Array, combinations: Array, rows: int) -> Array:
    """For each flip rate (K,), the chance that `lost` is at most its edge, summed over the flip counts (T,)."""
    taus = np.minimum(taus, 1 - 1e-15)[:, None]
    mass = np.exp(combinations + counts * np.log(taus) + (rows - counts) * np.log1p(-taus))
    # Clipped against rounding where the drop is as large as the flip rate: then every flip is of one kind.
    lost_share = np.clip((1 + drop / taus) / 2, 0.0, 1.0)
    summed = mass > NEGLIGIBLE
    rate, column = np.nonzero(summed & (edges >= 0) & (edges < counts))
    inside = np.where(edges >= counts, 1.0, 0.0) * np.ones_like(mass)
    inside[rate, column] = special.betainc(counts[column] - edges[column], edges[column] + 1, 1 - lost_share[rate, 0])
    mass = np.where(summed, mass, 0.0)
    return np.asarray((mass * inside).sum(axis=1) + np.maximum(0.0, 1 - mass.sum(axis=1)))


def compare(lost: int, gained: int, rows: int, side_confidence: float = 0.95) -> Interval:
    """Interval of the drop (fractions), each end an exact one-sided bound at `side_confidence`.

    Raises DataError when the counts are no counts of `rows` rows.
    """
    if rows <= 0 or lost < 0 or gained < 0 or lost + gained > rows:
        raise DataError(
            "The counts of a paired comparison do not fit", expected="0 <= lost + gained <= rows, and rows > 0", got=f"{lost=}, {gained=}, {rows=}"
        )
    low = -upper_bound(int(gained), int(lost), int(rows), side_confidence)
    return Interval(low=low, high=upper_bound(int(lost), int(gained), int(rows), side_confidence), side_confidence=side_confidence)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact p-value of McNemar's test (1947, Psychometrika 12:153-157): that a flip is as likely lost as gained, by the binomial.

    It tells whether there is a difference; how large it may be, and so the gate, is `compare`'s.
    """
    return 1.0 if lost == gained else min(1.0, 2 * float(special.bdtr(min(lost, gained), lost + gained, 0.5)))


def decide(lost: int, gained: int, rows: int, max_drop: float, side_confidence: float = 0.95) -> Verdict:
    """PASS when the upper bound is within `max_drop`, FAIL when the lower bound is beyond it, else UNDECIDED."""
    return judge(compare(lost, gained, rows, side_confidence), max_drop)


def rows_to_decide(lost: int, gained: int, rows: int, max_drop: float, side_confidence: float = 0.95) -> int | None:
    """About how many rows in all would decide, if rows went on to flip at the observed rates; None once decided.

    Rounded up to two figures. New rows vary, so that many decide about every second time. Never more than MAX_ROWS_TO_DECIDE:
    that value means that the observed drop is so near the limit that only another limit or a better build decides.
    """
    if decide(lost, gained, rows, max_drop, side_confidence) is not Verdict.UNDECIDED:
        return None
    lost_rate, gained_rate = lost / rows, gained / rows

    def score_decides(total: int) -> bool:
        high = score_upper(lost_rate * total, gained_rate * total, total, side_confidence)
        return high <= max_drop or -score_upper(gained_rate * total, lost_rate * total, total, side_confidence) > max_drop

    if not score_decides(MAX_ROWS_TO_DECIDE):
        return MAX_ROWS_TO_DECIDE
    low, high = rows, MAX_ROWS_TO_DECIDE
    while high - low > max(1, low // 100):
        middle = (low + high) // 2 if high < 4 * low else math.isqrt(low * high)
        low, high = (low, middle) if score_decides(middle) else (middle, high)
    total = _round_up(max(high, rows + 1))
    # The exact bounds are a little wider, which matters when flips are few; many flips make them equal for this purpose.
    while total < MAX_ROWS_TO_DECIDE and (lost_rate + gained_rate) * total < 2000:
        if decide(round(lost_rate * total), round(gained_rate * total), total, max_drop, side_confidence) is not Verdict.UNDECIDED:
            break
        total = _round_up(math.ceil(total * 1.03))
    return min(total, MAX_ROWS_TO_DECIDE)


def _round_up(number: int) -> int:
    """Up to two significant figures."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // unit) * unit
