"""A metric of the user's own, and how sure one can be of the difference it shows between two engines on the same rows.

`metric(outputs, labels)` gets `{output: (N, ...)}` and labels (N,) or None, and gives one score a row (N,) or one number; higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from pipeline.errors import DataError
from pipeline.verdicts import Interval

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[dict[str, np.ndarray], "np.ndarray | None"], Any]

SIDE = 0.95
"""Confidence a side of drift's intervals."""
RESAMPLES, SEED = 2000, 0
TAIL = 2
"""Fewest resamples beyond a bound that show it: 2000 of them bound a difference at 99.9 % a side at most."""
LEAST_ROWS = 20
"""Fewer paired rows give neither a mean nor a resample that deserves an interval."""
GROUPS = 100
"""The jackknife leaves out one of at most so many groups of rows at a time."""
BY_ROW = "paired by row: mean difference of the metric's scores, Student's t (Student 1908, Biometrika 6:1-25)"
WHOLE = f"paired bootstrap over rows, BCa, {RESAMPLES} resamples (Efron 1987, JASA 82:171-185)"
NO_DIFFERENCE = "; no row differed, so the bounds are those of an unseen difference (0 in n rows: 1 - alpha^(1/n)) times the largest score"


class ByRow:
    """One score a row from both engines, (rows,) each."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self.first, self.second = first, second
        self.reference, self.engine = float(first.mean()), float(second.mean())
        self.right = (first == 1, second == 1) if all(np.isin(values, (0.0, 1.0)).all() for values in (first, second)) else None
        """For scores that are all 0 or 1, whether each row is right in the reference and in the engine; such rows have an exact method."""
        self.method = BY_ROW if np.ptp(first - second) else BY_ROW + NO_DIFFERENCE

    def interval(self, side: float) -> Interval | None:
        """Of the difference, reference less engine, at `side` confidence a side."""
        return _mean_interval(self.first - self.second, side, float(np.abs(np.concatenate([self.first, self.second])).max()))

    def reference_interval(self, side: float) -> Interval:
        """Of the reference's value."""
        return _mean_interval(self.first, side, 0.0)


class Whole:
    """One number for all rows from both engines. `drawn`, `left`: the reference's value and the difference, on each resample and jackknife group."""

    right = None

    def __init__(self, reference: float, engine: float, drawn: np.ndarray, left: np.ndarray, rows: int) -> None:
        self.reference, self.engine, self.drawn, self.left, self.rows = reference, engine, drawn, left, rows
        self.method = WHOLE if np.ptp(drawn[:, 1]) else WHOLE + NO_DIFFERENCE

    def interval(self, side: float) -> Interval | None:
        """Of the difference, reference less engine; None for a confidence that so few resamples do not show."""
        difference = self.reference - self.engine
        if not np.ptp(self.drawn[:, 1]):
            reach = _unseen(self.rows, side) * max(abs(self.reference), abs(self.engine))
            return Interval(difference - reach, difference + reach, side)
        if (1 - side) * len(self.drawn) < TAIL:
            return None
        return _bca(self.drawn[:, 1], self.left[:, 1], difference, side)

    def reference_interval(self, side: float) -> Interval:
        """Of the reference's value."""
        return _bca(self.drawn[:, 0], self.left[:, 0], self.reference, side)


def scores(metric: Metric, name: str, outputs: Outputs, labels: np.ndarray | None, rows: int) -> float | np.ndarray:
    """The metric's answer: float64 (rows,), or one float.

    It sees read-only arrays. Raises DataError naming the metric and the reason when it raises, wants an output that is not there, or
    gives anything but finite numbers, one or `rows` of them.
    """
    shown = {key: _read_only(array) for key, array in outputs.items()}
    try:
        answer = metric(shown, None if labels is None else _read_only(labels))
    except KeyError as error:
        raise _wrong(name, f"one of the model's outputs: {', '.join(outputs)}", f"KeyError: {error}") from error
    except Exception as error:  # the user's own code
        raise _wrong(name, "a score a row, or one number", f"{type(error).__name__}: {error}") from error
    try:
        array = np.asarray(answer)
        if array.dtype.kind not in "biuf":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong(name, "numbers", f"{type(answer).__name__}: {answer!r}"[:200]) from error
    if array.ndim > 1 or (array.ndim == 1 and len(array) != rows):
        raise _wrong(name, f"one number, or one score for each of {rows} rows: shape ({rows},)", f"shape {array.shape}")
    if (bad := np.flatnonzero(~np.isfinite(array))).size:
        where = f" for row {bad[0]}" + (f" and {bad.size - 1} more" if bad.size > 1 else "") if array.ndim else ""
        raise _wrong(name, "finite numbers", f"{np.atleast_1d(array)[bad[0]]}{where}")
    return array if array.ndim else float(array)


def compare(metric: Metric, name: str, reference: Outputs, engine: Outputs, labels: np.ndarray | None, rows: int) -> ByRow | Whole:
    """Score both engines on the same rows. Raises DataError as `scores`, and for too few rows."""
    if rows < LEAST_ROWS:
        raise DataError("There are too few rows for a metric", where="validation rows", expected=f"{LEAST_ROWS} or more", got=str(rows))
    first, second = (scores(metric, name, outputs, labels, rows) for outputs in (reference, engine))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return ByRow(first, second)
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        raise _wrong(name, "the same kind of answer for both engines", "scores for one and a number for the other")

    def pair(chosen: np.ndarray) -> tuple[float, float]:
        some = None if labels is None else labels[chosen]
        values = [scores(metric, name, {key: array[chosen] for key, array in outputs.items()}, some, len(chosen)) for outputs in (reference, engine)]
        if any(isinstance(value, np.ndarray) for value in values):
            raise _wrong(name, "one number, as for all rows", "scores for some rows")
        return float(values[0]), float(values[0]) - float(values[1])

    try:
        drawn = resampled(pair, rows)
    except DataError as error:
        raise DataError(
            f"{error.what}, on a resample of the rows",
            where=error.where,
            expected=error.expected,
            got=error.got,
            next="let it give one score a row, or a finite number for any choice of rows",
        ) from error
    return Whole(first, second, drawn, left_out(pair, rows), rows)


def rows_to_decide(figure: float, interval: Interval, limit: float, rows: int) -> int | None:
    """About how many rows in all would bring the bound to the limit, if new rows are like these `rows`; None where the figure is the limit itself."""
    reach, gap = max(interval.high - figure, figure - interval.low), abs(limit - figure)
    return math.ceil(rows * (reach / gap) ** 2) if gap > 0 else None


def _mean_interval(values: np.ndarray, side: float, largest: float) -> Interval:
    mean, rows = float(values.mean()), len(values)
    if not np.ptp(values):
        reach = _unseen(rows, side) * largest
    else:
        reach = float(special.stdtrit(rows - 1, side)) * float(values.std(ddof=1)) / math.sqrt(rows)
    return Interval(mean - reach, mean + reach, side)


def _unseen(rows: int, side: float) -> float:
    """Largest share of rows that may differ although none of `rows` did: the exact binomial bound, near 3 / rows at 95 %."""
    return float(1 - (1 - side) ** (1 / rows))


def resampled(pair: Callable[[np.ndarray], Any], rows: int) -> np.ndarray:
    """(resamples, ...): `pair`, the reference's value and the difference, of rows drawn with replacement."""
    random = np.random.default_rng(SEED)
    return np.array([pair(random.integers(0, rows, rows)) for _ in range(RESAMPLES)])


def left_out(pair: Callable[[np.ndarray], Any], rows: int) -> np.ndarray:
    """(groups, ...): the same of all rows but one group at a time (the jackknife)."""
    groups = np.array_split(np.random.default_rng(SEED).permutation(rows), min(rows, GROUPS))
    return np.array([pair(np.setdiff1d(np.arange(rows), group)) for group in groups])


def _bca(drawn: np.ndarray, left_out: np.ndarray, observed: float, side: float) -> Interval:
    """Efron's bias-corrected and accelerated limits; acceleration from the jackknife's skewness."""
    below = float(np.mean(drawn < observed) + np.mean(drawn == observed) / 2)
    correction = float(special.ndtri(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn))))
    spread = left_out.mean() - left_out
    scale = float(np.sum(spread**2)) ** 1.5
    acceleration = float(np.sum(spread**3)) / (6 * scale) if scale > 0 else 0.0

    def quantile(level: float) -> float:
        shifted = correction + float(special.ndtri(level))
        return float(np.quantile(drawn, float(special.ndtr(correction + shifted / (1 - acceleration * shifted)))))

    return Interval(quantile(1 - side), quantile(side), side)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.setflags(write=False)
    return view


def _wrong(name: str, expected: str, got: str) -> DataError:
    return DataError(
        "The metric cannot be used",
        where=f"gates.metric {name}",
        expected=expected,
        got=got,
        next="correct the function, or gates.metric in params.yaml",
    )
