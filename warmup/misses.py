"""The miss detector: does any request meet a cold engine behind a plan? Sizes that the plan never ran, and callers that come together."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.strict import Record
from pipeline.verdicts import Interval, Verdict, judge
from warmup.coldstart import Progress, child_environment, fresh
from warmup.latency import estimate
from warmup.unseen import Probe

UNSEEN, TOGETHER = "unseen sizes", "callers together"
FACTOR = 1.3
"""A first request may take this many times the steady time of what it should be like."""
SIDE_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Misses(Record):
    """How first requests of one kind fare: `ratio` is the median over processes, of a process's first time over its steady time.

    `verdict`: FAIL when they are slower than `limit` for certain, PASS when they are not, UNDECIDED between, NOT_MEASURED where the plan has run
    every size there is (`why`). `worst_sizes` are those of the slowest request.
    """

    SCHEMA: ClassVar[str] = "qwarm.misses/1"
    kind: str
    processes: int
    requests: int
    ratio: float | None
    interval: Interval | None
    limit: float
    verdict: Verdict
    worst_sizes: dict[str, int]
    why: str


def probe_command(folder: Path, *, rows: Path, plan: Path, draws: int, callers: int, pad: bool = True) -> list[str]:
    """Command line of one `warmup.unseen`; the seed is appended for each process."""
    command = [sys.executable, "-P", "-m", "warmup.unseen", "--engine", str(folder), "--rows", str(rows), "--plan", str(plan)]
    return [*command, "--draws", str(draws), "--callers", str(callers), *([] if pad else ["--no-pad"])]


def look(command: Sequence[str], processes: int, progress: Progress | None = None) -> tuple[Probe, ...]:
    """Run `processes` new processes one after the other, each with another seed. Raises TrialError when one fails."""
    environment, seen = child_environment(), []
    for seed in range(processes):
        seen.append(fresh("unseen sizes", [*command, "--seed", str(seed)], Probe, environment))
        if progress is not None:
            progress(seed + 1, processes, "unseen sizes")
    return tuple(seen)


def misses(probes: Sequence[Probe], *, factor: float = FACTOR, side_confidence: float = SIDE_CONFIDENCE) -> tuple[Misses, ...]:
    """Judge what the processes saw: of each process its slowest request of an unseen size, and the median of the callers' first requests."""
    sized = [sorted(((one.first_ms / one.steady_ms, one.sizes) for one in probe.unseen), key=lambda one: one[0]) for probe in probes]
    steady = [(probe.together_ms, probe.together_steady_ms) for probe in probes if probe.together_steady_ms]
    together = [sorted(value / median for value in values) for values, median in steady]
    return (
        _judged(
            UNSEEN, [mine[-1][0] for mine in sized if mine], sum(map(len, sized)), factor, side_confidence, "the plan runs every size there is",
            max((mine[-1] for mine in sized if mine), key=lambda one: one[0], default=(0.0, {}))[1],
        ),
        _judged(
            TOGETHER, [mine[len(mine) // 2] for mine in together], sum(map(len, together)), factor, side_confidence, "one caller was asked for", {}
        ),
    )  # fmt: skip


def _judged(kind: str, ratios: Sequence[float], requests: int, factor: float, side_confidence: float, nothing: str, worst: dict[str, int]) -> Misses:
    found = estimate(ratios, side_confidence)
    if found is None:
        return Misses(kind, 0, 0, None, None, factor, Verdict.NOT_MEASURED, {}, nothing)
    verdict = Verdict.UNDECIDED if found.interval is None else judge(found.interval, factor)
    why = "" if verdict is not Verdict.UNDECIDED else "more processes would tell"
    return Misses(kind, len(ratios), requests, found.figure, found.interval, factor, verdict, worst, why)
