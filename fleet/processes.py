"""`qwarm serve` processes, one a model. They outlive the controller: the next one takes over those that are warm. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from fleet import state as states
from fleet.drivers import Event
from fleet.models import Action, Kind, ModelSpec
from fleet.pacer import Pacer

LOG_BYTES = 1 << 20
END_S = 60.0
"""A process that has not ended so long after SIGTERM is killed: its requests have had twice the time that it drains for."""
ENDING_S = 0.2
"""What the end of a process takes alone, about."""
STARTING = "starting"
"""File beside a process's state while it is not warm: its number and start."""


class Ending(NamedTuple):
    """A process that was told to end; `child` where it is one of ours."""

    name: str
    pid: int | None
    child: subprocess.Popen[bytes] | None
    latest: float

    def gone(self, now: float) -> bool:
        """Whether it is; kills it when its time is over."""
        if self.child is not None:
            self.child.poll()  # so that it does not stay a zombie
        if self.pid is None or states.start_ticks(self.pid) is None:
            return True
        if now > self.latest:
            _send(self.pid, signal.SIGKILL)
        return False


class ServeProcesses:
    """Each on a port of its own; states and logs are in `folder`/NAME. `program`: what understands `serve`, by default this very program."""

    def __init__(self, folder: Path, *, key: Path | None = None, allow_unsigned: bool = False, program: list[str] | None = None) -> None:
        self.folder, self.program = folder, program or own_program()
        self.origin = ["--key", str(key)] if key else ["--allow-unsigned"] if allow_unsigned else []
        self.pacer = Pacer()
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._warm: dict[str, states.State] = {}
        self._ending: list[Ending] = []
        self._refused: list[Event] = []
        """Processes that could not be started."""

    def answering(self) -> AbstractContextManager[None]:
        """Background loads hold still meanwhile."""
        return self.pacer.inside()

    def found(self) -> list[str]:
        """Processes of an earlier controller that are warm; those that it had just begun, and may have left standing still, are ended."""
        for place in self.folder.iterdir() if self.folder.is_dir() else ():
            _end_left_over(place / STARTING)
            living = [state for state in states.living(place) if state.address is not None] if place.is_dir() else []
            if living:
                self._warm[place.name] = living[-1]
        return list(self._warm)

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:
        """Start a process, or tell it to end; it answers what it runs before it does."""
        if action.kind is Kind.LOAD:
            self._start(action, spec, now)
        elif action.kind is Kind.HURRY:
            self.pacer.release(spec.name)
            self.pacer.release(_ending(spec.name))
        else:
            self._end(spec.name, now, action.urgent)

    def _start(self, action: Action, spec: ModelSpec, now: float) -> None:
        if spec.name in self._warm:  # it does not answer, or is of another bundle
            self._end(spec.name, now, action.urgent)
        place = self.folder / spec.name
        place.mkdir(parents=True, exist_ok=True)
        output = place / "serve.log"
        fresh = not output.exists() or output.stat().st_size > LOG_BYTES
        command = [*self.program, "serve", spec.bundle, *self.origin, "--port", "0", "--state", str(place), "--json"]

        def start() -> int | None:
            try:
                with open(output, "wb" if fresh else "ab") as log:
                    child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
                (place / STARTING).write_text(f"{child.pid} {states.start_ticks(child.pid)}")
            except OSError as error:
                self._refused.append(Event(spec.name, "failed", f"{type(error).__name__}: {error}"))
                return None
            self._starting[spec.name] = self._children[spec.name] = child
            return child.pid

        if action.urgent:
            start()
        else:
            self.pacer.begin(spec.name, start, action.seconds)

    def _end(self, name: str, now: float, urgent: bool) -> None:
        self.pacer.cancel(name)
        child, state = self._children.pop(name, None), self._warm.pop(name, None)
        if self._starting.pop(name, None) is not None:
            self._begun(name)
        pid = child.pid if child is not None else state.pid if state is not None and states.alive(state) else None
        if pid is not None:
            _send(pid, signal.SIGTERM)
            if not urgent:
                self.pacer.add(_ending(name), pid, ENDING_S)
        self._ending.append(Ending(name, pid, child, now + END_S))

    def _begun(self, name: str) -> None:
        """It is warm, or will never be."""
        self.pacer.release(name)
        (self.folder / name / STARTING).unlink(missing_ok=True)

    def poll(self, now: float) -> list[Event]:
        """Look at state files and at processes."""
        events, self._refused = self._refused, []
        for name, child in list(self._starting.items()):
            state = next((item for item in states.living(self.folder / name) if item.pid == child.pid and item.address), None)
            if state is None and child.poll() is None:
                continue
            del self._starting[name]
            self._begun(name)
            if state is not None:
                self._warm[name] = state
                events.append(Event(name, "loaded"))
            else:
                del self._children[name]
                events.append(Event(name, "failed", f"exit code {child.returncode}: {self._last_line(name)}"))
        for name, state in list(self._warm.items()):
            if name in self._children:
                self._children[name].poll()
            if not states.alive(state):
                del self._warm[name]
                self._children.pop(name, None)
                events.append(Event(name, "lost", f"process {state.pid} is gone"))
        if self._ending:
            left = [item for item in self._ending if not item.gone(now)]
            for name in {item.name for item in self._ending} - {item.name for item in left}:
                self.pacer.release(_ending(name))
                events.append(Event(name, "unloaded"))
            self._ending = left
        return events

    def _last_line(self, name: str) -> str:
        lines = (self.folder / name / "serve.log").read_text(errors="replace").splitlines()
        return lines[-1][-300:] if lines else ""

    def address(self, name: str) -> str | None:
        """Where the process listens."""
        state = self._warm.get(name)
        return state.address if state is not None else None

    def close(self, unload: bool) -> None:
        """End the processes, or leave them to the next controller; a load in the background goes on at full speed."""
        self.pacer.close()
        if unload:
            for name in [*self._warm, *self._starting]:
                self._end(name, 0.0, True)
            for item in self._ending:
                if item.child is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        item.child.wait(30.0)


def own_program() -> list[str]:
    """The command line of this program, from a folder or from qwarm.pyz."""
    place = Path(__file__).parents[1]
    return [sys.executable, str(place)] if place.is_file() else [sys.executable, "-m", "fleet.main"]


def _ending(name: str) -> str:
    """The pacer's name for the end of a model's process, while the next one may begin."""
    return f"end of {name}"


def _end_left_over(file: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        pid, ticks = map(int, file.read_text().split())
        if states.start_ticks(pid) == ticks:
            _send(pid, signal.SIGKILL)
        file.unlink()


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
