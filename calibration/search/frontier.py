"""The search itself: back to float, step by step, what brings the model nearest for the time it is expected to take."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from calibration.search.budget import Budget
from calibration.search.candidates import Candidate
from calibration.search.choices import Choices
from pipeline.errors import ModelError
from pipeline.search_records import SearchPoint, Sensitivity

SCAN_SHARE = 0.6
"""Of the time, for looking at each candidate alone."""
STEP_DB = 0.5
"""A step is measured when it is expected to be worth this."""
TRIED = 4
"""Candidates that are looked at anew in each step, beside those that touch what was added last."""
LEAST_STEP = 0.02
"""Part of the drift that a candidate is predicted to take away, and then a step does (0.1 dB): less is noise, and a layer in float for ever."""
REFUSED_IN_A_ROW = 6
"""Candidates; then nothing better is expected of the others."""
MET, PLAIN_MET, TIME = "max_drift is met", "plain INT8 is within max_drift", "search_seconds are over"
NO_GAIN, ALL_FLOAT = "no further layer brings the model nearer", "every layer but one is in float"
TOO_SLOW = "what is left is beyond max_slowdown, or no nearer"


@dataclasses.dataclass(frozen=True)
class Found:
    """`reasons`: why each layer of the chosen point is in float."""

    points: tuple[SearchPoint, ...]
    chosen: int
    sensitivities: tuple[Sensitivity, ...]
    reasons: Mapping[str, str]
    stopped: str
    seconds: float


class OutOfTime(Exception):
    """The search's time is over."""


class Search:
    """Greedy and anytime.

    Sensitivity is the drift that is left when one candidate alone is back in float (Wu et al., "Integer quantization for deep learning
    inference: principles and empirical evaluation", 2020, section 5.2, turn it round: one layer alone quantized). A step adds candidates by drift
    gained for predicted cost, each looked at anew given what is in float already, until that is worth `STEP_DB` or enough; the choice is then
    fitted, built, timed and judged in each runtime. A candidate that makes the model slower than the budget is passed over. Everything
    measured goes to the journal.
    """

    def __init__(
        self,
        layers: Sequence[str],
        candidates: Sequence[Candidate],
        costs: Mapping[str, float],
        touching: Collection[tuple[str, str]],
        choices: Choices,
        budget: Budget,
        progress: Callable[[int, int, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = {layer: place for place, layer in enumerate(layers)}
        self._layers, self._candidates, self._costs, self._touching = frozenset(layers), candidates, costs, touching
        self._choices, self._budget, self._progress = choices, budget, progress
        self._clock, self._started = clock, clock() - choices.journal.seconds
        self._gains: dict[str, float] = {}
        self._passed: set[str] = set()
        self._points: list[SearchPoint] = []
        self._reasons: dict[str, str] = {}

    def run(self) -> Found:
        """Search until the budget is met or nothing is left to try."""
        plain = self._point("", frozenset())
        stopped = PLAIN_MET
        if not self._budget.met(plain):
            try:
                self._scan()
                stopped = self._grow(plain)
            except OutOfTime:
                stopped = TIME
        chosen = choice(self._points, self._budget)
        layers = set(self._points[chosen].float_layers)
        reasons = {layer: reason for layer, reason in self._reasons.items() if layer in layers}
        return Found(tuple(self._points), chosen, self._sensitivities(), reasons, stopped, self._elapsed())

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _screen(self, layers: frozenset[str], share: float = 1.0) -> float:
        if self._choices.knows(layers):
            return self._choices.screen(layers)
        if self._elapsed() >= self._budget.seconds * share:
            raise OutOfTime
        drift = self._choices.screen(layers)
        self._keep()
        return drift

    def _point(self, added: str, layers: frozenset[str]) -> SearchPoint:
        if self._points and not self._choices.journal.has(layers) and self._elapsed() >= self._budget.seconds:
            raise OutOfTime
        point = self._choices.point(added, layers)
        self._points.append(point)
        self._keep()
        return point

    def _keep(self) -> None:
        self._choices.journal.save(self._elapsed())
        best = self._points[choice(self._points, self._budget)]
        ratio = "" if best.latency_ratio is None else f" at {best.latency_ratio:.2f}x"
        self._progress(
            min(int(self._elapsed()), int(self._budget.seconds)), int(self._budget.seconds),
            f"best so far {decibel(best.worst_drift)}{ratio}, {len(best.float_layers)} layers in float",
        )  # fmt: skip

    def _scan(self) -> None:
        """Each candidate alone, from both ends of the network inwards: if time runs out, the middle is not known."""
        plain, most = self._screen(frozenset()), len(self._order) - 1

        def depth(candidate: Candidate) -> int:
            return min(min(self._order[layer], most - self._order[layer]) for layer in candidate.layers)

        with contextlib.suppress(OutOfTime):
            for candidate in sorted(self._candidates, key=lambda each: (depth(each), self._cost(each.layers))):
                if candidate.layers < self._layers:
                    self._gains[candidate.name] = plain - self._screen(candidate.layers, SCAN_SHARE)

    def _grow(self, before: SearchPoint) -> str:
        chosen: frozenset[str] = frozenset()
        last, refused, most = chosen, 0, len(self._candidates)
        while True:
            step = self._step(chosen, last, before, most)
            if not step:
                return TOO_SLOW if refused else ALL_FLOAT if len(chosen) >= len(self._layers) - 1 else NO_GAIN
            layers, added = chosen.union(*(each.layers for each in step)), "; ".join(each.name for each in step)
            try:
                point = self._point(added, layers)
            except ModelError:  # a runtime cannot build this mixture
                point = None
            if point is None or self._budget.slow(point) or point.worst_drift > (1 - LEAST_STEP) * before.worst_drift:
                if len(step) == 1:
                    self._passed.add(step[0].name)
                    refused += 1
                    if refused >= REFUSED_IN_A_ROW:
                        return TOO_SLOW
                most = 1
                continue
            self._reasons |= dict.fromkeys(layers - chosen, _reason(before, point, added, len(layers - chosen)))
            last, refused = layers - chosen, 0
            chosen, before = layers, point
            if self._budget.met(point):
                return MET

    def _step(self, chosen: frozenset[str], last: frozenset[str], before: SearchPoint, most: int) -> list[Candidate]:
        """At most `most` candidates that are expected to be enough, or worth measuring."""
        start, layers, step = self._screen(chosen), chosen, list[Candidate]()
        wanted = max(self._budget.max_drift, before.worst_drift * 10 ** (-STEP_DB / 10))
        while len(step) < most and (candidate := self._next(layers, last)) is not None:
            step.append(candidate)
            last, layers = candidate.layers - layers, layers | candidate.layers
            if before.worst_drift * self._screen(layers) <= wanted * start:
                break
        return step

    def _next(self, chosen: frozenset[str], last: frozenset[str]) -> Candidate | None:
        """The candidate with most gain for its cost, given what is in float: of the most promising ones, else the first that gains at all."""
        now = self._screen(chosen)
        left = [
            each
            for each in self._candidates
            if each.name in self._gains and each.name not in self._passed and not each.layers <= chosen and chosen | each.layers < self._layers
        ]
        left.sort(key=lambda each: -self._gains[each.name] / self._cost(each.layers - chosen))
        near = {layer for pair in self._touching if last.intersection(pair) for layer in pair} - last
        first = [*left[:TRIED], *(each for each in left[TRIED:] if len(each.layers - chosen) <= 2 and near.intersection(each.layers - chosen))]
        scores: dict[str, float] = {}
        for number, candidate in enumerate([*first, *(each for each in left if each not in first)]):
            if number >= len(first) and scores and max(scores.values()) > 0:
                break
            gain = now - self._screen(chosen | candidate.layers)
            self._gains[candidate.name] = gain
            scores[candidate.name] = gain / self._cost(candidate.layers - chosen) if gain > LEAST_STEP * now else 0.0
        best = max(scores, key=lambda name: scores[name], default="")
        return next(each for each in left if each.name == best) if scores.get(best, 0.0) > 0 else None

    def _cost(self, layers: Collection[str]) -> float:
        return sum(self._costs[layer] for layer in layers)

    def _sensitivities(self) -> tuple[Sensitivity, ...]:
        """The nearest first."""
        known = [each for each in self._candidates if self._choices.knows(each.layers)]
        plain = self._choices.screen(frozenset()) if known else 0.0
        found = []
        for each in known:
            drift = self._choices.screen(each.layers)
            gain = 10 * math.log10(plain / drift) if plain > 0 and drift > 0 else 0.0
            found.append(Sensitivity(each.name, tuple(sorted(each.layers)), drift, gain, self._cost(each.layers)))
        return tuple(sorted(found, key=lambda each: each.drift))


def choice(points: Sequence[SearchPoint], budget: Budget) -> int:
    """Of the points that are fast enough, the fastest that is near enough; else the nearest, or what is as near with fewer layers in float."""
    allowed = [place for place, point in enumerate(points) if point.whole and not budget.slow(point)]
    near = [place for place in allowed if budget.met(points[place])]
    if near:
        return min(near, key=lambda place: (points[place].latency_ratio or 1.0, len(points[place].float_layers)))
    reached = min(points[place].worst_drift for place in allowed) / (1 - LEAST_STEP)
    nearest = [place for place in allowed if points[place].worst_drift <= reached]
    return min(nearest, key=lambda place: (len(points[place].float_layers), points[place].worst_drift))


def frontier(points: Sequence[SearchPoint]) -> tuple[int, ...]:
    """Places of the points that no other beats in both drift and latency, the fastest first: drift falls along them."""
    order = sorted((place for place, point in enumerate(points) if point.whole), key=lambda place: (_time(points[place]), points[place].worst_drift))
    kept: list[int] = []
    for place in order:
        if not kept or points[place].worst_drift < points[kept[-1]].worst_drift:
            kept.append(place)
    return tuple(kept)


def _time(point: SearchPoint) -> float:
    return point.latency_ratio if point.latency_ratio is not None else 1.0 + len(point.float_layers)


def decibel(drift: float) -> str:
    """SQNR in words."""
    return f"{-10 * math.log10(drift):.1f} dB" if drift > 0 else "no error"


def _reason(before: SearchPoint, after: SearchPoint, added: str, count: int) -> str:
    gain = f"{10 * math.log10(before.worst_drift / after.worst_drift):+.1f} dB" if after.worst_drift > 0 else "the rest of the error"
    if before.latency_ratio is None or after.latency_ratio is None:
        cost = "; no target's latency can be measured here"
    else:
        cost = f" for {after.latency_ratio / before.latency_ratio:.2f}x latency"
    return f"search: {gain}{cost}" + (f", together: {added}" if count > 1 else "")
