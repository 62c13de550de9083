"""Counts of the next step, or of the next few together, online: levels, levels over a seasonal profile, further parts, and the median of their blend.

A part counts by its recent skill against the best moving average (EWMA); one that does not beat it there has weight zero, so that a forecast without
anything to add is that average. Intervals are conformal: their width is steered so that one outcome in ten falls outside (Gibbs and Candes, "Adaptive
Conformal Inference Under Distribution Shift", NeurIPS 2021), whatever the distribution. Standard library only; memory is constant.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.9)
"""Shares of the newest step in the moving averages."""
FIRST_ALPHA = 0.3
MISS = 0.1
"""Outcomes outside the interval, as a share."""
WIDTH_STEP, MEDIAN_STEP = 0.05, 0.01
LAG_STEPS = 20.0
"""An outcome is known `horizon` steps late: the later, the smaller the step, or the width would swing."""
SHARPNESS = 12.0
"""Weight of a part is its recent error to the minus this: the better half of equals gets most."""
LEAST_GAIN = 0.005
"""A part must be better than the average by this share."""
LEAST_STEPS = 24
"""Outcomes that do not overlap, before skill is judged."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Count expected in the steps ahead, with the interval that nine of ten outcomes fall in."""

    mean: float
    low: float
    high: float


class Part(Protocol):
    """A forecast of its own that joins the blend by its skill."""

    def learn(self, count: float, usual: float) -> None:
        """A step ended with `count`, of which the profile had expected `usual` (0 for none)."""

    def ahead(self, usuals: list[float]) -> list[float]:
        """Counts of the steps ahead, one for each of `usuals`, which the profile expects of them."""
        ...


class Forecaster:
    """One series of counts. `horizon`: how many steps ahead are forecast together, as their sum. `recent`: outcomes that skill is judged on, about.
    `extras`: parts beside the moving averages, plain and over the profile.

    `learn(count, usual)` after each step; `usual` is what a seasonal profile had expected of it, 0 for none. Then `forecast(usual ahead)`.
    """

    __slots__ = (
        "_errors",
        "_first", "_fit", "_pending", "_window", "bias", "extras", "hits", "horizon", "levels", "recent", "steps", "told", "usuals", "width",
    )  # fmt: skip

    def __init__(self, horizon: int = 1, recent: int = 1500, extras: Sequence[Part] = ()) -> None:
        self.horizon, self.recent, self.extras = horizon, recent, tuple(extras)
        self.levels = [0.0] * len(ALPHAS)
        self.usuals = [0.0] * len(ALPHAS)
        """Moving averages of the profile, to compare levels with."""
        self.steps = 0
        self._first = min(range(len(ALPHAS)), key=lambda index: abs(math.log(ALPHAS[index] * math.sqrt(horizon) / FIRST_ALPHA)))
        """The moving average to begin with: the further ahead, the slower."""
        self._window: deque[float] = deque(maxlen=horizon)
        self._pending: deque[tuple[list[float], float, float]] = deque()
        self._errors = [0.0] * (2 * len(ALPHAS) + 3 + len(self.extras))
        """Recent mean absolute error: of averages, plain and over the profile; of the profile, extras, the blend, and the blend at its median."""
        self._fit = 0.0
        self.bias = 0.0
        """Median of (outcome - blend) / scale."""
        self.width = 1.64 * horizon**0.25
        """Half the interval in scales."""
        self.hits = self.told = 0
        """Outcomes inside their interval, of how many."""

    @property
    def ready(self) -> bool:
        """Whether enough outcomes are known to judge parts by."""
        return self._fit >= LEAST_STEPS * self.horizon

    @property
    def skill(self) -> float | None:
        """1 - recent error over that of the best moving average; None before it can be told."""
        best = min(self._errors[: len(ALPHAS)])
        return 1.0 - min(best, *self._errors[-2:]) / best if self.ready and best > 0.0 else None

    @property
    def coverage(self) -> float | None:
        """Share of outcomes inside their interval."""
        return self.hits / self.told if self.told else None

    def learn(self, count: float, usual: float = 0.0) -> None:
        """A step ended with `count`."""
        self._window.append(count)
        self.steps += 1
        for index, alpha in enumerate(ALPHAS):
            share = max(alpha, 1.0 / self.steps)
            self.levels[index] += share * (count - self.levels[index])
            self.usuals[index] += share * (usual - self.usuals[index])
        for extra in self.extras:
            extra.learn(count, usual)
        if len(self._pending) == self.horizon and len(self._window) == self.horizon:
            self._judge(*self._pending.popleft(), sum(self._window))

    def _judge(self, parts: list[float], point: float, scale: float, outcome: float) -> None:
        """What was forecast for the steps that just ended, against what they brought."""
        errors = self._errors
        self._fit += 1.0
        share = max(1.0 / self._fit, 1.0 / (self.recent * self.horizon))
        for index, part in enumerate(parts):
            errors[index] += share * (abs(outcome - part) - errors[index])
        blend = parts[-2]
        self.bias += MEDIAN_STEP * ((outcome > blend + self.bias * scale) - (outcome < blend + self.bias * scale))
        missed = abs(outcome - point) > self.width * scale
        self.told += 1
        self.hits += not missed
        self.width *= math.exp(WIDTH_STEP / (1.0 + self.horizon / LAG_STEPS) * (missed - MISS))

    def forecast(self, usual: float = 0.0) -> Forecast:
        """The steps ahead; `usual`: what the profile expects of all of them together. To be called once after each `learn`."""
        horizon, count = self.horizon, len(ALPHAS)
        parts = [level * horizon for level in self.levels]
        floor = 0.02 * self.usuals[0] + 1e-9
        parts += [
            level * usual / max(base, floor) if usual > 0.0 and base > 0.0 else level * horizon
            for level, base in zip(self.levels, self.usuals, strict=True)
        ]
        parts.append(usual if usual > 0.0 else parts[0])
        parts += [sum(extra.ahead([usual / horizon] * horizon)) for extra in self.extras]
        errors, ready = self._errors, self.ready
        best = min(range(count), key=errors.__getitem__) if ready else self._first
        limit = errors[best] * (1.0 - LEAST_GAIN)
        weights = [(errors[index] / errors[best]) ** -SHARPNESS if 0.0 < errors[index] < limit else 0.0 for index in range(len(parts))]
        weights[best] = 1.0
        blend = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights) if ready else parts[best]
        scale = math.sqrt(max(blend, 0.0) + 1.0)
        middle = max(0.0, blend + self.bias * scale)
        parts += [blend, middle]
        choices = (best, len(parts) - 2, len(parts) - 1)
        point = parts[min(choices, key=errors.__getitem__) if ready else best]
        self._pending.append((parts, point, scale))
        return Forecast(point, max(0.0, point - self.width * scale), point + self.width * scale)

    def shape(self, usuals: list[float]) -> list[float]:
        """Counts of single steps further ahead, by the best part; `usuals`: what the profile expects of each."""
        count = len(ALPHAS)
        best = min(range(count), key=self._errors.__getitem__)
        other = min(range(count, len(self._errors) - 2), key=self._errors.__getitem__)
        if not self.ready or self._errors[other] >= self._errors[best]:
            return [self.levels[best]] * len(usuals)
        if other > 2 * count:
            return self.extras[other - 2 * count - 1].ahead(usuals)
        index = other - count
        ratio = 1.0 if index == count else self.levels[index] / max(self.usuals[index], 0.02 * self.usuals[0] + 1e-9)
        return [ratio * usual for usual in usuals]
