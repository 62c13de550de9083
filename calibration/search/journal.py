"""What a search has measured, on disk after each step: a killed search continues, and never measures the same twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

from pipeline.errors import RecordError
from pipeline.search_records import SearchJournal, SearchPoint


class Journal:
    """`drift` and `point` give what is known of a choice of layers, or measure and keep it. A torn or foreign file counts as none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.seconds, self.drifts, self.points = 0.0, dict[str, float](), dict[str, SearchPoint]()
        if path is not None:
            with contextlib.suppress(RecordError):
                kept = SearchJournal.load(path)
                self.seconds, self.drifts, self.points = kept.seconds, dict(kept.drifts), dict(kept.points)

    def drift(self, kind: str, layers: Collection[str], measure: Callable[[], float]) -> float:
        key = _key(kind, *sorted(layers))
        if key not in self.drifts:
            self.drifts[key] = measure()
        return self.drifts[key]

    def knows(self, kind: str, layers: Collection[str]) -> bool:
        """Whether `drift` would measure nothing."""
        return _key(kind, *sorted(layers)) in self.drifts

    def point(self, layers: Collection[str], measure: Callable[[], SearchPoint]) -> SearchPoint:
        key = _key(*sorted(layers))
        if key not in self.points:
            self.points[key] = measure()
        return self.points[key]

    def has(self, layers: Collection[str]) -> bool:
        """Whether `point` would measure nothing."""
        return _key(*sorted(layers)) in self.points

    def save(self, seconds: float) -> None:
        """Write all of it, with the time that was spent so far."""
        self.seconds = seconds
        if self.path is not None:
            SearchJournal(seconds, self.drifts, self.points).save(self.path)


def _key(*parts: str) -> str:
    return "\n".join(parts)
