"""Arrivals: bounded memory, an exact way through bytes, and times that cannot be."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.arrivals import BINS, EDGES, FORGET, JUMP_S, SCALARS, SESSIONS, Arrivals, bin_of
from fleet.seasons import DAY_SLOTS, SLOT_S, WEEK_S, WEEK_SLOTS, place_of, slot_of

MONDAY = 1_704_067_200.0


def filled(seed: int = 0, count: int = 3000) -> Arrivals:
    source, made, at = random.Random(seed), Arrivals(), MONDAY
    for _ in range(count):
        at += source.expovariate(1 / 700.0)
        made.observe(at)
    return made


def test_a_model_takes_at_most_4_kb_in_memory_and_on_disk() -> None:
    made = filled()
    parts = [made, made.gaps, made.sessions, made.profile, made.profile.week, made.profile.day, made.profile.closed]
    assert sum(map(sys.getsizeof, parts + [getattr(made, name) for name in SCALARS])) <= 4096
    assert len(made.to_bytes()) <= 4096


def test_bytes_give_an_equal_one_that_goes_on_equally() -> None:
    made = filled()
    again = Arrivals.from_bytes(made.to_bytes())
    for one in (made, again):
        one.observe(made.last + 4000.0 if one is made else again.last + 4000.0)
    assert again.to_bytes() == made.to_bytes()


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(2900), filled().to_bytes()[:-8], filled().to_bytes() + bytes(8)])
def test_foreign_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        Arrivals.from_bytes(content)


def test_a_number_that_is_not_finite_is_refused() -> None:
    made = filled()
    made.profile.week[5] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        Arrivals.from_bytes(made.to_bytes())


def test_a_long_burst_leaves_the_pauses_before_it_known() -> None:
    made, at = Arrivals(), MONDAY
    for pause in [7000.0] * 20 + [5.0] * 2000:
        at += pause
        made.observe(at)
    assert made.gaps[bin_of(7000.0)] > 0.9 * 19 * made.unit / FORGET**19


@given(st.floats(0.0, 1e7))
def test_each_gap_is_inside_its_bin(gap: float) -> None:
    index = bin_of(gap)
    assert index == BINS - 1 or EDGES[index] * (1 - 1e-9) <= gap < EDGES[index + 1] * (1 + 1e-9)


def test_a_late_time_counts_as_the_last_and_a_duplicate_as_no_gap() -> None:
    made = Arrivals()
    assert [made.observe(MONDAY + at) for at in (0.0, 10.0, 10.0, 4.0, 12.0)] == [None, 10.0, 0.0, 0.0, 2.0]
    assert (made.late, made.total) == (1, 5)


def test_a_time_after_the_clock_or_none_at_all_counts_as_now() -> None:
    made = Arrivals()
    made.observe(MONDAY, MONDAY)
    assert made.observe(MONDAY + 1e6, MONDAY + 5.0) == 5.0
    assert made.observe(math.nan, MONDAY + 7.0) == 2.0
    assert made.observe(-1.0, MONDAY + 8.0) == 1.0
    assert made.future == 3
    assert Arrivals().observe(math.inf) is None


def test_a_clock_that_jumps_back_makes_no_gap() -> None:
    made = filled()
    before = list(made.sessions)
    assert made.observe(made.last - 2 * JUMP_S) is None
    assert made.jumps == 1
    assert list(made.sessions) == before
    assert made.observe(made.last + 30.0) == 30.0


def test_a_clock_that_jumps_years_ahead_costs_a_week_of_half_hours() -> None:
    made = filled()
    passed = made.pass_slots(made.last + 20 * 365 * 86400.0)
    assert len(passed) <= WEEK_SLOTS + 1


def test_half_hours_are_of_the_week_in_utc() -> None:
    assert place_of(slot_of(MONDAY)) == 0
    assert place_of(slot_of(MONDAY + WEEK_S + 2 * 86400.0 + 3600.0)) == 2 * DAY_SLOTS + 2


def test_a_weekly_habit_is_learnt() -> None:
    made = Arrivals()
    for week in range(6):
        for index in range(4):
            made.observe(MONDAY + week * WEEK_S + 9 * 3600.0 + index * 400.0)
    made.pass_slots(MONDAY + 6 * WEEK_S)
    nine = place_of(slot_of(MONDAY + 9 * 3600.0))
    expected = [made.profile.expected(place) for place in range(WEEK_SLOTS)]
    assert max(range(WEEK_SLOTS), key=expected.__getitem__) == nine
    assert expected[nine + 5 * DAY_SLOTS] == 0.0  # Saturday


def test_sessions_are_few_and_start_after_a_pause() -> None:
    made = Arrivals(session_s=60.0)
    for run in range(2 * SESSIONS):
        for late in (0.0, 5.0, 30.0):
            made.observe(MONDAY + run * 3600.0 + late)
    assert list(made.sessions) == [3600.0] * SESSIONS
    assert sum(made.profile.expected(place) for place in range(WEEK_SLOTS)) > 0
    assert SLOT_S * WEEK_SLOTS == WEEK_S
