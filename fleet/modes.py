"""How the controller decides at the moment, and why: every change is logged with its reason, counted, and kept for status."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

KEPT = 50


class Mode(enum.Enum):
    """NORMAL and CONSERVATIVE are the whole controller's; FULL_LOAD and LAST_GOOD are lanes of single models."""

    NORMAL = "normal"
    CONSERVATIVE = "conservative"
    FULL_LOAD = "full load"
    LAST_GOOD = "last good release"


class Modes:
    """The mode, the lanes, and the last changes."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.mode, self.log = Mode.NORMAL, log
        self.lanes: dict[str, Mode] = {}
        self.counts: Counter[Mode] = Counter()
        self.changes: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def note(self, mode: Mode, model: str, now: float, reason: str) -> None:
        """A change of the whole (`model` is empty) or of a model's lane."""
        self.counts[mode] += 1
        self.changes.append({"at": now, "mode": mode.name, "model": model, "reason": reason})
        self.log("mode", mode=mode.name, model=model, reason=reason)

    def set(self, mode: Mode, now: float, reason: str) -> bool:
        """Change the whole; returns whether it was another."""
        if mode is self.mode:
            return False
        self.mode = mode
        self.note(mode, "", now, reason)
        return True

    def enter(self, lane: Mode, model: str, now: float, reason: str) -> None:
        """A model gets a lane of its own."""
        if self.lanes.get(model) is not lane:
            self.lanes[model] = lane
            self.note(lane, model, now, reason)

    def leave(self, lane: Mode, model: str) -> None:
        """Back to the whole's mode."""
        if self.lanes.get(model) is lane:
            del self.lanes[model]
