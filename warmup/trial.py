"""One measured process: open an engine, warm it or not, time its requests. Run as `python -m warmup.trial`, prints one Trial as JSON.

The first request is element 0 of `requests_ms`. The next `SIZING` requests size the control workload; from then on blocks of `BLOCK`
requests and `BLOCK` control calls alternate, so that both meet the same noise. The first `CHANGING` calls after each change of workload are not
timed: they pay for the other's cache lines (measured: the first 1.15 to 1.6 times the median, the second 1.1 to 1.24), which steady traffic does not.
"""

from __future__ import annotations

import time

FIRST_LINE_NS = time.monotonic_ns()

import argparse  # noqa: E402  (the interpreter's own start ends above)
import dataclasses  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

import engines  # noqa: E402
from engines.contract import Session  # noqa: E402
from engines.stored import read_engine  # noqa: E402
from pipeline.arrays import read_arrays  # noqa: E402
from pipeline.padding import fit  # noqa: E402
from pipeline.platforms import usable_cores  # noqa: E402
from pipeline.records import Engine, Trial, WarmupPlan  # noqa: E402
from pipeline.tensors import Batch  # noqa: E402
from warmup.child import answer, milliseconds  # noqa: E402
from warmup.control import Control  # noqa: E402
from warmup.elsewhere import Elsewhere  # noqa: E402
from warmup.memory import peak_rss_mb  # noqa: E402
from warmup.plan import batch_axis, pad_to_plan  # noqa: E402
from warmup.runner import run_plan  # noqa: E402

SIZING = 10
BLOCK = 10
CHANGING = 3


@dataclasses.dataclass
class Phases:
    """Milliseconds from `started_ns` (the parent's CLOCK_MONOTONIC just before it spawned this process) to each mark."""

    started_ns: int
    marks: dict[str, float] = dataclasses.field(default_factory=dict)

    def mark(self, name: str, at_ns: int | None = None) -> None:
        self.marks[name] = ((time.monotonic_ns() if at_ns is None else at_ns) - self.started_ns) / 1e6


def measure(
    open_session: Callable[[], Session],
    request: Batch,
    *,
    variant: str,
    requests: int,
    phases: Phases,
    warm: Callable[[Session], object] | None = None,
) -> Trial:
    """Open, warm, then time `requests` runs of `request` and about as many control calls. Marks load, warm and ready in `phases`.

    This must be the first thing the process does with the runtime. `warm` is run on the open session; None leaves it cold.
    """
    elsewhere = Elsewhere()
    with open_session() as session, Control(usable_cores()) as control:
        phases.mark("load")
        if warm is not None:
            warm(session)
        phases.mark("warm")
        phases.mark("ready")
        requests_ms = [milliseconds(session.run, request) for _ in range(min(requests, 1 + SIZING))]
        control.fit(min(requests_ms[len(requests_ms) // 2 :]))
        control_ms: list[float] = []
        while len(requests_ms) < requests:
            for _ in range(CHANGING):
                control.call()
            control_ms += [milliseconds(control.call) for _ in range(BLOCK)]
            for _ in range(CHANGING):
                session.run(request)
            requests_ms += [milliseconds(session.run, request) for _ in range(min(BLOCK, requests - len(requests_ms)))]
        return Trial(variant, phases.marks, tuple(requests_ms), tuple(control_ms), peak_rss_mb(), elsewhere.share())


def first_request(engine: Engine, rows: Batch) -> dict[str, np.ndarray]:
    """The first warm-up rows as the smallest batch, other named axes at their typical size. The session refuses rows of another model."""
    if set(rows) != {spec.name for spec in engine.inputs}:
        return dict(rows)
    axis = batch_axis(engine.inputs)
    return fit(rows, engine.inputs, {**{name: allowed.opt for name, allowed in engine.shapes.items()}, axis: engine.shapes[axis].min})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warmup.trial", description="Time one engine in this process; started by warmup.coldstart.")
    parser.add_argument("--engine", type=Path, required=True, help="engine folder")
    parser.add_argument("--rows", type=Path, required=True, help="warm-up rows (.npz); the first is the request")
    parser.add_argument("--plan", type=Path, help="warm-up plan; without it the engine stays cold")
    parser.add_argument("--concurrency", type=int, default=1, help="request slots without a plan; a plan brings its own")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--variant", required=True, help="name of this trial's kind in the report")
    parser.add_argument("--started", type=int, required=True, help="the parent's time.monotonic_ns() just before it started this process")
    options = parser.parse_args(arguments)
    phases = Phases(options.started)
    phases.mark("interpreter", FIRST_LINE_NS)
    return answer(lambda: _trial(options, phases))


def _trial(options: argparse.Namespace, phases: Phases) -> Trial:
    engine = read_engine(options.engine)
    plan = WarmupPlan.load(options.plan) if options.plan else None
    engines.backend(engine.target).preload(engine.target)
    phases.mark("imports")
    rows = read_arrays(options.rows, what="Warm-up rows")
    request: Batch = first_request(engine, rows)
    if plan is not None:
        request, _ = pad_to_plan(request, engine.inputs, plan.ladder)
    return measure(
        lambda: engines.open_engine(options.engine, concurrency=plan.concurrency if plan is not None else options.concurrency),
        request,
        variant=options.variant,
        requests=options.requests,
        phases=phases,
        warm=None if plan is None else lambda session: run_plan(session, plan, rows),
    )


if __name__ == "__main__":
    raise SystemExit(main())
