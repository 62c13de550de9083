"""What the selector remembers, and what it makes each policy pay for."""

from __future__ import annotations

import random

import pytest

from fleet.arrivals import Arrivals
from fleet.habits import Habits
from fleet.policies import KeepAlive, candidates, conservative
from fleet.selector import Selector

PRICE_S = 1800.0


def learned(pauses: list[float], names: tuple[str, ...]) -> Selector:
    """A selector of some candidates that has learnt from these pauses."""
    found = candidates()
    selector, habits, at = Selector({name: found[name] for name in names}, PRICE_S), Habits(Arrivals(), PRICE_S, 5.0), 1_704_067_200.0
    for pause in pauses:
        selector.learn(habits, at, at + pause)
        at += pause
        habits.arrivals.observe(at)
    return selector


def test_a_long_burst_makes_no_pause_between_bursts_forgotten() -> None:
    """Pauses that an hour's keep-alive bridges at less than the cold starts of a shorter one, then three hundred requests ten seconds apart."""
    names = ("conservative", "keep-alive-300s", "keep-alive-3600s")
    pauses = [1000.0] * 40
    before, after = learned(pauses, names), learned([*pauses, *[10.0] * 300], names)
    lead = [costs[1] - costs[2] for costs in (before.costs, after.costs)]
    assert before.name == after.name != "keep-alive-300s"
    assert lead[1] > 0.5 * lead[0] > 0.0


@pytest.mark.parametrize("pause", [5.0, 40.0])
def test_a_keep_alive_pays_for_the_shortest_pauses_that_it_misses(pause: float) -> None:
    """What bridges a session costs the pause, no keep-alive a cold start each."""
    selector = learned([pause] * 50, ("conservative", "keep-alive-0s", "gaps"))
    kept, never, gaps = selector.costs
    assert kept == pytest.approx(gaps)
    assert never - kept > 20 * PRICE_S
    assert selector.name == "conservative"


def test_each_learned_policy_stays_warm_for_as_long_as_is_taken_for_granted() -> None:
    source, habits, at = random.Random(3), Habits(Arrivals(), PRICE_S, 5.0), 1_704_067_200.0
    for _ in range(500):
        at += source.choice([source.expovariate(1 / 20.0), source.expovariate(1 / 9000.0)])
        habits.pass_slots(at)
        gap = habits.arrivals.observe(at)
        if gap is not None:
            habits.bursts.observe(gap)
        for policy in candidates().values():
            if not isinstance(policy, KeepAlive):
                assert policy(habits, at).judge(at + habits.bridge_s) == (True, pytest.approx(habits.bridge_s, abs=1e-5))


def test_what_a_candidate_cost_before_it_had_learned_fades_with_the_past_it_is_a_part_of() -> None:
    """Forty pauses that cost it a price each: the tenth weighs a quarter of the newest, the first a fortieth."""
    selector, habits, at = Selector({"conservative": conservative, "never": KeepAlive(0.0)}, PRICE_S), Habits(Arrivals(), PRICE_S, 5.0), 0.0
    for _ in range(40):
        selector.learn(habits, at, at + 2 * PRICE_S)
        at += 2 * PRICE_S
    assert selector.staked == 40.0
    assert selector.costs[1] == pytest.approx(PRICE_S * sum(place / 40.0 for place in range(1, 41)))


def test_a_pause_of_no_length_teaches_nothing() -> None:
    selector = learned([0.0, 0.0], ("conservative", "keep-alive-0s"))
    assert selector.costs == [0.0, 0.0]
    assert selector.staked == 0.0
