"""Resident memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MB (10^6 bytes). Linux's VmHWM: `getrusage` would count the parent's before exec."""
    found = _status("VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 if found is None else found


def rss_mb() -> float | None:
    """Resident memory of this process now, in MB (10^6 bytes); None where /proc does not tell."""
    return _status("VmRSS:")


def _status(name: str) -> float | None:
    try:
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return None
