"""One model under the controller: where it is, who uses it, its plan, and what it has cost so far."""

from __future__ import annotations

from typing import Any

from fleet.arrivals import Arrivals
from fleet.habits import Habits
from fleet.models import ModelSpec, Phase
from fleet.plans import NEVER, Plan
from fleet.policies import Policy
from fleet.selector import Selector

COUNTS = ("requests", "cold", "late_loads", "prewarms", "prewarm_hits", "wasted", "loads", "load_failures", "evictions", "rollbacks")


class Resident:
    """A model's state. `users`: requests inside. `asked`: when the load that runs was asked for."""

    __slots__ = (
        "asked", "away_until", "counts", "deadline", "decisions", "dual", "failures", "frequency", "good", "habits", "idle_s", "idle_since",
        "leaving_mb", "leaving_to", "open",
        "opened", "phase", "plan", "selector", "since", "spec", "urgent", "users", "wake_at",
    )  # fmt: skip

    def __init__(self, spec: ModelSpec, policies: dict[str, Policy], price_s: float) -> None:
        self.spec, self.phase, self.users = spec, Phase.OUT, 0
        price = spec.cold_price_s(price_s)
        self.habits = Habits(Arrivals(), price, 1.25 * spec.load_s)
        self.selector = Selector(policies, price)
        self.plan: Plan | None = None
        self.since: float | None = None
        """When the last pause began."""
        self.idle_since: float | None = None
        """Since when memory is held and nobody uses it."""
        self.idle_s = 0.0
        self.open, self.opened = False, 0.0
        """Whether a warm-up ahead of demand waits to be of use, and when it was begun."""
        self.wake_at = NEVER
        self.asked = self.deadline = self.away_until = 0.0
        self.urgent = False
        self.leaving_mb, self.leaving_to = 0.0, Phase.OUT
        self.failures = 0
        self.good = spec.last_good
        self.frequency = self.dual = 0.0
        self.counts = dict.fromkeys(COUNTS, 0)
        self.decisions: dict[str, int] = {}

    @property
    def memory_mb(self) -> float:
        """What it holds now; a load holds all from its start, an unload until its end."""
        if self.phase is Phase.OUT:
            return 0.0
        if self.phase is Phase.UNLOADING:
            return self.leaving_mb + (self.spec.weights_mb if self.leaving_to is Phase.WEIGHTS else 0.0)
        return self.spec.weights_mb if self.phase is Phase.WEIGHTS else self.spec.size_mb

    def wait_s(self, now: float) -> float | None:
        """Seconds until the next request is likely: by its period, else by the half-hours that usually start as many sessions; None when unknown."""
        return self.habits.wait_s(now)

    def settle(self, now: float) -> None:
        """Count the idle time until now and go on counting."""
        if self.idle_since is not None:
            self.idle_s += max(0.0, now - self.idle_since)
            self.idle_since = now

    def stop_idle(self, now: float) -> None:
        """Memory is used from now on, or given back."""
        self.settle(now)
        self.idle_since = None

    def close_prewarm(self, used: bool) -> None:
        """A warm-up ahead of demand met a request, or none."""
        if self.open:
            self.counts["prewarm_hits" if used else "wasted"] += 1
            self.open = False

    def facts(self, now: float) -> dict[str, Any]:
        """For status and metrics."""
        self.settle(now)
        return {
            "phase": self.phase.name,
            "users": self.users,
            "policy": self.selector.name,
            "warm_idle_s": self.idle_s,
            "seen": int(self.habits.arrivals.total),
            "decisions": dict(self.decisions),
            **self.counts,
        }
