"""Background processes run in the pauses between requests, meet next to none, and run freely once somebody waits or their time is over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import until

from fleet import pacer as pacers
from fleet.pacer import PAUSES, Pacer, turn


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def processor_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_it_stands_still_while_a_request_is_inside(child: int) -> None:
    pacer = Pacer()
    pacer.add("load", child, 60.0)
    until(lambda: not still(child))
    with pacer.inside():
        until(lambda: still(child))
    until(lambda: not still(child))
    pacer.release("load")
    with pacer.inside():
        assert not still(child)


def test_one_that_begins_during_a_request_stands_still_too(child: int) -> None:
    pacer = Pacer()
    with pacer.inside():
        pacer.add("load", child, 60.0)
        until(lambda: still(child))
        pacer.release("load")
        until(lambda: not still(child))


def test_it_runs_whoever_comes_once_its_time_is_over(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacers, "PATIENCE", 0.0)
    pacer = Pacer()
    with pacer.inside():
        pacer.add("load", child, 60.0)
        until(lambda: not still(child))
        before = processor_ticks(child)
        until(lambda: processor_ticks(child) > before)
    pacer.release("load")


def test_a_process_begins_in_a_pause_or_once_somebody_waits_or_never(child: int) -> None:
    pacer, begun = Pacer(), []

    def start(name: str) -> int:
        begun.append(name)
        return child

    with pacer.inside():
        for name in ("paused", "waited for", "given up"):
            pacer.begin(name, lambda name=name: start(name), 60.0)
        assert begun == []
        pacer.release("waited for")
        assert begun == ["waited for"]
        pacer.cancel("given up")
    until(lambda: begun == ["waited for", "paused"])
    pacer.close()
    assert not still(child)


def test_what_cannot_be_started_and_what_is_gone_harm_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pacer, asked = Pacer(), []
    pacer.begin("refused", lambda: asked.append("refused"), 60.0)
    until(lambda: asked == ["refused"])
    with pacer.inside():
        pacer.add("load", gone.pid, 60.0)
    pacer.release("load")


@pytest.mark.parametrize("kind", ["steady", "memoryless", "heavy tail", "two kinds"])
def test_next_to_no_request_meets_it_whatever_their_pattern(kind: str) -> None:
    """At most two pauses in PAUSES + 1 are shorter than all of the last ones, or longer; a margin before the shortest makes it fewer."""
    random = np.random.default_rng(0)
    pauses = {
        "steady": random.normal(0.0055, 0.0001, 5000),
        "memoryless": random.exponential(0.1, 5000),
        "heavy tail": 0.004 * (1.0 + random.pareto(1.5, 5000)),
        "two kinds": np.where(random.random(5000) < 0.5, 0.005, 0.5) * random.uniform(1.0, 1.1, 5000),
    }[kind].tolist()
    met, worked = 0, 0.0
    for index in range(PAUSES, len(pauses)):
        age, running = 0.0, False
        while age < pauses[index]:
            running, seconds = turn(pauses[index - PAUSES : index], age, running=running, meets=0)
            worked += min(seconds, pauses[index] - age) if running else 0.0
            met += running and age + seconds >= pauses[index]
            age += seconds
    judged = len(pauses) - PAUSES
    assert met <= 1.5 * 2.0 * judged / (PAUSES + 1)
    if kind in ("steady", "two kinds"):
        assert worked > 0.4 * judged * 0.0055  # it is no stop for good


def test_where_models_are_seldom_used_it_does_not_wait_for_the_longest_pause() -> None:
    pauses = [20.0, 60.0, 45.0]
    assert turn(pauses, 30.0, running=False, meets=1) == (True, float("inf"))
    assert turn(pauses, 30.0, running=False, meets=0) == (False, 30.0)
    assert turn(pauses, 60.0, running=False, meets=0) == (True, float("inf"))
    assert turn([], 1.0, running=False, meets=0)[0]
