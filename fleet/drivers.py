"""What the controller needs of servers, and the driver that has none (shadow). `fleet.processes` and `fleet.triton` drive real ones.

A driver begins what it is asked at once and says later what came of it. Standard library only.
"""

from __future__ import annotations

import heapq
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, Protocol

from fleet.models import Action, Kind, ModelSpec


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

    def answering(self) -> AbstractContextManager[None]:
        """While a warm model answers a request: background loads may hold still."""
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
        elif action.kind is not Kind.HURRY:
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

    def answering(self) -> AbstractContextManager[None]:
        """Nothing holds still."""
        return nullcontext()

    def found(self) -> list[str]:
        """None."""
        return []

    def close(self, unload: bool) -> None:
        """Nothing is held."""
