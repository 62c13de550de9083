"""What servers report: loads that ended well or badly, memory given back, servers that died; retries and the way back to the last good bundle."""

from __future__ import annotations

import dataclasses

from fleet.models import Action, Phase
from fleet.modes import Mode
from fleet.residency import Residency
from fleet.resident import Resident

RETRY_S, MOST_RETRY_S = 1.0, 300.0
"""Pause after a load that failed, doubled each time, and its longest."""


class Reports(Residency):
    """Each method answers with what servers are to do next; a report of a model that is gone, or that nobody awaits any more, changes nothing."""

    def loaded(self, name: str, now: float) -> list[Action]:
        """A load ended well."""
        model = self.models.get(name)
        if model is None or model.phase is not Phase.LOADING:
            return []
        model.phase, model.failures = Phase.WARM, 0
        model.good = model.spec.bundle or model.good
        self.account()
        if model.users == 0:
            if model.open and model.plan is not None:
                self.wake(model, now)
            else:
                self.plan(model, now)
        self.modes.leave(Mode.FULL_LOAD, name)
        return self.serve_waiting(now)

    def adopt(self, name: str, now: float) -> list[Action]:
        """A server that an earlier controller warmed goes on."""
        model = self.model(name)
        if model.phase is not Phase.OUT:
            return []
        model.phase = Phase.WARM
        self.account()
        self.plan(model, now)
        return []

    def unreachable(self, name: str, now: float, reason: str) -> list[Action]:
        """The server does not answer, which says nothing of the model: its load is tried again every RETRY_S."""
        model = self.models.get(name)
        if model is None or model.phase is not Phase.LOADING:
            return []
        self.log("unreachable", model=name, reason=reason)
        model.away_until = now + RETRY_S
        return self._gone(model, now)

    def failed(self, name: str, now: float, reason: str) -> list[Action]:
        """A load ended badly (refused, crashed, hung, out of memory): tried again later and later, from the last good bundle when there is one."""
        model = self.models.get(name)
        if model is None or model.phase is not Phase.LOADING:
            return []
        model.counts["load_failures"] += 1
        model.failures += 1
        model.away_until = now + min(MOST_RETRY_S, RETRY_S * 2.0 ** (model.failures - 1))
        self.log("load_failed", model=name, reason=reason, failures=model.failures)
        if model.good and model.good != model.spec.bundle:
            self.modes.note(Mode.LAST_GOOD, name, now, f"{model.spec.bundle} does not load: {reason}")
            model.spec = dataclasses.replace(model.spec, bundle=model.good)
            model.counts["rollbacks"] += 1
            model.away_until = now
        return self._gone(model, now)

    def unloaded(self, name: str, now: float) -> list[Action]:
        """Memory was given back, as asked."""
        model = self.models.get(name)
        if model is None or model.phase is not Phase.UNLOADING:
            return []
        model.phase = model.leaving_to
        self.account()
        if model.phase is Phase.WEIGHTS:
            model.idle_since = now
        self.wake(model, now)
        if model.users:
            self._waiting[name] = True
        return self.serve_waiting(now)

    def lost(self, name: str, now: float, reason: str) -> list[Action]:
        """A server died or restarted, and what it held is gone; requests that wait for it get it loaded again."""
        model = self.models.get(name)
        if model is None or model.phase is Phase.OUT:
            return []
        if model.phase is Phase.LOADING:
            return self.failed(name, now, reason)
        self.log("lost", model=name, reason=reason)
        return self._gone(model, now)

    def _gone(self, model: Resident, now: float) -> list[Action]:
        model.phase = Phase.OUT
        model.stop_idle(now)
        model.close_prewarm(used=False)
        self.account()
        self.modes.leave(Mode.FULL_LOAD, model.spec.name)
        if model.users:
            self._waiting[model.spec.name] = True
        self.wake(model, max(now, model.away_until))
        return self.serve_waiting(now)
