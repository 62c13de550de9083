"""How much of the processors' time went to other processes, or to the hypervisor, while this one measured."""

from __future__ import annotations

import os
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns `idle` and `iowait` of the line `cpu` (proc(5)); `guest` times are already counted in `user`."""
COLUMNS = 8


class Elsewhere:
    """`share()` is the part, 0 to 1, of all processors' time since construction that others were given, stolen time included.

    0.0 where there is no /proc/stat. Resolution is one clock tick (10 ms): meant for a trial of some hundred milliseconds or more.
    """

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float:
        all_ticks, busy_ticks, own_ticks = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return min(1.0, max(0.0, busy_ticks - own_ticks) / all_ticks) if all_ticks > 0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Ticks since boot: of all processors, busy, and of this process."""
        own = sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK")
        try:
            ticks = [float(value) for value in STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1 : 1 + COLUMNS]]
        except (OSError, ValueError):
            return 0.0, 0.0, own
        return sum(ticks), sum(ticks) - sum(ticks[column] for column in IDLE), own
