"""What a leak would have cost: the same model calibrated on clean rows, and on rows that then judge it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.records import Claim, LeakCost
from pipeline.verdicts import Interval

CLEAN, LEAKED = "clean", "leaked"
RESAMPLES, CONFIDENCE = 2000, 0.90


Outputs = Mapping[str, np.ndarray]
"""`{output: (N, ...)}`, the same rows in every model."""


def measure(reference: Outputs, clean: Outputs, leaked: Outputs, was_leaked: np.ndarray, *, classes: bool, seed: int = 0, **bound: Any) -> LeakCost:
    """Compare two calibrations of one model with its float outputs; `was_leaked` (N,) says which rows the second was calibrated on.

    A row's error is its squared difference, each output over its own mean power; SQNR is 10 log10 of summed power over summed error.
    Intervals are percentile bootstrap over rows (B. Efron, 1979), both calibrations resampled together because their rows are the same.
    `bound` holds the other fields of `LeakCost`. Raises DataError when one of the two sets of rows is too small to resample.
    """
    sets = {LEAKED: np.flatnonzero(was_leaked), CLEAN: np.flatnonzero(~was_leaked)}
    for name, rows in sets.items():
        if len(rows) < 2:
            raise DataError(
                "There are too few rows to say what a leak costs", where=f"{name} validation rows", expected="at least 2", got=str(len(rows))
            )
    power, errors = _by_row(reference, {CLEAN: clean, LEAKED: leaked})
    changed = _changed(reference, {CLEAN: clean, LEAKED: leaked}) if classes else None
    generator = np.random.default_rng(seed)
    claims, gains, spread, hidden = [], dict[str, float](), dict[str, np.ndarray](), dict[str, float]()
    for judged_on in (CLEAN, LEAKED):
        rows = sets[judged_on]
        weights = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES).astype(np.float64)
        drawn = {side: _sqnr(weights @ power[rows], weights @ errors[side][rows]) for side in (CLEAN, LEAKED)}
        plain = {side: float(_sqnr(power[rows].sum(), errors[side][rows].sum())) for side in (CLEAN, LEAKED)}
        gains[judged_on], spread[judged_on] = plain[LEAKED] - plain[CLEAN], drawn[LEAKED] - drawn[CLEAN]
        for side in (CLEAN, LEAKED):
            share = None if changed is None else float(changed[side][rows].mean())
            share_interval = None if changed is None else _interval(weights @ changed[side][rows] / len(rows))
            exact = not errors[side][rows].any()
            decibel, decibel_interval = (None, None) if exact else (plain[side], _interval(drawn[side]))
            claims.append(Claim(side, judged_on, len(rows), decibel, decibel_interval, share, share_interval))
        if changed is not None:
            hidden[judged_on] = float(changed[CLEAN][rows].mean() - changed[LEAKED][rows].mean())
    flattery, interval = gains[LEAKED] - gains[CLEAN], _interval(spread[LEAKED] - spread[CLEAN])
    claimed, honest = (next(c.sqnr_db for c in claims if (c.calibrated_on, c.judged_on) == (LEAKED, judged)) for judged in (LEAKED, CLEAN))
    return LeakCost(
        claims=tuple(claims),
        flattery_db=flattery,
        flattery_interval=interval,
        flattery_changed=hidden[LEAKED] - hidden[CLEAN] if hidden else None,
        sentence=_sentence(len(sets[LEAKED]), claimed, honest, flattery, interval),
        **bound,
    )


def _by_row(reference: Outputs, others: Mapping[str, Outputs]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rows = len(next(iter(reference.values())))
    power, errors = np.zeros(rows), {name: np.zeros(rows) for name in others}
    for name, array in reference.items():
        wide = array.reshape(rows, -1).astype(np.float64)
        each = np.square(wide).sum(axis=1)
        mean = float(each.mean()) or 1.0
        power += each / mean
        for side, outputs in others.items():
            errors[side] += np.square(wide - outputs[name].reshape(rows, -1).astype(np.float64)).sum(axis=1) / mean
    return power, errors


def _changed(reference: Outputs, others: Mapping[str, Outputs]) -> dict[str, np.ndarray]:
    first = next(iter(reference))
    return {name: (outputs[first].argmax(axis=1) != reference[first].argmax(axis=1)).astype(np.float64) for name, outputs in others.items()}


def _sqnr(power: Any, error: Any) -> Any:
    """In dB; an error of zero counts as the smallest float, so that differences stay finite."""
    return 10 * np.log10(np.maximum(power, np.finfo(np.float64).tiny) / np.maximum(error, 1e-12 * np.maximum(power, np.finfo(np.float64).tiny)))


def _interval(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high), (1 + CONFIDENCE) / 2)


def _sentence(rows: int, claimed: float | None, honest: float | None, flattery: float, interval: Interval) -> str:
    def decibel(value: float | None) -> str:
        return "no difference" if value is None or math.isinf(value) else f"{value:.1f} dB"

    opening = f"Calibrated on {rows} of the rows that judge it, the model would have claimed {decibel(claimed)} on them"
    opening += f" against {decibel(honest)} on rows it never saw"
    span = f"{flattery:+.2f} dB (90 % interval {interval.low:+.2f} to {interval.high:+.2f})"
    if interval.low > 0:
        return f"{opening}: the leak would have flattered the result by {span}."
    if interval.high < 0:
        return f"{opening}: the leak would have flattered nothing here; it costs {span}."
    return f"{opening}: on this model and these rows the leak would have flattered the result by no more than chance, {span}."
