"""The runtime's own profiler, in a real process and on made-up times; memory and processor time beside one; a cold page cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TrialError
from warmup import coldstart
from warmup.attribution import LayerExcess, attribute, excess
from warmup.coldstart import drop_pages, engine_command, measure
from warmup.curves import Curve


def test_layers_that_lose_most_come_first() -> None:
    times = [{"conv": 30.0, "pool": 1.0, "once": 2.0}, *[{"conv": 1.0, "pool": 1.5}] * 20]
    found = excess(times)
    assert found.layers == (LayerExcess("conv", 30.0, 1.0), LayerExcess("once", 2.0, 0.0), LayerExcess("pool", 1.0, 1.5))
    assert found.all_layers == LayerExcess("all layers", 33.0, 2.5)


def test_a_real_engine_tells_its_layers(warmable: Any) -> None:
    found = attribute(warmable.folder, warmable.rows_file, processes=1)
    assert any("onv" in layer.layer for layer in found.layers)
    assert found.all_layers.first_ms > 0
    assert found.all_layers.steady_ms > 0


def test_a_target_without_a_profiler_is_told(warmable: Any, tmp_path: Path) -> None:
    text = (warmable.folder / "engine.json").read_text().replace('"openvino-cpu"', '"tensorrt-rtx"')
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(TrialError, match="No profiler"):
        attribute(tmp_path, warmable.rows_file, processes=1)


def test_a_curve_follows_the_memory_and_the_work_of_a_process() -> None:
    code = "import sys, time; held = bytearray(60_000_000); end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    curve = Curve(child.pid, time.monotonic_ns())
    while not (points := list(curve._points)) or points[-1].cpu_ms < 200:
        time.sleep(0.01)
    child.communicate()
    points = list(curve.close())
    assert max(point.rss_mb for point in points) > 60
    assert [point.at_ms for point in points] == sorted(point.at_ms for point in points)
    assert Curve(child.pid, time.monotonic_ns()).close() == ()


def test_trials_have_curves_where_asked_for_and_start_without_cached_pages(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr(coldstart, "drop_pages", dropped.append)
    files = [warmable.folder / "model.blob"]
    command = {"cold": engine_command(warmable.folder, "cold", rows=warmable.rows_file, requests=5)}
    (watched,) = measure(command, 1, curves=True, cold_files=files)
    assert watched.curve[-1].rss_mb > 20
    assert dropped == [files]
    assert measure(command, 1)[0].curve == ()


def test_dropping_pages_leaves_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(100_000))
    before = path.read_bytes()
    drop_pages([path])
    assert path.read_bytes() == before
