"""Plans say the same of a pause, asked all at once or step by step; windows from histograms and periods are the cheapest."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.arrivals import BINS, EDGES, Arrivals
from fleet.habits import Habits, cheapest_windows
from fleet.periods import find_period
from fleet.plans import NEVER, Interval, Pattern, Plan, Weekly, joined
from fleet.policies import candidates, histogram, period

MONDAY = 1_704_067_200.0
WINDOWS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 800)), max_size=6).map(
    lambda items: joined([(MONDAY + start, MONDAY + start + length) for start, length in items])
)


def stepwise(plan: Plan, until: float) -> float:
    """Warm seconds, by following `wants` from change to change."""
    at, held = plan.since, 0.0
    while at < until:
        wanted, change = plan.wants(at)
        held += min(change, until) - at if wanted else 0.0
        at = change
    return held


@given(WINDOWS, st.integers(0, 900), st.integers(0, 7000))
def test_what_a_plan_holds_is_what_following_it_holds(windows: tuple[tuple[float, float], ...], keep: int, pause: int) -> None:
    plan = Plan(MONDAY, float(keep), windows, 5.0)
    warm, held = plan.judge(MONDAY + pause)
    assert held == pytest.approx(stepwise(plan, MONDAY + pause))
    if warm and pause > keep:
        assert any(start <= MONDAY + pause <= end for start, end in windows)


@given(st.lists(st.tuples(st.integers(0, 604000), st.integers(1, 50000)), max_size=5), st.integers(0, 3000), st.integers(0, 1500000))
def test_a_weekly_plan_is_the_plan_of_its_windows(items: list[tuple[int, int]], keep: int, pause: int) -> None:
    parts = joined([(float(start), float(min(start + length, 604800))) for start, length in items])
    weekly = Weekly(MONDAY + 1000.0, float(keep), Pattern(parts), 5.0)
    windows = tuple((MONDAY + week * 604800 + a, MONDAY + week * 604800 + b) for week in range(4) for a, b in parts)
    plain = Plan(MONDAY + 1000.0, float(keep), windows, 5.0)
    until = MONDAY + 1000.0 + pause
    assert weekly.judge(until)[1] == pytest.approx(plain.judge(until)[1])
    assert weekly.judge(until)[0] == plain.judge(until)[0]


def test_a_request_during_a_windows_load_waits() -> None:
    plan = Plan(0.0, 10.0, ((100.0, 200.0),), 5.0)
    assert plan.judge(103.0) == (False, 13.0)
    assert plan.judge(106.0) == (True, 16.0)
    assert plan.judge(250.0) == (False, 110.0)
    assert plan.wants(300.0) == (False, NEVER)


def test_an_interval_holds_always_and_warms_up_at_each_multiple() -> None:
    plan = Interval(1000.0, 900.0)
    assert plan.judge(5000.0) == (True, 4000.0)
    assert plan.wants(1000.0) == (True, 1800.0)


def cost(gaps: list[float], keep: float, windows: tuple[tuple[float, float], ...], price: float, lead: float) -> float:
    total = 0.0
    for gap in gaps:
        warm, held = Plan(0.0, keep, windows, lead).judge(gap)
        total += held + (0.0 if warm else price)
    return total


@pytest.mark.parametrize("price", [30.0, 300.0, 3000.0])
def test_cheapest_windows_are_no_dearer_than_any_keep_alive(price: float) -> None:
    source = random.Random(1)
    made = Arrivals()
    gaps = [source.choice([source.gauss(600, 20), source.gauss(4000, 50), source.expovariate(1 / 40.0)]) for _ in range(400)]
    at = MONDAY
    for gap in gaps:
        at += max(0.1, gap)
        made.observe(at)
    keep, windows = cheapest_windows(made.gaps, price, 5.0)
    found = cost([max(0.1, gap) for gap in gaps], keep, windows, price, 5.0)
    best = min(cost([max(0.1, gap) for gap in gaps], float(edge), (), price, 5.0) for edge in EDGES)
    assert found <= best * 1.06 + BINS  # a bin is 5.7 % wide


def test_an_empty_histogram_keeps_nothing() -> None:
    assert cheapest_windows([0.0] * BINS, 600.0, 5.0)[1] == ()


def test_a_clock_like_period_is_found_with_skipped_runs_and_outliers() -> None:
    source = random.Random(2)
    starts = sorted([MONDAY + run * 3600 + source.gauss(0, 8) for run in range(26) if run not in (5, 11, 12)] + [MONDAY + 40000])
    intervals = [after - before for before, after in itertools.pairwise(starts)][-24:]
    found = find_period(intervals, 1200.0, 5.0)
    assert found is not None
    assert found.period_s == pytest.approx(3600.0, abs=10.0)
    low, high = found.windows(starts[-1])[0]
    assert low < MONDAY + 26 * 3600 < high
    assert high - low < 400.0


def test_traffic_without_a_period_has_none() -> None:
    source = random.Random(3)
    assert find_period([source.expovariate(1 / 3600.0) for _ in range(24)], 1200.0, 5.0) is None
    assert find_period([3600.0, 3600.0], 1200.0, 5.0) is None
    assert find_period([0.0] * 5, 1200.0, 5.0) is None


def test_every_policy_plans_from_nothing_and_from_something() -> None:
    empty, made = Habits(Arrivals(), 600.0, 5.0), Habits(Arrivals(), 600.0, 5.0)
    for run in range(50):
        made.pass_slots(MONDAY + 3600.0 * run)
        made.arrivals.observe(MONDAY + 3600.0 * run)
    for name, policy in {**candidates(), "histogram": histogram}.items():
        for habits, at in ((empty, MONDAY), (made, made.arrivals.last)):
            plan = policy(habits, at)
            warm, held = plan.judge(at + 3600.0)
            assert 0.0 <= held <= 3600.0, name
            assert held == pytest.approx(stepwise(plan, at + 3600.0)), name
            assert warm in (True, False)
    assert period(made, made.arrivals.last).judge(made.arrivals.last + 3600.0) == (True, pytest.approx(10.0, abs=20.0))
