"""benchmarks/dynamic.py on small workloads: the keys that are promised, and figures that agree with what they are made from."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from serving import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import dynamic
import dynamic_workloads

from fleet.traces import Trace

MONDAY = dynamic_workloads.MONDAY


def test_a_workload_is_measured_with_the_promised_keys() -> None:
    found = dynamic.measure(dynamic_workloads.cron(days=2.0), 0.9)
    assert set(found) == {"name", "synthetic", "policies", "selector_over_best", "warm_idle_over_frontier"}
    assert found["synthetic"] is True
    for figures in found["policies"].values():
        assert set(figures) == {"cold_rate", "warm_idle_s", "wasted", "hit_rate", "cost"}
    assert found["policies"]["oracle"]["cost"] < found["policies"]["selector"]["cost"] < found["policies"]["always-warm"]["cost"]
    assert 0.0 < found["warm_idle_over_frontier"] < 1.0


@pytest.mark.parametrize("steps", [1, 3])
def test_a_forecast_is_judged_by_what_came_after_it(steps: int) -> None:
    random = np.random.default_rng(0)
    starts = MONDAY + 1800.0 * np.arange(48 * 40)
    daily = 20.0 + 15.0 * np.sin(2 * np.pi * np.arange(len(starts)) / 48)
    found = dynamic.forecast(Trace("made", starts, random.poisson(daily), 1800.0, {}), steps)
    assert set(found) == {"trace", "horizon_s", "skill", "coverage90"}
    assert found["horizon_s"] == 1800.0 * steps
    assert found["skill"] > 0.1
    assert 0.86 < found["coverage90"] < 0.94


def test_noise_without_habits_has_no_skill_and_loses_none() -> None:
    random = np.random.default_rng(1)
    trace = Trace("noise", MONDAY + 300.0 * np.arange(4000), random.poisson(6.0, 4000), 300.0, {})
    assert abs(dynamic.forecast(trace, 1)["skill"]) < 0.02


def test_a_dead_forecaster_costs_what_the_keep_alive_costs() -> None:
    assert dynamic.dead_forecaster(dynamic_workloads.office(days=7.0)) == pytest.approx(1.0, abs=0.05)


def test_a_fresh_process_stays_small() -> None:
    assert dynamic.resident_mb() <= 45.0
