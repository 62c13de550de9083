"""Loads that nobody waits for stand still while neighbours answer: on few cores even a process of the lowest priority delays requests by its slices.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 0.01
"""After an answer, until the loads go on: its reader may ask again."""
LONGEST_S, TURN_S = 0.08, 0.008
"""A load that stood still for so long because requests never pause gets a turn of so long: it takes eleven times as long at most."""


class Pacer:
    """Background processes by name, which run only while no request is inside. Thread-safe; costs a lock a request while there are none."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._changed = threading.Condition()
        self._inside = 0
        self._still = self._turn = False
        """Whether they stand still; whether they run whoever comes."""
        self._ended_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, name: str, pid: int) -> None:
        """A background process has begun."""
        yield_processor(pid, True)
        with self._changed:
            self._pids[name] = pid
            if self._still:
                _signal(pid, signal.SIGSTOP)
            elif self._inside:
                self._stop()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
                self._thread.start()

    def release(self, name: str) -> None:
        """It has ended, or somebody waits for it: it runs as everybody does."""
        with self._changed:
            pid = self._pids.pop(name, None)
            if pid is not None:
                _signal(pid, signal.SIGCONT)
                yield_processor(pid, False)
                self._changed.notify()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A request is being answered."""
        with self._changed:
            self._inside += 1
            if self._pids and not self._still and not self._turn:
                self._stop()
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._ended_at = time.monotonic()
                if self._still and not self._inside:
                    self._changed.notify()

    def _stop(self) -> None:
        self._still = True
        for pid in self._pids.values():
            _signal(pid, signal.SIGSTOP)
        self._changed.notify()

    def _run(self) -> None:
        """Let them go on when no request has come for a while, or when it is their turn; ends with the last of them."""
        with self._changed:
            while self._pids:
                if not self._still:
                    self._changed.wait(1.0)
                    continue
                latest = time.monotonic() + LONGEST_S
                self._wait(latest, pauses=True)
                self._still = False
                for pid in self._pids.values():
                    _signal(pid, signal.SIGCONT)
                if time.monotonic() >= latest:
                    self._turn = True
                    self._wait(latest + TURN_S)
                    self._turn = False
                    if self._pids and (self._inside or time.monotonic() < self._ended_at + GRACE_S):
                        self._stop()
            self._still, self._thread = False, None

    def _wait(self, latest: float, pauses: bool = False) -> None:
        """Until then, or until nobody came for GRACE_S where `pauses` end it."""
        while self._pids:
            due = min(latest, self._ended_at + GRACE_S) if pauses and not self._inside else latest
            if (left := due - time.monotonic()) <= 0.0:
                return
            self._changed.wait(left)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def yield_processor(pid: int, yields: bool) -> None:
    """Let a process run only where others leave the processor idle, or end that; only as root, who alone can take it back.

    SCHED_IDLE (sched(7)) counts inside one autogroup, which is a session: between sessions the group's own niceness does.
    """
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE if yields else os.SCHED_OTHER, os.sched_param(0))
            if os.getsid(pid) == pid:
                Path(f"/proc/{pid}/autogroup").write_text("19" if yields else "0")
