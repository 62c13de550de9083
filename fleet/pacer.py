"""Loads and unloads that nobody waits for run in the pauses between requests: on few cores even a process of the lowest priority delays requests.

How long a pause lasts is told by the last ones. Of 301 exchangeable pauses each is as likely as any other to be the shortest, or the longest (the
argument of conformal prediction: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005). So work that stops before the shortest
of the last 300 would be over, and goes on once the longest is, meets two requests in 301 at most, whatever their pattern. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PAUSES = 300
SETTLE_S, MARGIN_S = 0.001, 0.0012
"""From an answer until work goes on: it is still being written. From a stop to the end of the shortest pause: the next request is being read."""
SLICE_S, START_S = 0.001, 0.0025
"""What a pause must leave room for: a slice of work, and the start of a process."""
MEETS, RARE_S = 2, 0.5
"""Requests that work may meet where pauses are too irregular for a slice, or so long in the mean that no more will come meanwhile."""
PATIENCE, SHORTEST_S = 15.0, 0.2
"""In times of its own length, which counts as 0.2 s at least: work that has not ended by then runs on whoever comes, with the lowest weight."""


class Paced(NamedTuple):
    """A process, or how to start it (None where it could not be), and when its time is over."""

    pid: int | None
    start: Callable[[], int | None]
    latest: float


class Pacer:
    """Background processes by name. Thread-safe; costs a lock a request."""

    def __init__(self) -> None:
        self._work: dict[str, Paced] = {}
        self._overdue: dict[str, int] = {}
        self._changed = threading.Condition()
        self._pauses: deque[float] = deque(maxlen=PAUSES)
        self._inside = self._meets = 0
        self._running = False
        self._ended_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, start: Callable[[], int | None], seconds: float) -> None:
        """Work that takes `seconds` alone: `start`, called in a pause, begins it and returns its process."""
        self._take(name, None, start, seconds)

    def add(self, name: str, pid: int, seconds: float) -> None:
        """The same of a process that is there."""
        yield_processor(pid, True)
        self._take(name, pid, lambda: pid, seconds)

    def _take(self, name: str, pid: int | None, start: Callable[[], int | None], seconds: float) -> None:
        with self._changed:
            self._work[name] = Paced(pid, start, time.monotonic() + PATIENCE * max(SHORTEST_S, seconds))
            self._meets = MEETS
            if pid is not None and not self._running:
                _signal(pid, signal.SIGSTOP)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def release(self, name: str) -> None:
        """It has ended, or somebody waits for it: it begins if it has not, and runs as everybody does."""
        with self._changed:
            pid = self._overdue.pop(name, None)
            paced = self._work.pop(name, None)
            if paced is not None:
                pid = paced.start() if paced.pid is None else paced.pid
                self._changed.notify()
            if pid is not None:
                _signal(pid, signal.SIGCONT)
                yield_processor(pid, False)

    def cancel(self, name: str) -> None:
        """As `release`, but what has not begun never does."""
        with self._changed:
            if name in self._work and self._work[name].pid is None:
                del self._work[name]
        self.release(name)

    def close(self) -> None:
        """All run as everybody does; what has not begun never does."""
        for name in [*self._work, *self._overdue]:
            self.cancel(name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A request is being answered."""
        with self._changed:
            self._inside += 1
            if self._inside == 1:
                self._pauses.append(time.monotonic() - self._ended_at)
            if self._running:
                self._meets -= 1
                self._hold()
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._ended_at = time.monotonic()
                    if self._work:
                        self._changed.notify()

    def _hold(self) -> None:
        self._running = False
        for paced in self._work.values():
            if paced.pid is not None:
                _signal(paced.pid, signal.SIGSTOP)

    def _go(self, seconds: float) -> None:
        """Let all run; what has not begun does where `seconds` are enough for that."""
        self._running = True
        for name, paced in list(self._work.items()):
            if paced.pid is not None:
                _signal(paced.pid, signal.SIGCONT)
            elif seconds >= START_S:
                del self._work[name]
                if (pid := paced.start()) is not None:
                    yield_processor(pid, True)
                    self._work[name] = paced._replace(pid=pid)

    def _run(self) -> None:
        """Ends with the last of them."""
        with contextlib.suppress(OSError):  # as root: were its timers late by a slice of a load, requests would meet that
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        with self._changed:
            while self._work:
                now = time.monotonic()
                for name in [name for name, paced in self._work.items() if now >= paced.latest]:
                    self._let_loose(name)
                runs, seconds = False, float("inf")
                if not self._inside:
                    runs, seconds = turn(self._pauses, now - self._ended_at, running=self._running, meets=self._meets)
                if runs and not self._running:
                    self._go(seconds)
                elif self._running and not runs:
                    self._hold()
                latest = min((paced.latest for paced in self._work.values()), default=now)
                self._changed.wait(max(0.0, min(seconds, latest - now)))
            self._running, self._thread = False, None

    def _let_loose(self, name: str) -> None:
        paced = self._work.pop(name)
        pid = paced.start() if paced.pid is None else paced.pid
        if pid is not None:
            yield_processor(pid, True)
            _signal(pid, signal.SIGCONT)
            self._overdue[name] = pid


def turn(pauses: Collection[float], age: float, *, running: bool, meets: int) -> tuple[bool, float]:
    """Whether work may run `age` seconds after the last answer, and for how many seconds that holds unless a request comes.

    `pauses`: the last ones, in seconds. `running`: whether it runs already. `meets`: requests that it may still meet.
    """
    if age < SETTLE_S:
        return False, SETTLE_S - age
    pauses = pauses or (0.0,)
    shortest, longest = min(pauses), max(pauses)
    left = shortest - MARGIN_S - age
    if left > (0.0 if running else SLICE_S):
        return True, left
    irregular = shortest < SETTLE_S + SLICE_S + MARGIN_S
    if age >= longest or (meets > 0 and (irregular or sum(pauses) > RARE_S * len(pauses))):
        return True, float("inf")
    return False, longest - age


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def yield_processor(pid: int, yields: bool) -> None:
    """Give a process the lowest weight, or the usual one again; only as root, who alone can take it back.

    Niceness counts inside one autogroup, which is a session, and between sessions the group's own does (sched(7)). SCHED_IDLE would be worse: a
    waking thread takes a processor that runs only such processes for idle, and then waits there for the end of their slice.
    """
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH if yields else os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, int(task.name), 19 if yields else 0)
            if os.getsid(pid) == pid:
                Path(f"/proc/{pid}/autogroup").write_text("19" if yields else "0")
