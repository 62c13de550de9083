"""Forecasts of all models, a half-hour at a time. May die, lag or go wrong without the controller: it looks at `fault` and falls back."""

from __future__ import annotations

import base64
import binascii
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fleet.bursts import BurstLevel
from fleet.forecast import Forecaster, Part
from fleet.habits import AHEAD_SLOTS, Habits
from fleet.seasons import place_of, slot_of

RECENT_SLOTS = 480
"""Ten days: what a part's skill is judged on, and what is kept to begin anew with."""
Closed = list[tuple[int, float, float]]
"""Half-hours that ended: (slot, sessions, sessions expected before)."""


class Question(NamedTuple):
    """Learn half-hours that brought `sessions` where `expected` were; then forecast those from `slot` on, where the profile expects `usuals`."""

    name: str
    sessions: list[float]
    expected: list[float]
    slot: int
    usuals: list[float]


class Answer(NamedTuple):
    """Sessions of each half-hour from `slot` on; skill and coverage of late, None before they are known; what it cost in seconds."""

    name: str
    slot: int
    rates: list[float]
    skill: float | None
    coverage: float | None
    seconds: float

    def wrong(self) -> bool:
        """Whether it cannot be."""
        return len(self.rates) != AHEAD_SLOTS or not all(math.isfinite(rate) and rate >= 0.0 for rate in self.rates)


class Models:
    """One Forecaster a model. `extras()`: further parts for each (see `fleet.extras`), beside the one that follows bursts."""

    def __init__(self, extras: Callable[[], Sequence[Part]] = tuple) -> None:
        self.extras = extras
        self._of: dict[str, Forecaster] = {}

    def forget(self, name: str) -> None:
        """A model vanished."""
        self._of.pop(name, None)

    def of(self, name: str) -> Forecaster:
        """The model's own."""
        if name not in self._of:
            self._of[name] = Forecaster(recent=RECENT_SLOTS, extras=[BurstLevel(), *self.extras()])
        return self._of[name]

    def answer(self, question: Question) -> Answer:
        """Raises whatever a part raises."""
        started = time.perf_counter()
        forecaster = self.of(question.name)
        for sessions, expected in zip(question.sessions, question.expected, strict=True):
            forecaster.learn(sessions, expected)
            forecaster.forecast(expected)
        rates = forecaster.shape(question.usuals)
        return Answer(question.name, question.slot, rates, forecaster.skill, forecaster.coverage, time.perf_counter() - started)


class Forecasts:
    """In this process: answers are there at once. `seconds`, `count`: what forecasts have cost."""

    def __init__(self, models: Models | None = None) -> None:
        self.models = models or Models()
        self.seconds, self.count = 0.0, 0
        self.pid: int | None = None
        """Its process, where it has one of its own."""
        self.dead = ""
        """Why no more forecasts come; empty while they do."""
        self.told: dict[str, Answer] = {}
        """The last answer by model."""
        self._new: list[Answer] = []
        self._past: dict[str, tuple[array[float], array[float]]] = {}
        """Sessions and what was expected of them, of the last RECENT_SLOTS half-hours of each model."""
        self._known: set[str] = set()
        """Models whose past the forecaster has."""

    def fault(self, now: float) -> str:  # noqa: ARG002
        """Why forecasts cannot be trusted now; empty when they can."""
        return self.dead

    def kill(self, reason: str) -> None:
        """No more forecasts."""
        self.dead = reason

    def forget(self, name: str) -> None:
        """A model vanished."""
        self.models.forget(name)
        self.told.pop(name, None)
        self._past.pop(name, None)
        self._known.discard(name)

    def facts(self, name: str) -> dict[str, float | None]:
        """Skill against the moving average, and coverage of the 90 % intervals; None before either is known."""
        told = self.told.get(name)
        return {"skill": told.skill if told else None, "coverage": told.coverage if told else None}

    def ask(self, name: str, habits: Habits, closed: Closed, now: float) -> None:
        """Half-hours have ended: forecast a day from the one of `now`. It is never forgotten: a forecaster that is dead learns it later."""
        sessions, expected = self._past.setdefault(name, (array("f"), array("f")))
        sessions.extend(count for _, count, _ in closed)
        expected.extend(usual for _, _, usual in closed)
        del sessions[:-RECENT_SLOTS], expected[:-RECENT_SLOTS]
        if self.dead:
            self._known.discard(name)
            return
        new = min(len(closed), RECENT_SLOTS) if name in self._known else len(sessions)
        self._known.add(name)
        slot, profile = slot_of(now), habits.arrivals.profile
        usuals = [profile.expected(place_of(slot + ahead)) for ahead in range(AHEAD_SLOTS)]
        self.put(Question(name, list(sessions)[len(sessions) - new :], list(expected)[len(expected) - new :], slot, usuals))

    def put(self, question: Question) -> None:
        """Any exception in here counts as the forecaster's death: requests go on."""
        try:
            self.take(self.models.answer(question))
        except Exception as error:  # whatever it is, it must not reach a request
            self.kill(f"{type(error).__name__}: {error}")

    def take(self, answer: Answer) -> None:
        """An answer has come."""
        if answer.wrong():
            self.kill(f"wrong: a forecast of {answer.name} that cannot be: {answer.rates[:3]}")
            return
        self.told[answer.name] = answer
        self._new.append(answer)
        self.seconds += answer.seconds
        self.count += 1

    @property
    def heard(self) -> bool:
        """Whether `answers` has any."""
        return bool(self._new)

    def answers(self) -> list[Answer]:
        """Those that came since the last call."""
        found, self._new = self._new, []
        return found

    def saved(self) -> dict[str, str]:
        """What `restore` needs, by model."""
        return {name: base64.b64encode(sessions.tobytes() + expected.tobytes()).decode() for name, (sessions, expected) in self._past.items()}

    def restore(self, saved: Mapping[str, str]) -> list[str]:
        """Go on from what `saved` gave; returns the models whose past cannot be, which begin anew."""
        refused = []
        for name, text in saved.items():
            both = array("f")
            try:
                both.frombytes(base64.b64decode(text, validate=True))
            except (ValueError, binascii.Error):
                both = array("f", [math.nan])
            half = len(both) // 2
            if len(both) % 2 or half > RECENT_SLOTS or not all(math.isfinite(value) and value >= 0.0 for value in both):
                refused.append(name)
                continue
            self._past[name] = both[:half], both[half:]
            self._known.discard(name)
        return refused

    def close(self) -> None:
        """Nothing is held."""
