"""Follow the leader over policies: after each pause every candidate's cost is known, also of those that were not followed."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.habits import Habits
from fleet.plans import NEVER, Plan
from fleet.policies import KeepAlive, Policy

MEMORY = 0.992
"""A pause counts half once 86 cold starts were at stake in later ones: by fewer the leader changes by chance, which memoryless traffic pays for."""
PATIENCE = 6.0
"""In prices: memory held in vain for so long is given back, whatever a policy says: a request was likely long before, so habits have changed."""
STAY = 1.0
"""In cold starts: by how much another must lead before it is changed to; the conservative one leads first."""


class Selector:
    """Costs of `policies` (name to policy, the conservative one first) on one model, in seconds of warm memory."""

    __slots__ = ("costs", "fixed", "leader", "learned", "limit_s", "names", "policies", "staked")

    def __init__(self, policies: dict[str, Policy], price_s: float) -> None:
        self.names, self.policies = tuple(policies), tuple(policies.values())
        self.fixed = [(index, policy.seconds) for index, policy in enumerate(self.policies) if isinstance(policy, KeepAlive)]
        self.learned = [(index, policy) for index, policy in enumerate(self.policies) if not isinstance(policy, KeepAlive)]
        self.costs = [0.0] * len(policies)
        self.limit_s = PATIENCE * price_s if len(policies) > 1 else NEVER
        self.leader = 0
        self.staked = 0.0
        """Cold starts that were at stake so far: of each pause the cost of knowing its end, over the price."""

    @property
    def name(self) -> str:
        """The policy that is trusted now."""
        return self.names[self.leader]

    def plan(self, habits: Habits, now: float) -> Plan:
        """The leader's plan from `now`."""
        plan = self.policies[self.leader](habits, now)
        plan.limit_s = self.limit_s
        return plan

    def learn(self, habits: Habits, since: float, until: float) -> None:
        """A pause from `since` to the request at `until`; to be called before `habits` learns of that request, so that none knows more.

        Older pauses fade by what is at stake in this one, not by its count: a burst of a hundred short pauses makes no long one forgotten. In a short
        past they fade quicker, each to its place in it (the newest 1, one half-way 0.5): what a candidate cost before it had learned says little.
        """
        pause = until - since
        if len(self.policies) == 1 or pause <= 0.0:
            return
        costs, price, limit = self.costs, habits.price_s, self.limit_s
        stake = pause / price if pause < price else 1.0
        self.staked += stake
        memory = min(MEMORY**stake, 1.0 - stake / self.staked)
        for index, seconds in self.fixed:  # as their plans would say, without making these
            keep = seconds if seconds < limit else limit
            costs[index] = costs[index] * memory + (pause if pause <= keep else keep + price)
        bridged = pause <= habits.bridge_s  # all of them stay warm for so long
        for index, policy in self.learned:
            if bridged:
                costs[index] = costs[index] * memory + pause
                continue
            plan = policy(habits, since)
            plan.limit_s = limit
            warm, held = plan.judge(until)
            costs[index] = costs[index] * memory + (held if warm else held + price)
        best = min(range(len(costs)), key=costs.__getitem__)
        if costs[best] < costs[self.leader] - STAY * price:
            self.leader = best

    def restore(self, costs: Mapping[str, float], staked: float, leader: str) -> None:
        """Go on from what was saved; a candidate that was not there then begins at the conservative one's cost."""
        base = costs.get(self.names[0], 0.0)
        self.costs = [costs.get(name, base) for name in self.names]
        self.staked = staked
        self.leader = self.names.index(leader) if leader in self.names else 0
