"""What a search is held to."""

from __future__ import annotations

import dataclasses

from pipeline.search_records import SearchPoint


@dataclasses.dataclass(frozen=True)
class Budget:
    """`max_drift`: error power over the output's, the worst output's (0.01 is 20 dB). `max_slowdown`: latency over plain INT8's, on every target."""

    max_drift: float
    max_slowdown: float | None = None
    seconds: float = 300.0

    def met(self, point: SearchPoint) -> bool:
        return point.worst_drift <= self.max_drift

    def slow(self, point: SearchPoint) -> bool:
        return self.max_slowdown is not None and (point.latency_ratio or 1.0) > self.max_slowdown
