"""One fresh process that looks for cold requests behind a plan. Run as `python -m warmup.unseen`, prints one Probe as JSON.

After the plan it answers requests of sizes that the plan never ran, each padded as a host pads it, and then requests of several callers at
once; each first time is set against the steady time of what it should be like.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

import engines
from engines.contract import Session
from engines.stored import read_engine
from pipeline.arrays import read_arrays
from pipeline.padding import fit, named_sizes
from pipeline.records import AxisRange, Engine, WarmupPlan
from pipeline.strict import Record
from pipeline.tensors import Batch
from warmup.child import answer, milliseconds
from warmup.plan import axis_rungs, pad_to_plan
from warmup.runner import run_plan

STEADY = 20
"""Requests whose median is a size's steady time."""


@dataclasses.dataclass(frozen=True)
class Unseen(Record):
    """The first request of a size that the plan never ran, and the steady time of the rung (`padded`) that it was run at."""

    sizes: dict[str, int]
    padded: dict[str, int]
    first_ms: float
    steady_ms: float


@dataclasses.dataclass(frozen=True)
class Probe(Record):
    """What one process saw. `together_ms`: the first request of each of some callers that start at once; `together_steady_ms`: their later median."""

    SCHEMA: ClassVar[str] = "qwarm.probe/1"
    unseen: tuple[Unseen, ...]
    together_ms: tuple[float, ...]
    together_steady_ms: float | None


def draw(shapes: Mapping[str, AxisRange], ladder: Mapping[str, Sequence[int]], count: int, seed: int) -> list[dict[str, int]]:
    """Up to `count` different sizes `{axis: n}` inside the declared ranges that the plan did not run, drawn uniformly; empty where it ran all."""
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


def probe(session: Session, plan: WarmupPlan, rows: Batch, *, draws: int, callers: int, seed: int, pad: bool = True) -> Probe:
    """Ask the warm `session`. Every unseen size comes first, once: a second request of it would be no first. `pad`: as `fleet.open` does."""
    specs, ladder = session.engine.inputs, axis_rungs(plan)
    met = []
    for sizes in draw(session.engine.shapes, ladder, draws, seed):
        request = fit(rows, specs, sizes)
        given, _ = pad_to_plan(request, specs, ladder) if pad else (request, sizes)
        first = milliseconds(session.run, given)
        met.append((sizes, given, first))
    unseen = tuple(Unseen(sizes, named_sizes(given, specs), first, _steady(session, given)) for sizes, given, first in met)
    smallest = fit(rows, specs, {axis: ladder[axis][0] for axis in ladder})
    firsts, steady = _together(session, smallest, callers) if callers > 1 else ((), None)
    return Probe(unseen, tuple(firsts), steady)


def _steady(session: Session, batch: Batch) -> float:
    return statistics.median(milliseconds(session.run, batch) for _ in range(STEADY))


def _together(session: Session, batch: Batch, callers: int) -> tuple[list[float], float]:
    """Milliseconds of each caller's first request, and the median of all its later ones."""
    gate = threading.Barrier(callers)
    times: list[list[float]] = [[] for _ in range(callers)]

    def call(index: int) -> None:
        gate.wait()
        times[index] = [milliseconds(session.run, batch) for _ in range(1 + STEADY)]

    threads = [threading.Thread(target=call, args=(index,)) for index in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [mine[0] for mine in times], statistics.median(value for mine in times for value in mine[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warmup.unseen", description="Look for cold requests behind a plan; started by warmup.misses.")
    parser.add_argument("--engine", type=Path, required=True, help="engine folder")
    parser.add_argument("--rows", type=Path, required=True, help="warm-up rows (.npz)")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--draws", type=int, required=True, help="unseen sizes to try")
    parser.add_argument("--callers", type=int, default=1, help="callers that start at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-pad", action="store_true", help="give each request as it is: what a server does that does not pad")
    options = parser.parse_args(arguments)
    return answer(lambda: _run(options))


def _run(options: argparse.Namespace) -> Probe:
    engine: Engine = read_engine(options.engine)
    plan = WarmupPlan.load(options.plan)
    os.environ.update(plan.environment)
    engines.backend(engine.target).preload(engine.target)
    rows = read_arrays(options.rows, what="Warm-up rows")
    with engines.open_engine(options.engine, concurrency=plan.concurrency) as session:
        run_plan(session, plan, rows)
        return probe(session, plan, rows, draws=options.draws, callers=options.callers, seed=options.seed, pad=not options.no_pad)


if __name__ == "__main__":
    raise SystemExit(main())
