"""Background processes stand still while a request is inside, go on after it, get a turn when requests never pause, and run freely once released."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import until

from fleet.pacer import Pacer


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
    pacer.add("load", child)
    assert not still(child)
    with pacer.inside():
        until(lambda: still(child))
    until(lambda: not still(child))
    pacer.release("load")
    with pacer.inside():
        assert not still(child)
    pacer.release("load")


def test_one_that_begins_during_a_request_stands_still_too(child: int) -> None:
    pacer = Pacer()
    with pacer.inside():
        pacer.add("load", child)
        until(lambda: still(child))
        pacer.release("load")
        until(lambda: not still(child))


def test_it_gets_its_turn_when_requests_never_pause(child: int) -> None:
    pacer = Pacer()
    pacer.add("load", child)
    with pacer.inside():
        until(lambda: still(child))
        before = processor_ticks(child)
        until(lambda: processor_ticks(child) > before)
        until(lambda: still(child))
    pacer.release("load")


def test_a_process_that_is_gone_harms_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pacer = Pacer()
    with pacer.inside():
        pacer.add("load", gone.pid)
    pacer.release("load")
