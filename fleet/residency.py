"""Loads and unloads: one background load at a time, urgent ones first and whole, victims by the arbiter; and when to look at a model again."""

from __future__ import annotations

import abc
import heapq
from collections.abc import Callable

from fleet.arbiter import Arbiter
from fleet.models import Action, Kind, Phase
from fleet.modes import Mode, Modes
from fleet.plans import NEVER, Interval
from fleet.resident import Resident
from pipeline.errors import InputError

MOST_BACKGROUND = 1
"""Loads at once that nobody waits for: more would take the cores of the neighbours' requests."""
HANG_FACTOR, HANG_S = 15.0, 30.0
"""A load counts as hung after fifteen times its measured length plus this: in the background it may stand still for most of the time."""
REFRESH_SLACK_S = 1.0


class Residency(abc.ABC):
    """The models with their phases, and when each is to be looked at again."""

    def __init__(self, arbiter: Arbiter, modes: Modes, log: Callable[..., None]) -> None:
        self.arbiter, self.modes, self.log = arbiter, modes, log
        self.models: dict[str, Resident] = {}
        self._wakes: list[tuple[float, str]] = []
        self._waiting: dict[str, bool] = {}
        """Models that wait for memory, for their turn or for a retry, in order; whether somebody waits for them."""

    def model(self, name: str) -> Resident:
        """Raises InputError for a model that was never added."""
        if name not in self.models:
            raise InputError(
                "There is no such model", where=name[:200], expected=f"one of {', '.join(sorted(self.models))[:500]}", got="an unknown name"
            )
        return self.models[name]

    @abc.abstractmethod
    def plan(self, model: Resident, now: float) -> None:
        """Decide for a model that became idle."""

    @abc.abstractmethod
    def failed(self, name: str, now: float, reason: str) -> list[Action]:
        """A load ended badly; see `Reports`."""

    def account(self) -> None:
        """After every change of a phase."""
        self.arbiter.account(self.models.values())

    def forget(self, name: str) -> None:
        """A model vanished."""
        self._waiting.pop(name, None)
        self.modes.leave(Mode.FULL_LOAD, name)

    # ---- loads

    def load(self, model: Resident, now: float, *, urgent: bool, reason: str) -> list[Action]:
        """Ask for a model; what can be begun now is."""
        name = model.spec.name
        hurry: list[Action] = []
        if model.phase is Phase.LOADING and urgent and not model.urgent:
            model.urgent = True
            hurry = [Action(Kind.HURRY, name, True, reason)]
        elif model.phase not in (Phase.LOADING, Phase.WARM):
            self._waiting[name] = self._waiting.get(name, False) or urgent
        if urgent and model.phase is not Phase.WARM:
            self.modes.enter(Mode.FULL_LOAD, name, now, reason)
            hurry += [Action(Kind.HURRY, other.spec.name, True, reason) for other in self.models.values() if other.phase is Phase.UNLOADING]
        return [*hurry, *self.serve_waiting(now)]

    def serve_waiting(self, now: float) -> list[Action]:
        """Begin the loads that may begin: those that somebody waits for first, then one in the background while no other load runs."""
        if not self._waiting:
            return []
        actions: list[Action] = []
        loading = [model for model in self.models.values() if model.phase is Phase.LOADING]
        busy = len(loading)
        leaving = sum(model.leaving_mb for model in self.models.values() if model.phase is Phase.UNLOADING)
        for name in sorted(self._waiting, key=lambda item: not self._waiting[item]):
            model, urgent = self.models[name], self._waiting[name]
            if model.phase in (Phase.LOADING, Phase.WARM) or (not urgent and not self._wanted(model, now)):
                del self._waiting[name]
                continue
            if model.phase is Phase.UNLOADING or now < model.away_until or (not urgent and busy >= MOST_BACKGROUND):
                continue
            need = model.spec.contexts_mb if model.phase is Phase.WEIGHTS else model.spec.size_mb
            below = None if urgent or model.spec.pinned else self.arbiter.rank(model, now)
            victims = self.arbiter.victims(need - leaving, [other for other in self.models.values() if other is not model], now, below)
            if victims is None:
                if not urgent:
                    del self._waiting[name]
                continue
            for victim, phase in victims:
                leaving += victim.spec.contexts_mb if phase is Phase.WEIGHTS else victim.memory_mb
                victim.counts["evictions"] += 1
                actions.append(self.unload(victim, now, phase, f"gives way to {name}", urgent))
            if not self.arbiter.fits(need):
                leaving -= need  # promised to this one
                continue
            del self._waiting[name]
            actions.append(self._begin(model, now, urgent))
            busy += 1
        return actions

    def _wanted(self, model: Resident, now: float) -> bool:
        """Whether a model that is out is to be loaded ahead of demand; a keep-alive that an eviction ended is not taken up again."""
        if model.spec.pinned or model.plan is None or not model.plan.wants(now)[0]:
            return model.spec.pinned
        window = model.plan.next_window(now)
        return window is not None and window[0] <= now

    def _begin(self, model: Resident, now: float, urgent: bool) -> Action:
        spec = model.spec
        seconds = spec.contexts_s if model.phase is Phase.WEIGHTS else spec.load_s
        model.phase, model.urgent, model.asked = Phase.LOADING, urgent, now
        model.deadline = now + HANG_FACTOR * seconds + HANG_S
        model.counts["loads"] += 1
        if not urgent:
            model.idle_since = now
            model.open, model.opened = True, now
            model.counts["prewarms"] += 1
        self.account()
        self.wake(model, model.deadline)
        return Action(Kind.LOAD, spec.name, urgent, "somebody waits" if urgent else "a request is expected", seconds)

    def unload(self, model: Resident, now: float, to: Phase, reason: str, urgent: bool = False) -> Action:
        """Give memory back: contexts alone (to WEIGHTS) or all of it (to OUT). `urgent`: somebody waits for it."""
        model.leaving_mb = model.spec.contexts_mb if to is Phase.WEIGHTS else model.memory_mb
        model.phase, model.leaving_to = Phase.UNLOADING, to
        model.stop_idle(now)
        model.close_prewarm(used=False)
        self.account()
        return Action(Kind.DROP_CONTEXTS if to is Phase.WEIGHTS else Kind.UNLOAD, model.spec.name, urgent, reason)

    # ---- time

    def wake(self, model: Resident, at: float) -> None:
        """Look at the model again at `at`, or earlier."""
        if at < model.wake_at:
            model.wake_at = at
            heapq.heappush(self._wakes, (at, model.spec.name))

    def next_wake(self) -> float:
        """When `tick` is due; NEVER when nothing is."""
        while self._wakes:
            at, name = self._wakes[0]
            if name in self.models and self.models[name].wake_at == at:
                return at
            heapq.heappop(self._wakes)
        return NEVER

    def due(self, now: float) -> list[Action]:
        """Look at every model whose time has come."""
        actions: list[Action] = []
        while self.next_wake() <= now:
            _, name = heapq.heappop(self._wakes)
            model = self.models[name]
            model.wake_at = NEVER
            actions += self._review(model, now)
        return actions

    def _review(self, model: Resident, now: float) -> list[Action]:
        if model.phase is Phase.LOADING:
            if now < model.deadline:
                self.wake(model, model.deadline)
                return []
            return [Action(Kind.UNLOAD, model.spec.name, reason="the load hangs"), *self.failed(model.spec.name, now, "it hangs")]
        if model.spec.name in self._waiting and now >= model.away_until:
            return self.serve_waiting(now)
        if model.users or model.phase is Phase.UNLOADING:
            return []
        wanted, change = model.plan.wants(now) if model.plan is not None else (False, NEVER)
        self.wake(model, change if change > now else now + REFRESH_SLACK_S)
        if model.phase is Phase.OUT and self._wanted(model, now):
            if now < model.away_until:
                self.wake(model, model.away_until)
                return []
            return self.load(model, now, urgent=False, reason="")
        if model.phase is Phase.WARM and wanted and isinstance(model.plan, Interval):
            model.close_prewarm(used=False)
            model.open, model.opened = True, now
            model.counts["prewarms"] += 1
        if model.phase is not Phase.OUT and not wanted and not model.spec.pinned:
            return [self.unload(model, now, Phase.OUT, "no request is expected")]
        return []
