"""Server processes that do not do what they are told: deaf to SIGTERM, left by a controller that died, ended while they load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import until

from fleet import state as states
from fleet.drivers import Event
from fleet.models import Action, Kind, ModelSpec
from fleet.processes import STARTING, ServeProcesses, own_program

SPEC = ModelSpec("deaf", bundle="none")
DEAF = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"]
"""A double of a server that hangs in its runtime."""


def told(driver: ServeProcesses, now: float) -> list[str]:
    return [event.what for event in driver.poll(now)]


def begun(driver: ServeProcesses, folder: Path, urgent: bool = True) -> int:
    driver.begin(Action(Kind.LOAD, "deaf", urgent, seconds=SPEC.load_s), SPEC, 0.0)
    log = folder / "deaf" / "serve.log"
    until(lambda: log.exists() and "deaf" in log.read_text())
    return int((folder / "deaf" / STARTING).read_text().split()[0])


def test_a_process_that_does_not_end_is_killed_and_its_memory_counted_until_then(tmp_path: Path) -> None:
    driver = ServeProcesses(tmp_path, program=DEAF)
    pid = begun(driver, tmp_path)
    driver.begin(Action(Kind.UNLOAD, "deaf"), SPEC, 1.0)
    time.sleep(0.1)
    assert told(driver, 2.0) == []
    assert states.start_ticks(pid) is not None
    assert told(driver, 100.0) == []
    until(lambda: told(driver, 101.0) == ["unloaded"])
    assert states.start_ticks(pid) is None


def test_a_load_that_is_begun_again_while_the_last_one_hangs_leaves_none_behind(tmp_path: Path) -> None:
    driver = ServeProcesses(tmp_path, program=DEAF)
    first = begun(driver, tmp_path)
    driver.begin(Action(Kind.UNLOAD, "deaf", reason="the load hangs"), SPEC, 1.0)
    second = begun(driver, tmp_path)
    driver.begin(Action(Kind.UNLOAD, "deaf"), SPEC, 2.0)
    driver.poll(200.0)
    until(lambda: told(driver, 201.0) == ["unloaded"])
    assert (states.start_ticks(first), states.start_ticks(second)) == (None, None)


def test_a_load_that_a_dead_controller_had_begun_is_ended_by_the_next(tmp_path: Path) -> None:
    driver = ServeProcesses(tmp_path, program=DEAF)
    pid = begun(driver, tmp_path)
    os.kill(pid, signal.SIGSTOP)  # it held still for a neighbour
    assert ServeProcesses(tmp_path).found() == []
    until(lambda: told(driver, 0.0) == ["failed"])
    assert not (tmp_path / "deaf" / STARTING).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes a low priority back")
def test_a_load_that_somebody_waits_for_runs_as_others_do(tmp_path: Path) -> None:
    driver = ServeProcesses(tmp_path, program=DEAF)
    pid = begun(driver, tmp_path, urgent=False)
    assert (os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)) == (os.SCHED_BATCH, 19)
    driver.begin(Action(Kind.HURRY, "deaf", True), SPEC, 1.0)
    assert (os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)) == (os.SCHED_OTHER, 0)
    driver.begin(Action(Kind.UNLOAD, "deaf"), SPEC, 1.0)
    until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    driver.begin(Action(Kind.HURRY, "deaf", True), SPEC, 1.0)  # somebody waits for its memory
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    driver.poll(100.0)
    until(lambda: told(driver, 101.0) == ["unloaded"])


def test_a_process_that_cannot_be_started_is_a_load_that_failed(tmp_path: Path) -> None:
    driver = ServeProcesses(tmp_path, program=[str(tmp_path / "absent")])
    for urgent in (True, False):
        driver.begin(Action(Kind.LOAD, "deaf", urgent), SPEC, 0.0)
        events: list[Event] = []
        until(lambda events=events: events.extend(driver.poll(0.0)) or events)
        assert events[0].what == "failed"
        assert "absent" in events[0].reason


def test_the_servers_program_is_this_one() -> None:
    done = subprocess.run([*own_program(), "serve", "--help"], capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert "BUNDLE" in done.stdout, done.stderr
