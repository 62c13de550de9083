"""The miss detector: does any request meet a cold engine behind a plan? Sizes that the plan never ran, and callers that come together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.records import AxisRange, Situation, WarmupPlan
from pipeline.strict import Record
from pipeline.verdicts import Interval, Verdict, judge
from warmup.coldstart import Progress, child_environment, fresh, visit_command
from warmup.latency import estimate
from warmup.visit import Met, Visit

UNSEEN, TOGETHER = "unseen sizes", "callers together"
FACTOR = 1.3
"""A first request may take this many times the steady time of what it should be like."""
SIDE_CONFIDENCE = 0.95
OPENING = 61


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


def draw(shapes: Mapping[str, AxisRange], ladder: Mapping[str, Sequence[int]], count: int, seed: int) -> list[dict[str, int]]:
    """Up to `count` different sizes `{axis: n}` inside the declared ranges and off the ladder, drawn uniformly; empty where it has all."""
    random = np.random.default_rng(seed)
    axes = sorted(shapes)
    drawn: dict[tuple[int, ...], dict[str, int]] = {}
    for _ in range(64 * count):
        sizes = {axis: int(random.integers(shapes[axis].min, shapes[axis].max + 1)) for axis in axes}
        if any(size not in ladder.get(axis, ()) for axis, size in sizes.items()):
            drawn.setdefault(tuple(sizes.values()), sizes)
        if len(drawn) == count:
            break
    return list(drawn.values())


def look(
    folder: Path, plan: Path, rows: Path, *, shapes: Mapping[str, AxisRange], draws: int, processes: int, pad: bool = True,
    progress: Progress | None = None,
) -> tuple[Visit, ...]:  # fmt: skip
    """Run `processes` new processes one after the other, each with other unseen sizes. Raises TrialError when one fails.

    As many callers as the plan serves come first and together, each with the smallest request; then a lone one with unseen sizes.
    """
    environment, seen = child_environment(), []
    wanted = WarmupPlan.load(plan)
    callers = [Situation({axis: sizes[0] for axis, sizes in wanted.ladder.items()}, wanted.concurrency)] if wanted.concurrency > 1 else []
    for seed in range(processes):
        situations = [*callers, *(Situation(sizes, 1) for sizes in draw(shapes, wanted.ladder, draws, seed))]
        if situations:
            command = visit_command(folder, rows=rows, situations=situations, plan=plan, opening=OPENING if callers else 0, pad=pad)
            seen.append(fresh("unseen sizes", command, Visit, environment))
        if progress is not None:
            progress(seed + 1, processes, "unseen sizes")
    return tuple(seen)


def misses(visits: Sequence[Visit], *, factor: float = FACTOR, side_confidence: float = SIDE_CONFIDENCE) -> tuple[Misses, ...]:
    """Judge what the processes saw: of each process its slowest request of an unseen size, and the median of the callers' first requests."""
    unseen = [max(alone, key=_ratio) for visit in visits if (alone := [met for met in visit.met if met.situation.callers == 1])]
    together = [visit for visit in visits if visit.opening_ms]
    asked = sum(met.situation.callers == 1 for visit in visits for met in visit.met)
    worst = max(unseen, key=_ratio).situation.sizes if unseen else {}
    return (
        _judged(UNSEEN, [met.ratio for met in unseen], asked, factor, side_confidence, "the plan's ladder has every size there is", worst),
        _judged(
            TOGETHER, [visit.first_over_p50 for visit in together], sum(len(visit.opening_ms[0]) for visit in together), factor, side_confidence,
            "the plan serves one caller", {},
        ),
    )  # fmt: skip


def _ratio(met: Met) -> float:
    return met.ratio


def _judged(kind: str, ratios: Sequence[float], requests: int, factor: float, side_confidence: float, nothing: str, worst: dict[str, int]) -> Misses:
    found = estimate(ratios, side_confidence)
    if found is None:
        return Misses(kind, 0, 0, None, None, factor, Verdict.NOT_MEASURED, {}, nothing)
    verdict = Verdict.UNDECIDED if found.interval is None else judge(found.interval, factor)
    why = "" if verdict is not Verdict.UNDECIDED else "more processes would tell"
    return Misses(kind, len(ratios), requests, found.figure, found.interval, factor, verdict, worst, why)
