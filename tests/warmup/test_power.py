"""Power and temperature over a folder made like the kernel's /sys/class, and NVML over a stand-in for its library."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TrialError
from warmup import power
from warmup.power import Pace, PowerMeter, celsius
from warmup.runner import run_plan


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file below the made-up /sys/class. No GPU is there."""
    monkeypatch.setattr(power, "SYS", tmp_path)
    monkeypatch.setattr(power, "_nvml", lambda: None)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def at(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    clock = iter(seconds)
    monkeypatch.setattr(power.time, "monotonic", lambda: next(clock))


def test_rapl_counters_of_packages_become_watts(sysfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages; the zone inside the first is already counted in it. The second wraps at 1,000,000 microjoules."""
    for zone, energy in (("intel-rapl:0", 10_000_000), ("intel-rapl:0:0", 5), ("intel-rapl:1", 900_000)):
        sysfs(f"powercap/{zone}/energy_uj", f"{energy}\n")
        sysfs(f"powercap/{zone}/max_energy_range_uj", "999999\n" if zone == "intel-rapl:1" else "262143328850\n")
    at(monkeypatch, 100.0, 102.0)
    meter = PowerMeter()
    sysfs("powercap/intel-rapl:0/energy_uj", "40000000\n")
    sysfs("powercap/intel-rapl:1/energy_uj", "100000\n")
    assert meter.watts() == pytest.approx((30_000_000 + 200_000) * 1e-6 / 2.0)


def test_hwmon_stands_in_where_rapl_is_not_there_or_not_readable(sysfs: Any) -> None:
    assert PowerMeter().watts() is None
    sysfs("powercap/intel-rapl:0/name", "package-0\n")
    sysfs("hwmon/hwmon0/power1_input", "4500000\n")
    sysfs("hwmon/hwmon1/power1_input", "no number\n")
    assert PowerMeter().watts() == pytest.approx(4.5)


def test_the_highest_temperature_counts(sysfs: Any) -> None:
    assert celsius() is None
    sysfs("hwmon/hwmon0/temp1_input", "61500\n")
    sysfs("thermal/thermal_zone0/temp", "48000\n")
    assert celsius() == 61.5


class Nvml:
    """Stands in for NVIDIA's library with two GPUs, the second of which does not tell."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> int:
        milliwatts._obj.value = 70_500
        return 0 if device.value == 1 else 3

    def nvmlDeviceGetTemperature(self, _device: Any, _sensor: int, degrees: Any) -> int:
        degrees._obj.value = 83
        return 0


def test_gpus_are_added(sysfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "_nvml", Nvml)
    sysfs("hwmon/hwmon0/power1_input", "4500000\n")
    sysfs("hwmon/hwmon0/temp1_input", "61500\n")
    assert PowerMeter().watts() == pytest.approx(75.0)
    assert celsius() == 83.0


def test_a_pace_waits_until_it_is_below(sysfs: Any) -> None:
    sysfs("hwmon/hwmon0/power1_input", "1\n")
    readings = itertools.chain([9.0, 9.0, 4.0], itertools.repeat(4.0))
    pace = Pace(max_power_w=5.0)
    pace._meters = [(lambda: next(readings), 5.0)]
    pace.wait(time.monotonic() + 60)
    assert next(readings) == 4.0
    assert pace.paced_seconds is not None
    assert pace.paced_seconds >= power.WINDOW_SECONDS


def test_without_a_ceiling_nothing_is_read_and_without_a_sensor_it_is_told(sysfs: Any) -> None:
    assert sysfs
    free, blind = Pace(), Pace(max_power_w=5.0, max_celsius=80.0)
    for pace in (free, blind):
        pace.wait(0.0)
    assert free.paced_seconds == 0.0
    assert blind.paced_seconds is None


def test_a_plan_waits_for_its_ceiling_and_ends_at_its_deadline(sysfs: Any, warmable: Any) -> None:
    import engines

    sysfs("hwmon/hwmon0/temp1_input", "50000\n")
    with engines.open_engine(warmable.folder, concurrency=2) as session:
        assert run_plan(session, warmable.plan(max_celsius=60.0), warmable.rows).paced_seconds is not None
        sysfs("hwmon/hwmon0/temp1_input", "90000\n")
        with pytest.raises(TrialError, match="too long"):
            run_plan(session, warmable.plan(max_celsius=60.0, max_seconds=0.4), warmable.rows)
