"""One fresh process that meets each situation in turn. Run as `python -m warmup.visit`, prints one Visit as JSON.

The situations come round and round, each twice in a row. So a first request is held to later ones that come behind the same other request:
what changing between two sizes costs (measured: 1.1 to 1.6 times the median) is in both, and is no coldness. The requests whose p50 the very
first one is held to come last: a tenth of a second of one size costs the next one's first request 1.4 times its like, however often it ran before.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import engines
from engines.contract import Session
from engines.stored import read_engine
from pipeline.arrays import read_arrays
from pipeline.padding import fit, named_sizes
from pipeline.records import Situation, WarmupPlan
from pipeline.strict import Record
from pipeline.tensors import Batch
from warmup.child import answer, milliseconds
from warmup.plan import pad_to_plan
from warmup.runner import run_plan

ROUNDS, IN_A_ROW = 5, 2
SETTLING = 2
"""Rounds that do not count as steady."""
OPENING_SECONDS = 0.1
"""An opening goes on so long at least: a kernel may run a small network's threads on one processor for 30 ms, and its p50 is not steady before."""


@dataclasses.dataclass(frozen=True)
class Met(Record):
    """How one situation fared: `first_ms` of each caller; `times_ms` in order, each the median over the callers; `padded` are the sizes that ran."""

    situation: Situation
    padded: dict[str, int]
    first_ms: tuple[float, ...]
    times_ms: tuple[float, ...]

    @property
    def like_ms(self) -> float:
        """Steady time right behind another situation, which is how the first came."""
        return statistics.median(self.times_ms[SETTLING * IN_A_ROW :: IN_A_ROW])

    @property
    def steady_ms(self) -> float:
        """Steady time behind a request of the same situation."""
        return statistics.median(self.times_ms[SETTLING * IN_A_ROW + 1 :: IN_A_ROW])

    @property
    def ratio(self) -> float:
        """The first time over the steady time of the same place."""
        return self.times_ms[0] / self.like_ms

    def needed(self, factor: float) -> int:
        """How many requests came before the first that took at most `factor` times its steady time."""
        for place, taken in enumerate(self.times_ms):
            if taken <= factor * (self.steady_ms if place % IN_A_ROW else self.like_ms):
                return place
        return len(self.times_ms)


@dataclasses.dataclass(frozen=True)
class Visit(Record):
    """What one process met. `opening_ms`: each caller's very first request, and those of the same situation when all was met; `warm_seconds`: what
    the plan took."""

    SCHEMA: ClassVar[str] = "qwarm.visit/1"
    met: tuple[Met, ...]
    opening_ms: tuple[tuple[float, ...], ...]
    warm_seconds: float

    @property
    def first_ms(self) -> float:
        """The process's very first request; the median of all callers', where they were many."""
        return statistics.median(self.opening_ms[0])

    @property
    def p50_ms(self) -> float:
        """The median of the later half of `opening_ms`."""
        return statistics.median(statistics.median(taken) for taken in self.opening_ms[len(self.opening_ms) // 2 :])

    @property
    def first_over_p50(self) -> float:
        return self.first_ms / self.p50_ms


class Callers:
    """Threads that each ask once, at the same time. They stay: a caller's first request is a new thread's first, its later ones are not."""

    def __init__(self, count: int) -> None:
        self._go = [queue.SimpleQueue[tuple[Session, Batch] | None]() for _ in range(count)]
        self._done = queue.SimpleQueue[float | BaseException]()
        self._gate = threading.Barrier(count)
        self._threads = [threading.Thread(target=self._work, args=(go,), name="caller", daemon=True) for go in self._go]
        for thread in self._threads:
            thread.start()

    def _work(self, go: queue.SimpleQueue[tuple[Session, Batch] | None]) -> None:
        while (asked := go.get()) is not None:
            session, batch = asked
            self._gate.wait()
            try:
                self._done.put(milliseconds(session.run, batch))
            except BaseException as error:
                self._done.put(error)

    def ask(self, session: Session, batch: Batch) -> list[float]:
        """Milliseconds of each caller's request. Raises what the first of them raised."""
        for go in self._go:
            go.put((session, batch))
        answers = [self._done.get() for _ in self._go]
        for found in answers:
            if isinstance(found, BaseException):
                raise found
        return [float(found) for found in answers if not isinstance(found, BaseException)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for go in self._go:
            go.put(None)
        for thread in self._threads:
            thread.join()


def visit(session: Session, situations: Sequence[Situation], rows: Batch, *, plan: WarmupPlan | None, opening: int = 0, pad: bool = True) -> Visit:
    """Run the plan, ask the first situation once where there is an `opening`, then all situations in their order, round by round, then the first
    again until it was asked `opening` times or more."""
    specs = session.engine.inputs
    batches: list[Batch] = [fit(rows, specs, situation.sizes) for situation in situations]
    if plan is not None and pad:
        batches = [pad_to_plan(batch, specs, plan.ladder)[0] for batch in batches]
    firsts: list[tuple[float, ...]] = []
    times: list[list[float]] = [[] for _ in situations]
    most = max(situation.callers for situation in situations)
    with Callers(most) as many:  # before the plan: starting threads behind it would be in the first request

        def ask(place: int) -> tuple[float, ...]:
            alone = situations[place].callers == 1
            return (milliseconds(session.run, batches[place]),) if alone else tuple(many.ask(session, batches[place]))

        begun = time.monotonic()
        if plan is not None:
            run_plan(session, plan, rows)
        warmed = time.monotonic() - begun
        opened = [ask(0)] if opening else []
        for number in range(ROUNDS * IN_A_ROW * len(situations)):
            place = number // IN_A_ROW % len(situations)
            taken = ask(place)
            if len(firsts) == place:
                firsts.append(taken)
            times[place].append(statistics.median(taken))
        begun = time.monotonic()
        while len(opened) < opening or (opening and time.monotonic() - begun < OPENING_SECONDS):
            opened.append(ask(0))
    met = zip(situations, batches, firsts, times, strict=True)
    return Visit(tuple(Met(each, named_sizes(batch, specs), first, tuple(mine)) for each, batch, first, mine in met), tuple(opened), warmed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warmup.visit", description="Meet situations in one process; see coldstart.visit_command.")
    parser.add_argument("--engine", type=Path, required=True, help="engine folder")
    parser.add_argument("--rows", type=Path, required=True, help="warm-up rows (.npz)")
    parser.add_argument("--plan", type=Path, help="warm-up plan; without it the engine is cold")
    parser.add_argument("--situations", required=True, help="JSON: a list of {sizes, callers}")
    parser.add_argument("--opening", type=int, default=0, help="requests of the first situation: one before all, the others behind")
    parser.add_argument("--no-pad", action="store_true", help="give each request as it is: what a server does that does not pad")
    options = parser.parse_args(arguments)
    return answer(lambda: _run(options))


def _run(options: argparse.Namespace) -> Visit:
    engine = read_engine(options.engine)
    plan = WarmupPlan.load(options.plan) if options.plan else None
    situations = [Situation.from_json(each, "--situations") for each in json.loads(options.situations)]
    engines.backend(engine.target).preload(engine.target)
    rows = read_arrays(options.rows, what="Warm-up rows")
    slots = max(situation.callers for situation in situations) if plan is None else plan.concurrency
    with engines.open_engine(options.engine, concurrency=slots) as session:
        return visit(session, situations, rows, plan=plan, opening=options.opening, pad=not options.no_pad)


if __name__ == "__main__":
    raise SystemExit(main())
