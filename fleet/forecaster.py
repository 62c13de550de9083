"""Forecasts of all models, a half-hour at a time. May die, lag or go wrong without the controller: it looks at `fault` and falls back."""

from __future__ import annotations

import time

from fleet.forecast import Forecaster
from fleet.habits import AHEAD_SLOTS, Habits
from fleet.seasons import place_of, slot_of

RECENT_SLOTS = 480
"""Ten days: what a part's skill is judged on."""


class Forecasts:
    """One Forecaster a model. `seconds`, `count`: what forecasts have cost."""

    def __init__(self) -> None:
        self._of: dict[str, Forecaster] = {}
        self.seconds, self.count = 0.0, 0
        self.dead = ""
        """Why no more forecasts come; empty while they do."""

    def fault(self, now: float) -> str:  # noqa: ARG002  (a forecaster in another process compares `now` with its last sign of life)
        """Why forecasts cannot be trusted now; empty when they can."""
        return self.dead

    def kill(self, reason: str) -> None:
        """No more forecasts."""
        self.dead = reason

    def revive(self) -> None:
        """Forecasts again, with what was learnt so far."""
        self.dead = ""

    def forget(self, name: str) -> None:
        """A model vanished."""
        self._of.pop(name, None)

    def of(self, name: str) -> Forecaster:
        """The model's own."""
        if name not in self._of:
            self._of[name] = Forecaster(recent=RECENT_SLOTS)
        return self._of[name]

    def facts(self, name: str) -> dict[str, float | None]:
        """Skill against the moving average, and coverage of the 90 % intervals; None before either is known."""
        forecaster = self._of.get(name)
        return {"skill": forecaster.skill, "coverage": forecaster.coverage} if forecaster is not None else {"skill": None, "coverage": None}

    def refresh(self, name: str, habits: Habits, closed: list[tuple[int, float, float]], now: float) -> None:
        """Learn half-hours that ended, as (slot, sessions, what was expected), and forecast a day from the one of `now` into `habits`.

        Any exception in here counts as the forecaster's death: requests go on.
        """
        if self.dead:
            return
        started = time.perf_counter()
        try:
            forecaster = self.of(name)
            for _, sessions, expected in closed[-AHEAD_SLOTS:]:
                forecaster.learn(sessions, expected)
                forecaster.forecast(expected)
            slot, profile = slot_of(now), habits.arrivals.profile
            habits.forecast(slot, forecaster.shape([profile.expected(place_of(slot + ahead)) for ahead in range(AHEAD_SLOTS)]))
        except Exception as error:  # whatever it is, it must not reach a request
            self.dead = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - started
        self.count += 1
