"""The forecaster as a process: killed, silent, wrong; started again, it knows what it knew. Real processes; only what is sent may be made up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from serving import until

import fleet.forecast_process as module
from fleet.arrivals import Arrivals
from fleet.forecast_process import ForecastProcess
from fleet.forecaster import Answer, Closed, Forecasts
from fleet.habits import AHEAD_SLOTS, Habits
from fleet.seasons import SLOT_S

MONDAY = 1_704_067_200.0
FIRST = int(MONDAY // SLOT_S)
PAST: Closed = [(FIRST + index, float(index % 7), 3.0) for index in range(100)]
HABITS = Habits(Arrivals(), 600.0, 5.0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForecastProcess]:
    monkeypatch.setattr(module, "RESTART_S", 0.05)
    made = ForecastProcess()
    until(lambda: made.fault(0.0) == "")
    yield made
    made.close()


def answered(process: Forecasts) -> Answer:
    found: list[Answer] = []
    until(lambda: bool(process.fault(0.0) or found.extend(process.answers()) or found))
    assert process.fault(0.0) == ""
    return found[-1]


def ask(process: Forecasts, closed: Closed) -> Answer:
    process.ask("a", HABITS, closed, MONDAY + 100 * SLOT_S)
    return answered(process)


def test_it_answers_what_the_one_in_this_process_answers(process: ForecastProcess) -> None:
    here = Forecasts()
    assert ask(process, PAST)._replace(seconds=0.0) == ask(here, PAST)._replace(seconds=0.0)
    assert process.facts("a") == here.facts("a") != {"skill": None, "coverage": None}


def test_killed_it_is_started_again_and_knows_what_it_knew(process: ForecastProcess) -> None:
    before = ask(process, PAST)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: "exit code -9" in process.fault(0.0))
    process.ask("a", HABITS, [(FIRST + 100, 2.0, 3.0)], MONDAY + 101 * SLOT_S)  # while it is dead
    until(lambda: process.fault(0.0) == "")
    after = ask(process, [(FIRST + 101, 3.0, 3.0)])
    whole = Forecasts()
    assert after.rates == ask(whole, [*PAST, (FIRST + 100, 2.0, 3.0), (FIRST + 101, 3.0, 3.0)]).rates
    assert after.rates != before.rates


def test_silent_it_is_ended_and_started_again(process: ForecastProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.pid is not None
    first = process.pid
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(module, "LAG_S", 0.2)
    process.ask("a", HABITS, PAST, MONDAY)
    until(lambda: "it lags" in process.fault(0.0))
    monkeypatch.setattr(module, "LAG_S", 30.0)
    until(lambda: process.fault(0.0) == "")
    assert process.pid != first


@pytest.mark.parametrize("line", ["no JSON", "[1, 2]", '["a", 0, [1.0], null, null, 0.0]', "42"])
def test_an_answer_that_cannot_be_is_a_fault(process: ForecastProcess, line: str) -> None:
    process._lines.put(line)
    assert process.fault(0.0).startswith("wrong")


def test_many_models_at_once_are_all_answered(process: ForecastProcess) -> None:
    for index in range(40):
        process.ask(f"m{index}", HABITS, PAST, MONDAY)
        process.ask(f"m{index}", HABITS, PAST[:1], MONDAY)
    found: set[str] = set()
    until(lambda: found.update(answer.name for answer in process.answers() if process.fault(0.0) == "") or process.fault(0.0) or len(found) == 40)
    assert process.fault(0.0) == ""


@pytest.mark.parametrize("rate", [float("nan"), -1.0])
def test_a_rate_that_cannot_be_ends_the_one_in_this_process(rate: float) -> None:
    forecasts = Forecasts()
    forecasts.take(Answer("a", 0, [rate] * AHEAD_SLOTS, None, None, 0.0))
    assert forecasts.fault(0.0).startswith("wrong")
    assert forecasts.answers() == []


def test_a_past_that_cannot_be_begins_anew() -> None:
    forecasts = Forecasts()
    ask(forecasts, PAST)
    saved = forecasts.saved()
    again = Forecasts()
    assert again.restore({**saved, "b": "%%%", "c": "AAAA", "d": "AADAfwAAwH8="}) == ["b", "c", "d"]
    assert ask(again, []).rates == ask(forecasts, []).rates
