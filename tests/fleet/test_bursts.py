"""Bursts: the tail is exact, planted bursts are found, ordinary traffic is not taken for one more often than said, and what it changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from fleet.arrivals import Arrivals
from fleet.bursts import BurstLevel, Bursts, poisson_tail
from fleet.forecast import Forecaster
from fleet.habits import Habits
from fleet.policies import burst

MONDAY = 1_704_067_200.0


@given(st.integers(0, 400), st.floats(0.0, 300.0))
def test_the_tail_is_that_of_scipy(count: int, mean: float) -> None:
    assert poisson_tail(count, mean) == pytest.approx(poisson.sf(count - 1, mean), rel=1e-6, abs=1e-12)


def test_ordinary_traffic_is_seldom_a_burst() -> None:
    """40,000 requests of a Poisson process: at most one in a thousand begins a burst."""
    source, bursts, alarms = random.Random(5), Bursts(), 0
    for _ in range(40_000):
        before = bursts.active
        bursts.observe(source.expovariate(1 / 300.0))
        alarms += bursts.active and not before
    assert 0 < alarms <= 40


def test_planted_bursts_are_found_and_end() -> None:
    """Twenty requests three seconds apart, among requests ten minutes apart: found within the first ten, over at the next ordinary one."""
    source, bursts, found = random.Random(6), Bursts(), 0
    for _ in range(200):
        for _ in range(60):
            bursts.observe(source.expovariate(1 / 600.0))
        seen = []
        for _ in range(20):
            bursts.observe(source.expovariate(1 / 3.0))
            seen.append(bursts.active)
        found += any(seen[:10])
        bursts.observe(600.0)
        assert not bursts.active
        assert bursts.keep_s(600.0) is None
    assert found >= 195


@pytest.mark.parametrize(("gap", "price", "least", "most"), [(1.0, 600.0, 5.0, 20.0), (10.0, 600.0, 40.0, 120.0)])
def test_the_keep_alive_of_a_burst_follows_its_rate(gap: float, price: float, least: float, most: float) -> None:
    bursts = Bursts()
    for _ in range(50):
        bursts.observe(2000.0)
    for _ in range(30):
        bursts.observe(gap)
    keep = bursts.keep_s(price)
    assert keep is not None
    assert least < keep < most
    dearer = bursts.keep_s(10.0 * price)
    assert dearer is not None
    assert dearer > keep
    assert bursts.keep_s(gap) is None  # not worth one gap


def test_the_policy_keeps_less_in_a_fast_burst_than_in_a_slow_one() -> None:
    def habits(gap: float) -> Habits:
        made = Habits(Arrivals(), 600.0, 5.0)
        at = MONDAY
        for pause in [3000.0] * 60 + [gap] * 30:
            at += pause
            told = made.arrivals.observe(at)
            if told is not None:
                made.bursts.observe(told)
        return made

    fast, slow = habits(1.0), habits(20.0)
    assert burst(fast, fast.arrivals.last).keep_s < burst(slow, slow.arrivals.last).keep_s


def test_the_level_of_a_burst_joins_the_forecast_where_it_is_better() -> None:
    """Counts that jump between two levels every forty steps: an average that begins anew is ahead of every average that does not."""
    source = random.Random(7)
    with_bursts, plain = Forecaster(extras=[BurstLevel()]), Forecaster()
    errors, told = [0.0, 0.0], [0.0, 0.0]
    for step in range(4000):
        count = float(poisson.ppf(source.random(), 40.0 if step // 40 % 2 else 2.0))
        for index, forecaster in enumerate((with_bursts, plain)):
            errors[index] += abs(count - told[index])
            forecaster.learn(count)
        told = [with_bursts.forecast().mean, plain.forecast().mean]
    assert errors[0] < 0.97 * errors[1]
    assert with_bursts.skill is not None
    assert with_bursts.skill > 0.02
