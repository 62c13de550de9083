"""Pacing: between the requests of a warm-up wait until power and temperature are below their ceilings, so that a small device does not throttle.

Power is read from RAPL (the kernel's powercap, processor packages; else hwmon) and NVML (GPUs), summed; temperature is the highest of hwmon, the
thermal zones and NVML. The kernel lets only root read RAPL's counters on most machines.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SYS = Path("/sys/class")
WINDOW_SECONDS = 0.05
"""A counter's mean power is taken over at least this long, and so long is a pause."""
NVML_TEMPERATURE_GPU = 0


class Pace:
    """`wait` blocks while a ceiling is exceeded, `deadline` (of `time.monotonic`) at most; many threads may call it.

    `paced_seconds`: how long callers waited, together; None where a ceiling is set and nothing here tells what it limits.
    """

    def __init__(self, max_power_w: float | None = None, max_celsius: float | None = None) -> None:
        self._meters: list[tuple[Callable[[], float | None], float]] = []
        self._lock = threading.Lock()
        self._blind, self._waited = False, 0.0
        self._over, self._read = False, 0.0
        for ceiling, meter in ((max_power_w, PowerMeter().watts), (max_celsius, celsius)):
            if ceiling is not None:
                self._blind |= meter() is None
                self._meters.append((meter, ceiling))

    @property
    def paced_seconds(self) -> float | None:
        return None if self._blind else self._waited

    def wait(self, deadline: float) -> None:
        begun = time.monotonic()
        while self._exceeded() and time.monotonic() < deadline:
            time.sleep(WINDOW_SECONDS)
        if self._meters:
            with self._lock:
                self._waited += time.monotonic() - begun

    def _exceeded(self) -> bool:
        if not self._meters:
            return False
        with self._lock:
            if time.monotonic() - self._read >= WINDOW_SECONDS:
                self._over = any((value := meter()) is not None and value > ceiling for meter, ceiling in self._meters)
                self._read = time.monotonic()
            return self._over


class PowerMeter:
    """`watts` is the mean power since it was last called: the sum of processor packages and GPUs, None where nothing tells (or the first time)."""

    def __init__(self) -> None:
        self._before = self._energy()

    def watts(self) -> float | None:
        now, before = self._energy(), self._before
        if now is None:
            packages = _sum(SYS.glob("hwmon/hwmon*/power*_input"), 1e-6)
        elif before is None or now[0] == before[0]:
            packages = None
        else:
            self._before = now
            spent = sum((after - earlier) % span if span else after - earlier for (after, span), (earlier, _) in zip(now[1], before[1], strict=True))
            packages = spent * 1e-6 / (now[0] - before[0])
        gpus = sum(watts for watts, _ in gpu_readings())
        return packages if not gpus else gpus + (packages or 0.0)

    @staticmethod
    def _energy() -> tuple[float, list[tuple[int, int]]] | None:
        """Seconds, and of each package its counter and where that wraps (microjoules)."""
        zones = [zone for zone in sorted(SYS.glob("powercap/*-rapl:*")) if zone.name.count(":") == 1]
        counters = [(_number(zone / "energy_uj"), _number(zone / "max_energy_range_uj") or 0) for zone in zones]
        known = [(counter, span + 1 if span else 0) for counter, span in counters if counter is not None]
        return (time.monotonic(), known) if known and len(known) == len(zones) else None


def celsius() -> float | None:
    """The highest temperature that the kernel or NVML tells, None where none does."""
    files = [*SYS.glob("hwmon/hwmon*/temp*_input"), *SYS.glob("thermal/thermal_zone*/temp")]
    found = [value / 1000 for path in files if (value := _number(path)) is not None]
    return max([*found, *(temperature for _, temperature in gpu_readings())], default=None)


def gpu_readings() -> list[tuple[float, float]]:
    """Watts and degrees Celsius of each GPU by NVML; empty without its library. Run only on a stub of it so far."""
    nvml = _nvml()
    if nvml is None:
        return []
    count, found = ctypes.c_uint(), []
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    for index in range(count.value):
        device, milliwatts, degrees = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        if not nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) and not nvml.nvmlDeviceGetTemperature(
            device, NVML_TEMPERATURE_GPU, ctypes.byref(degrees)
        ):
            found.append((milliwatts.value / 1000, float(degrees.value)))
    return found


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if nvml.nvmlInit_v2() else nvml


def _sum(files: Iterable[Path], unit: float) -> float | None:
    found = [value * unit for path in files if (value := _number(path)) is not None]
    return sum(found) if found else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
