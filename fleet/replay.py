"""The controller on a virtual clock, against recorded or generated requests: what each policy would have cost. Deterministic."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import math
import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.arbiter import Arbiter, Held
from fleet.controller import PRICE_S, Controller
from fleet.habits import Habits
from fleet.models import Action, Kind, ModelSpec, Phase
from fleet.plans import NEVER, Plan
from fleet.policies import KeepAlive, Policy, burst, conservative, forecast, gaps, histogram, interval, period, schedule

POLICIES: dict[str, Policy] = {
    "always-warm": KeepAlive(NEVER),
    "keep-alive-10min": KeepAlive(600.0),
    "keep-alive-1h": KeepAlive(3600.0),
    "conservative": conservative,
    "interval-15min": interval,
    "histogram": histogram,
    "schedule": schedule,
    "gaps": gaps,
    "burst": burst,
    "period": period,
    "forecast": forecast,
}
SELECTOR, ORACLE = "selector", "oracle"
JUST_S = 1e-3
"""A plan that ends with a request ends so much after it."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests of several models: `times[name]` sorted, seconds since the epoch, between `start` and `end`. `synthetic`: generated, not recorded."""

    name: str
    specs: tuple[ModelSpec, ...]
    times: Mapping[str, Sequence[float]]
    start: float
    end: float
    synthetic: bool

    def requests(self) -> list[tuple[float, str]]:
        """All of them in order; at the same moment by name."""
        return sorted((at, name) for name, times in self.times.items() for at in times)


@dataclasses.dataclass
class Outcome:
    """What a policy did on a workload. Times in seconds; `cost` in seconds of warm memory."""

    cold_rate: float
    warm_idle_s: float
    wasted: int
    hit_rate: float
    cost: float
    prewarms: int
    loads: int
    p50_added_ms: float
    p99_added_ms: float
    lost: int
    decision_us: float
    """Real time of the controller for a request and what follows until the next, without forecasts: the median, which another run does not repeat."""
    timeline: list[tuple[float, str, str]] = dataclasses.field(default_factory=list, repr=False)
    """(at, model, what happened)."""
    status: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def figures(self) -> dict[str, float]:
        """The numbers that are the same in every run."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("decision_us", "timeline", "status")
        }  # fmt: skip


def oracle(times: Sequence[float], lead_s: float) -> Policy:
    """Knows the next request: loads `lead_s` before it, stays warm where that is shorter, or lets it be cold where that is cheapest."""

    def plan(habits: Habits, now: float) -> Plan:
        index = bisect.bisect_right(times, now)
        due = times[index] if index < len(times) else NEVER
        if due - now <= lead_s:
            return Plan(now, due - now + JUST_S)
        if lead_s >= habits.price_s or due == NEVER:
            return Plan(now, 0.0)
        return Plan(now, 0.0, ((due - lead_s, due + JUST_S),), habits.lead_s)

    return plan


class Belady(Arbiter):
    """Evicts what is used again last (Belady, IBM Systems Journal 1966): the best that loading on demand can do with models of one size."""

    __slots__ = ("times",)

    def __init__(self, cap_mb: float | None, times: Mapping[str, Sequence[float]]) -> None:
        super().__init__(cap_mb)
        self.times = times

    def rank(self, held: Held, now: float) -> float:
        """Minus the wait until the next request."""
        times = self.times[held.spec.name]
        index = bisect.bisect_right(times, now)
        return now - times[index] if index < len(times) else -math.inf


def policy_of(name: str, workload: Workload) -> Policy | Mapping[str, Policy] | None:
    """What `Controller` takes, by the name of `POLICIES`, SELECTOR or ORACLE."""
    if name == SELECTOR:
        return None
    if name == ORACLE:
        lead = 1.25 * sum(spec.load_s for spec in workload.specs)  # one background load at a time: all may be due at once
        return {spec.name: oracle(workload.times.get(spec.name, ()), lead) for spec in workload.specs}
    return POLICIES[name]


class Replay:
    """One run. Loads take as long as the release measured and always succeed; a request runs in no time once its model is warm."""

    def __init__(self, workload: Workload, controller: Controller, *, timeline: bool = False) -> None:
        self.workload, self.controller = workload, controller
        self.keep_timeline = timeline
        self.timeline: list[tuple[float, str, str]] = []
        self.loads: list[tuple[float, str]] = []
        self.waiting: dict[str, list[float]] = {}
        self.added: list[float] = []
        self.spent, self.decisions = 0.0, array("f")
        self.now = workload.start

    def act(self, actions: list[Action], now: float) -> None:
        """Servers that do what they are asked: loads in their time, unloads at once."""
        for action in actions:
            if self.keep_timeline:
                self.timeline.append((now, action.model, action.kind.value))
            if action.kind is Kind.LOAD:
                heapq.heappush(self.loads, (now + action.seconds, action.model))
            elif action.kind is not Kind.HURRY:
                self.act(self.timed(self.controller.unloaded, action.model, now), now)

    def timed(self, call: Callable[..., list[Action]], *arguments: Any) -> list[Action]:
        """The controller's answer, its time counted."""
        started, forecasts = time.perf_counter(), self.controller.forecasts.seconds
        actions = call(*arguments)
        self.spent += time.perf_counter() - started - (self.controller.forecasts.seconds - forecasts)
        return actions

    def advance(self, until: float) -> None:
        """Everything that happens up to `until`: loads that end, then what the controller had planned."""
        while True:
            load = self.loads[0][0] if self.loads else NEVER
            wake = self.controller.next_wake()
            now = max(self.now, min(load, wake))
            if now > until or now == NEVER:
                return
            self.now = now
            if load <= wake:
                _, name = heapq.heappop(self.loads)
                self.act(self.timed(self.controller.loaded, name, now), now)
                for asked in self.waiting.pop(name, ()):
                    self.added.append(now - asked)
                    self.act(self.timed(self.controller.done, name, now), now)
            else:
                self.act(self.timed(self.controller.tick, now), now)

    def run(self) -> Outcome:
        """All requests, then until the workload's end."""
        controller, workload = self.controller, self.workload
        for at, name in workload.requests():
            self.advance(at)
            self.decisions.append(1e6 * self.spent)
            self.spent, self.now = 0.0, at
            self.act(self.timed(controller.request, name, at), at)
            if controller.models[name].phase is Phase.WARM:
                self.added.append(0.0)
                self.act(self.timed(controller.done, name, at), at)
            else:
                self.waiting.setdefault(name, []).append(at)
            if self.keep_timeline:
                self.timeline.append((at, name, "request" if controller.models[name].phase is Phase.WARM else "cold request"))
        self.advance(workload.end)
        return self.outcome()

    def outcome(self) -> Outcome:
        """Add up."""
        end = self.workload.end
        models = self.controller.models.values()
        for model in models:
            model.settle(end)
            model.close_prewarm(used=False)
        total = {name: sum(model.counts[name] for model in models) for name in ("requests", "cold", "wasted", "prewarms", "prewarm_hits", "loads")}
        waits = sorted(self.added)
        idle = sum(model.idle_s for model in models)
        return Outcome(
            cold_rate=total["cold"] / max(1, total["requests"]),
            warm_idle_s=idle,
            wasted=total["wasted"],
            hit_rate=total["prewarm_hits"] / total["prewarms"] if total["prewarms"] else 0.0,
            cost=sum(model.counts["cold"] * model.habits.price_s + model.idle_s for model in models),
            prewarms=total["prewarms"],
            loads=total["loads"],
            p50_added_ms=1000.0 * waits[len(waits) // 2] if waits else 0.0,
            p99_added_ms=1000.0 * waits[min(len(waits) - 1, int(0.99 * len(waits)))] if waits else 0.0,
            lost=total["requests"] - len(waits),
            decision_us=statistics.median(self.decisions) if self.decisions else 0.0,
            timeline=self.timeline,
            status=self.controller.status(end),
        )


def replay(workload: Workload, policy: str = SELECTOR, *, price_s: float = PRICE_S, cap_mb: float | None = None, timeline: bool = False) -> Outcome:
    """Run `workload` under one policy, by name."""
    controller = Controller(workload.specs, policy=policy_of(policy, workload), price_s=price_s, cap_mb=cap_mb)
    return Replay(workload, controller, timeline=timeline).run()
