"""Which models are warm, on any clock: told of requests and of what servers did, it answers with what servers are to do.

Never reads a clock, sleeps or starts anything: replay drives it on a virtual clock, `fleet.control` on the real one. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleet.arbiter import Arbiter
from fleet.arrivals import Arrivals
from fleet.forecaster import Closed, Forecasts
from fleet.habits import Habits
from fleet.models import Action, Kind, ModelSpec, Phase
from fleet.modes import Mode, Modes
from fleet.plans import NEVER
from fleet.policies import Policy, candidates, conservative
from fleet.reports import Reports
from fleet.residency import HANG_FACTOR, HANG_S
from fleet.resident import Resident
from pipeline.errors import ConfigError, InputError

PRICE_S = 600.0
"""Seconds of warm memory that a cold start is worth, unless a model says otherwise."""
TICK_S = 60.0
"""Longest time from a forecaster's death to the keep-alive, and from a hung load to its end."""


class Controller(Reports):
    """`policy`: SELECTOR, or one policy's function for all models. `price_s`: see ModelSpec. Times are seconds since the epoch.

    `log(event, **fields)` is told of what an operator wants to know.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec] = (),
        *,
        policy: Policy | Mapping[str, Policy] | None = None,
        price_s: float = PRICE_S,
        cap_mb: float | None = None,
        foresight: bool = True,
        forecasts: Forecasts | None = None,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        super().__init__(Arbiter(cap_mb, foresight), Modes(log), log)
        self.price_s = price_s
        self.policy = policy
        self.forecasts = forecasts or Forecasts()
        self._stale: dict[str, tuple[Closed, float]] = {}
        """Models whose forecast `tick` makes anew, off the way of requests."""
        for spec in specs:
            self.add(spec)

    def add(self, spec: ModelSpec) -> None:
        """A model appears. Raises ConfigError when it and all pinned ones do not fit the cap together."""
        needed = spec.size_mb + sum(model.spec.size_mb for name, model in self.models.items() if model.spec.pinned and name != spec.name)
        cap = self.arbiter.cap_mb
        if cap is not None and needed > cap:
            raise ConfigError(
                "The memory cap is below what must fit it", where=spec.name, expected=f"{needed:g} MB at least (pinned models included)",
                got=f"a cap of {cap:g} MB", next="raise the cap, or pin fewer models",
            )  # fmt: skip
        if spec.name in self.models:
            raise ConfigError("A model is there twice", where=spec.name, expected="each name once")
        policy = self.policy[spec.name] if isinstance(self.policy, Mapping) else self.policy
        policies = candidates() if policy is None else {"fixed": policy}
        model = self.models[spec.name] = Resident(spec, policies, self.price_s)
        if spec.pinned:
            self.wake(model, 0.0)

    def restore(self, name: str, arrivals: Arrivals) -> None:
        """The requests that an earlier run saw of a model; see `fleet.saved`."""
        model = self.model(name)
        model.habits = Habits(arrivals, model.habits.price_s, model.habits.lead_s)

    def relive(self, name: str, at: float) -> None:
        """Learn from a request that an earlier run had, and did not save: as if it was answered at once. `forget_pauses` must follow the last one."""
        if name in self.models:
            self._learn(self.models[name], at, at)
            self.models[name].since = at

    def forget_pauses(self) -> None:
        """Nobody knows what was warm since the last request that was lived again."""
        for model in self.models.values():
            if model.plan is None:
                model.since = None

    def remove(self, name: str, now: float) -> list[Action]:
        """A model vanishes, and is unloaded; requests inside end as its server ends them."""
        model = self.model(name)
        del self.models[name]
        self.forget(name)
        self.forecasts.forget(name)
        model.stop_idle(now)
        self.account()
        return [Action(Kind.UNLOAD, name, reason="removed")] if model.phase is not Phase.OUT else []

    def request(self, name: str, now: float, at: float | None = None) -> list[Action]:
        """A request for `name` came in at `at` (default now). It may run once the model is WARM; `done` must follow, answered or given up."""
        model = self.model(name)
        self._learn(model, now, now if at is None else at)
        model.users += 1
        model.counts["requests"] += 1
        self.arbiter.touch(model)
        model.stop_idle(now)
        if model.open and model.phase is Phase.LOADING:
            model.counts["late_loads"] += 1
            model.habits.begin_earlier(model.spec.load_s)
        model.close_prewarm(used=True)
        if model.phase is Phase.WARM:
            return []
        model.counts["cold"] += 1
        return self.load(model, now, urgent=True, reason="a request waits")

    def _learn(self, model: Resident, now: float, at: float) -> None:
        habits, since = model.habits, model.since
        arrivals, slot = habits.arrivals, habits.arrivals.slot
        at = at if 0.0 <= at <= now else now
        if model.users == 0 and since is not None:
            model.selector.learn(habits, since, at)
        closed = habits.pass_slots(at) if slot >= 0.0 else []
        gap = arrivals.observe(at, now)
        if gap is not None:
            habits.bursts.observe(gap)
        if closed or slot < 0.0:
            waiting, _ = self._stale.get(model.spec.name, ([], at))
            self._stale[model.spec.name] = ([*waiting, *closed], at)

    def done(self, name: str, now: float) -> list[Action]:
        """A request was answered, or given up."""
        model = self.models.get(name)
        if model is None:
            return []
        if model.users <= 0:
            raise InputError("More requests ended than began", where=name)
        model.users -= 1
        if model.users == 0 and model.phase is Phase.WARM:
            self.plan(model, now)
        return self.serve_waiting(now)

    def plan(self, model: Resident, now: float) -> None:
        """The model is idle from now on."""
        model.since = model.idle_since = now
        name = model.selector.name
        if self.modes.mode is Mode.CONSERVATIVE:
            model.plan, name = conservative(model.habits, now), "conservative"
        else:
            model.plan = model.selector.plan(model.habits, now)
        key = f"{name} {self.modes.mode.name}"
        model.decisions[key] = model.decisions.get(key, 0) + 1
        wanted, change = model.plan.wants(now)
        self.wake(model, change if wanted else now)

    def jumped(self, now: float) -> None:
        """The clock was set to `now`: gaps, plans and deadlines begin anew, what was learnt stays."""
        self._stale.clear()
        for model in self.models.values():
            model.habits.arrivals.restart(now)
            model.since, model.wake_at, model.away_until = None, NEVER, now
            model.idle_since = now if model.idle_since is not None else None
            model.deadline = now + (HANG_FACTOR * model.spec.load_s + HANG_S)
            if model.phase is Phase.WARM and not model.users:
                self.plan(model, now)
            self.wake(model, now)

    def tick(self, now: float) -> list[Action]:
        """What is due: to be called at `next_wake`, and every TICK_S at least."""
        fault = self.forecasts.fault(now)
        mode = Mode.CONSERVATIVE if fault else Mode.NORMAL
        if self.modes.set(mode, now, f"no forecasts: {fault}" if fault else "forecasts are back"):
            for model in self.models.values():
                self._plan_anew(model, now)
        while self._stale:
            name, (closed, at) = self._stale.popitem()
            if name in self.models:
                self.forecasts.ask(name, self.models[name].habits, closed, at)
        for answer in self.forecasts.answers():
            if answer.name in self.models:
                model = self.models[answer.name]
                model.habits.forecast(answer.slot, answer.rates)
                self._plan_anew(model, now)
        return self.due(now)

    def _plan_anew(self, model: Resident, now: float) -> None:
        """Of a pause that goes on, more is known now."""
        if model.plan is not None and model.users == 0 and model.since is not None:
            fallen_back = self.modes.mode is Mode.CONSERVATIVE
            model.plan = conservative(model.habits, model.since) if fallen_back else model.selector.plan(model.habits, model.since)
            self.wake(model, now)

    def next_wake(self) -> float:
        """When `tick` is due: a time that may have passed, or NEVER."""
        return min(super().next_wake(), *(at for _, at in self._stale.values())) if self._stale else super().next_wake()

    def status(self, now: float) -> dict[str, Any]:
        """Everything an operator sees."""
        return {
            "mode": self.modes.mode.name,
            "lanes": {name: lane.name for name, lane in self.modes.lanes.items()},
            "changes": list(self.modes.changes),
            "memory_mb": self.arbiter.used_mb,
            "cap_mb": self.arbiter.cap_mb,
            "forecast_seconds": self.forecasts.seconds,
            "forecasts": self.forecasts.count,
            "forecaster_pid": self.forecasts.pid,
            "mode_changes": {mode.name: count for mode, count in self.modes.counts.items()},
            "models": {name: {**model.facts(now), **self.forecasts.facts(name)} for name, model in sorted(self.models.items())},
        }
