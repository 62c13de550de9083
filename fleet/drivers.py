"""Servers that the controller drives: `qwarm serve` processes, one a model; and none at all (shadow). Standard library only.

A driver begins what it is asked at once and says later what came of it. Its processes outlive the controller: the next one takes them over.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from fleet import state as states
from fleet.models import Action, Kind, ModelSpec

LOG_BYTES = 1 << 20


class Event(NamedTuple):
    """What came of an action, or of a server by itself; `what` is the controller's method that is told of it."""

    name: str
    what: Literal["loaded", "unloaded", "failed", "unreachable", "lost"]
    reason: str = ""


class Driver(Protocol):
    """What the controller's loop needs of servers."""

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:
        """Start a load or an unload; never waits."""

    def poll(self, now: float) -> list[Event]:
        """What has happened since the last call."""
        ...

    def address(self, name: str) -> str | None:
        """`http://host:port` that answers for a warm model, with its path below /v2."""
        ...

    def found(self) -> list[str]:
        """Models that are warm already, from an earlier controller."""
        ...

    def close(self, unload: bool) -> None:
        """Let go of the servers, which stay unless `unload`."""


class Shadow:
    """Does nothing: loads end after the time that the release measured. For watching what the controller would do."""

    def __init__(self) -> None:
        self._due: list[tuple[float, str]] = []
        self._done: list[Event] = []

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:
        """Remember when it would end."""
        if action.kind is Kind.LOAD:
            heapq.heappush(self._due, (now + action.seconds, spec.name))
        else:
            self._due = [(at, name) for at, name in self._due if name != spec.name]
            self._done.append(Event(spec.name, "unloaded"))

    def poll(self, now: float) -> list[Event]:
        """What would have ended."""
        done, self._done = self._done, []
        while self._due and self._due[0][0] <= now:
            done.append(Event(heapq.heappop(self._due)[1], "loaded"))
        return done

    def address(self, name: str) -> str | None:  # noqa: ARG002
        """None: nothing answers."""
        return None

    def found(self) -> list[str]:
        """None."""
        return []

    def close(self, unload: bool) -> None:
        """Nothing is held."""


class ServeProcesses:
    """One `qwarm serve` process a model, on a port of its own; states and logs are in `folder`/NAME."""

    def __init__(self, folder: Path, *, key: Path | None = None, allow_unsigned: bool = False, program: list[str] | None = None) -> None:
        self.folder, self.program = folder, program or [sys.executable, "-m", "fleet.main"]
        self.origin = ["--key", str(key)] if key else ["--allow-unsigned"] if allow_unsigned else []
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._warm: dict[str, states.State] = {}
        self._ending: dict[str, int | None] = {}

    def found(self) -> list[str]:
        """Processes of an earlier controller that are warm."""
        for place in self.folder.iterdir() if self.folder.is_dir() else ():
            living = [state for state in states.living(place) if state.address is not None] if place.is_dir() else []
            if living:
                self._warm[place.name] = living[-1]
        return list(self._warm)

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:  # noqa: ARG002
        """Start a process, or tell it to end; it answers what it runs before it does."""
        if action.kind is Kind.LOAD:
            self._start(action, spec)
        else:
            self._end(spec.name)

    def _start(self, action: Action, spec: ModelSpec) -> None:
        if spec.name in self._warm:  # it does not answer, or is of another bundle
            self._end(spec.name)
            self._ending.pop(spec.name)
        place = self.folder / spec.name
        place.mkdir(parents=True, exist_ok=True)
        output = place / "serve.log"
        fresh = not output.exists() or output.stat().st_size > LOG_BYTES
        command = [*self.program, "serve", spec.bundle, *self.origin, "--port", "0", "--state", str(place), "--json"]
        with open(output, "wb" if fresh else "ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self._starting[spec.name] = self._children[spec.name] = child
        if not action.urgent:
            _yielding(child.pid, True)

    def _end(self, name: str) -> None:
        child, state = self._children.pop(name, None), self._warm.pop(name, None)
        self._starting.pop(name, None)
        pid = child.pid if child is not None else state.pid if state is not None and states.alive(state) else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._ending[name] = pid
        if child is not None:
            self._children[f"{name} (ending)"] = child

    def poll(self, now: float) -> list[Event]:  # noqa: ARG002
        """Look at state files and at processes."""
        events: list[Event] = []
        for child in self._children.values():
            child.poll()  # so that none stays a zombie
        for name, child in list(self._starting.items()):
            state = next((item for item in states.living(self.folder / name) if item.pid == child.pid and item.address), None)
            if state is not None:
                del self._starting[name]
                self._warm[name] = state
                _yielding(child.pid, False)
                events.append(Event(name, "loaded"))
            elif child.returncode is not None:
                del self._starting[name], self._children[name]
                events.append(Event(name, "failed", f"exit code {child.returncode}: {self._last_line(name)}"))
        for name, state in list(self._warm.items()):
            if not states.alive(state):
                del self._warm[name]
                self._children.pop(name, None)
                events.append(Event(name, "lost", f"process {state.pid} is gone"))
        for name, pid in list(self._ending.items()):
            if pid is None or states.start_ticks(pid) is None:
                del self._ending[name]
                self._children.pop(f"{name} (ending)", None)
                events.append(Event(name, "unloaded"))
        return events

    def _last_line(self, name: str) -> str:
        lines = (self.folder / name / "serve.log").read_text(errors="replace").splitlines()
        return lines[-1][-300:] if lines else ""

    def address(self, name: str) -> str | None:
        """Where the process listens."""
        state = self._warm.get(name)
        return state.address if state is not None else None

    def close(self, unload: bool) -> None:
        """End the processes, or leave them to the next controller."""
        if unload:
            for name in [*self._warm, *self._starting]:
                self._end(name)
            for child in self._children.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(30.0)


def _yielding(pid: int, yields: bool) -> None:
    """Let a load run only where requests leave the processor idle, or end that; only as root, who alone can take it back (sched(7), SCHED_IDLE)."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE if yields else os.SCHED_OTHER, os.sched_param(0))
