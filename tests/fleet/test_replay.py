"""Replay: deterministic, the same as arithmetic where that is possible, and honest about what a trace lacks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.replay import describe, replay_files
from fleet.controller import Controller
from fleet.frontier import frontier
from fleet.models import ModelSpec
from fleet.policies import KeepAlive
from fleet.replay import ORACLE, POLICIES, SELECTOR, Belady, Replay, Workload, replay
from fleet.traces import read_traces
from pipeline.errors import ConfigError, DataError

MONDAY = 1_704_067_200.0


def hourly(jitter: float = 10.0, days: int = 14) -> Workload:
    source = random.Random(1)
    times = sorted(MONDAY + run * 3600 + abs(source.gauss(0, jitter)) for run in range(24 * days))
    return Workload("hourly", (ModelSpec("a", load_s=4.0),), {"a": times}, MONDAY, MONDAY + days * 86400, True)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    times = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0, 900.0, 3600.0, 50000.0]), min_size=1, max_size=40))
        times[name] = (MONDAY + np.cumsum(gaps)).tolist()
    specs = tuple(ModelSpec(name, weights_mb=50.0 + 30 * index, contexts_mb=10.0, load_s=1.0 + index) for index, name in enumerate(times))
    return Workload("drawn", specs, times, MONDAY, max(map(max, times.values())) + 100.0, True)


@settings(max_examples=40, deadline=None)
@given(workloads(), st.sampled_from([*POLICIES, SELECTOR, ORACLE]), st.sampled_from([None, 130.0]))
def test_replay_is_deterministic_answers_all_and_keeps_the_cap(workload: Workload, policy: str, cap: float | None) -> None:
    one, two = (replay(workload, policy, price_s=300.0, cap_mb=cap, timeline=True) for _ in range(2))
    assert one.figures() == two.figures()
    assert one.timeline == two.timeline
    assert one.lost == 0
    assert one.status["memory_mb"] <= (cap or 1e9)
    assert one.warm_idle_s >= 0.0


@settings(max_examples=25, deadline=None)
@given(workloads(), st.integers(0, 90))
def test_the_frontier_is_what_replay_of_each_keep_alive_gives(workload: Workload, index: int) -> None:
    fixed = frontier(workload)
    keep = float(fixed.keep_s[index])
    outcome = Replay(workload, Controller(workload.specs, policy=KeepAlive(keep))).run()
    assert outcome.cold_rate == pytest.approx(fixed.cold_rate[index])
    assert outcome.warm_idle_s == pytest.approx(fixed.warm_idle_s[index], abs=1e-3)


@pytest.mark.parametrize(("load_s", "gap", "cold"), [(1.0, 2.0, [1.0, 0.75]), (3.0, 4.0, [1.0, 1.0]), (4.0, 4.0, [1.0, 0.75])])
def test_a_request_when_the_pause_or_the_load_ends(load_s: float, gap: float, cold: list[float]) -> None:
    """Four requests, kept for no time and for one second: at that moment a model is unloaded first, then asked."""
    times = {"a": [MONDAY, MONDAY + gap, MONDAY + gap + 1.0, MONDAY + gap + 2.0]}
    workload = Workload("ties", (ModelSpec("a", load_s=load_s),), times, MONDAY, MONDAY + 100.0, True)
    replayed = [Replay(workload, Controller(workload.specs, policy=KeepAlive(keep))).run().cold_rate for keep in (0.0, 1.0)]
    assert list(frontier(workload).keep_s[:2]) == [0.0, 1.0]
    assert (replayed, list(frontier(workload).cold_rate[:2])) == (cold, cold)


def test_on_cron_traffic_the_selector_saves_most_of_the_idle_time_at_an_equal_cold_rate() -> None:
    workload = hourly()
    fixed, found = frontier(workload), replay(workload, SELECTOR, price_s=1800.0)
    assert found.warm_idle_s < 0.15 * fixed.idle_at(found.cold_rate)
    assert found.cold_rate < 0.06
    assert replay(workload, ORACLE, price_s=1800.0).cost < found.cost < replay(workload, "always-warm", price_s=1800.0).cost / 10


def test_a_convex_mixture_is_on_the_frontier() -> None:
    fixed = frontier(hourly())
    assert fixed.idle_at(1.0) == 0.0
    ends = fixed.idle_at(0.1), fixed.idle_at(0.5)
    assert fixed.idle_at(0.3) <= sum(ends) / 2 + 1.0


def test_belady_is_no_worse_than_greedy_dual_on_one_size() -> None:
    source = random.Random(4)
    times = {f"m{i}": sorted(MONDAY + source.uniform(0, 86400 * 3) for _ in range(40 * (i + 1))) for i in range(6)}
    specs = tuple(ModelSpec(name, weights_mb=100.0, load_s=1.0) for name in times)
    workload = Workload("six", specs, times, MONDAY, MONDAY + 3 * 86400, True)
    best = Controller(specs, policy=KeepAlive(float("inf")), cap_mb=300.0)
    best.arbiter = Belady(300.0, times)
    dual = Controller(specs, policy=KeepAlive(float("inf")), cap_mb=300.0, foresight=False)
    assert Replay(workload, best).run().cold_rate < Replay(workload, dual).run().cold_rate


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp,count\n2024-01-01,-3\n", "count cannot be"),
        ("timestamp,count\n2024-01-01,99999999999\n", "count cannot be"),
        ("timestamp,count\n2024-01-01,nan\n", "count cannot be"),
        ("timestamp,count\n2024-01-01,1.5\n", "count cannot be"),
        ("timestamp,count\nyesterday,1\n", "time cannot be read"),
        ("timestamp,count\n,1\n", "time cannot be read"),
        ("timestamp,count\n9e15,1\n", "time cannot be"),
        ("timestamp,count\n2024-01-01\n", "number of cells"),
        ("timestamp,count\n", "no row"),
        ("time,count\n1,1\n", "lacks a column"),
        ("", "lacks a column"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_traces(write(tmp_path / "trace.csv", text))


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    [trace] = read_traces(write(tmp_path / "t.csv", "timestamp,count\n60,1\n0,2\n60,3\n120,1\n300,1\n"))
    assert trace.notes == {"out_of_order": 1, "duplicate": 1, "missing": 2}
    assert trace.counts.tolist() == [2, 4, 1, 1]
    assert len(trace.arrivals()) == 8
    assert trace.arrivals(0.5, seed=1) == trace.arrivals(0.5, seed=1)


def test_the_command_replays_plots_and_tells(tmp_path: Path) -> None:
    rows = "".join(f"{MONDAY + run * 1800:.0f},{'ab'[run % 2]}\n" for run in range(200))
    file = write(tmp_path / "two.csv", f"timestamp,model\n{rows}")
    fleet = write(tmp_path / "fleet.json", json.dumps({"models": [{"name": "a", "weights_mb": 10, "load_s": 2}]}))
    result = replay_files([str(file)], ["selector", "always-warm"], price_s=600.0, fleet=str(fleet), plots=str(tmp_path / "plots"))
    assert result["requests"] == 200
    assert result["models"]["a"]["load_s"] == 2.0
    assert result["models"]["b"]["load_s"] == 4.0
    assert result["policies"]["always-warm"]["cold_rate"] == pytest.approx(0.01)
    assert "selector" in describe(result)
    for name in ("frontier.svg", "timeline.svg"):
        assert (tmp_path / "plots" / name).read_text().startswith("<svg")
    json.dumps(result)


@pytest.mark.parametrize("options", [{"policies": ["best"]}, {"price_s": 0.0}, {"thin": 0}])
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    file = write(tmp_path / "t.csv", "timestamp,count\n0,1\n")
    with pytest.raises(ConfigError):
        replay_files([str(file)], **{"policies": [], **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no such file"):
        replay_files([str(tmp_path / "absent.csv")], [])
