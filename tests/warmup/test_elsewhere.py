"""Whether the machine was busy with something else: real load, real /proc/stat, no claim about its exact amount."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from warmup.elsewhere import Elsewhere

SPIN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def test_own_work_is_not_counted_and_anothers_is():
    """Two spinning processes take time here, whatever else runs; a share cannot be less than what they were given."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        time.sleep(0.3)
        elsewhere = Elsewhere()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        busy = elsewhere.share()
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert 0.5 / (os.cpu_count() or 1) < busy <= 1.0


def test_arithmetic_of_the_share(tmp_path, monkeypatch):
    """100 ticks passed, 30 idle and 10 waiting, 20 of this process: 40 of 100 went elsewhere."""
    stat = tmp_path / "stat"
    monkeypatch.setattr("warmup.elsewhere.STAT", stat)
    monkeypatch.setattr("warmup.elsewhere.os.sysconf", lambda _: 100)
    monkeypatch.setattr("warmup.elsewhere.os.times", lambda: (1.0, 0.0, 0, 0, 0))
    stat.write_text("cpu  10 0 10 100 5 0 0 0 0 0\ncpu0 1 2 3\n")
    elsewhere = Elsewhere()
    monkeypatch.setattr("warmup.elsewhere.os.times", lambda: (1.1, 0.1, 0, 0, 0))
    stat.write_text("cpu  40 0 20 130 15 0 5 15 0 0\ncpu0 1 2 3\n")
    assert abs(elsewhere.share() - 0.4) < 1e-9
    stat.unlink()
    assert Elsewhere().share() == 0.0
