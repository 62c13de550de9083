"""Plans, and what fresh processes measured."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class Situation(Record):
    """A request that may come: `callers` at once, each with named axes of these `sizes`."""

    sizes: dict[str, int]
    callers: int


@dataclasses.dataclass(frozen=True)
class WarmupStep(Record):
    """Run rows `rows` (indices into the warm-up arrays) at `sizes` in each of `threads` threads, `iterations` times."""

    sizes: dict[str, int]
    rows: tuple[int, ...]
    threads: int
    iterations: int


@dataclasses.dataclass(frozen=True)
class StepGain(Record):
    """What a step of a plan buys: where `step` is left out, the first request of the situation `slowed` takes `without_ms` instead of `with_ms`.

    It is the situation that loses most. Medians over fresh processes. `seconds`: what the step takes. Of a step in rounds that all sizes take in
    turn: where all rounds are left out, what its own size loses.
    """

    step: Situation
    iterations: int
    slowed: Situation
    with_ms: float
    without_ms: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class WarmupPlan(Record):
    """What makes an engine hot: ordered steps and their limits. Bound to the engine and the rows.

    `ladder`: by named axis, the sizes that requests are padded to. All combinations of them are hot behind the plan, though not each needs a step.
    `concurrency`: callers at once for whom this holds. A step at which the runtime fails is tried `retries` times more; `max_rss_mb`: resident
    memory (10^6 bytes) that the process may reach; above `max_power_w` or `max_celsius` it waits between requests (warmup/power.py).
    """

    SCHEMA: ClassVar[str] = "qwarm.plan/2"
    target: str
    engine_sha256: str
    rows_sha256: str
    preprocess_sha256: str
    steps: tuple[WarmupStep, ...]
    ladder: dict[str, tuple[int, ...]]
    concurrency: int
    max_seconds: float
    found_by: str
    retries: int = 1
    max_rss_mb: float | None = None
    max_power_w: float | None = None
    max_celsius: float | None = None
    gains: tuple[StepGain, ...] = ()


@dataclasses.dataclass(frozen=True)
class WarmupResult(Record):
    """How long each step of a plan took in this process, in order, and the whole; `retried` says which step failed first, and how.

    `paced_seconds`: how long threads waited for power and temperature to come down; None where nothing here tells them.
    """

    seconds_by_step: tuple[float, ...]
    total_seconds: float
    retried: tuple[str, ...] = ()
    paced_seconds: float | None = 0.0


@dataclasses.dataclass(frozen=True)
class CurvePoint(Record):
    """At `at_ms` after a process was started: its resident memory (10^6 bytes), and the processor time it had taken."""

    at_ms: float
    rss_mb: float
    cpu_ms: float


@dataclasses.dataclass(frozen=True)
class Trial(Record):
    """One fresh process. `requests_ms` are its requests in order, the first included; `control_ms` the control workload's.

    `phases_ms` are cumulative from process start: interpreter, imports, load, warm, ready.
    """

    variant: str
    phases_ms: dict[str, float]
    requests_ms: tuple[float, ...]
    control_ms: tuple[float, ...]
    peak_rss_mb: float
    busy_elsewhere: float = 0.0
    """Part of all processors' time that went to other processes while this one measured, 0 to 1."""
    curve: tuple[CurvePoint, ...] = ()
    """Read beside it where `warmup.coldstart.measure` was asked to."""


@dataclasses.dataclass(frozen=True)
class ColdStartReport(Record):
    """Interleaved trials of the variants `cold` (no plan), `warm` (plan) and `float` (FP32 with the plan); `gains` are the plan's."""

    SCHEMA: ClassVar[str] = "qwarm.coldstart/2"
    target: str
    machine_id: str
    plan_sha256: str
    measured_at: str
    trials: tuple[Trial, ...]
    gains: tuple[StepGain, ...] = ()
