"""Find the shortest warm-up: the fewest iterations after which the first request is as fast as the steady ones."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.records import WarmupPlan
from warmup.coldstart import Progress, engine_command, measure
from warmup.latency import first_over_p50

ITERATIONS = (1, 2, 3, 5, 10, 20)
FACTOR = 1.15
PROCESSES = 5
REQUESTS = 60


def find_iterations(
    folder: Path, rows_file: Path, make_plan: Callable[..., WarmupPlan], *,
    candidates: Sequence[int] = ITERATIONS, factor: float = FACTOR, processes: int = PROCESSES, progress: Progress | None = None,
) -> tuple[int, str]:  # fmt: skip
    """The smallest of `candidates` with which, in the median of `processes` fresh processes, the first request takes at most `factor`
    times that process's steady p50; else the largest. Returns it with a sentence that says how it was found.

    `make_plan(iterations=, found_by=)` makes a plan for the engine in `folder` and the rows of `rows_file`.
    Raises TrialError when a process fails, for one because the plan outlasts `max_seconds`.
    """
    seen = []
    ordered = sorted(set(candidates))
    with tempfile.TemporaryDirectory() as scratch:
        for index, iterations in enumerate(ordered):
            plan_file = Path(scratch) / f"plan-{iterations}.json"
            make_plan(iterations=iterations, found_by="a candidate").save(plan_file)
            command = engine_command(folder, "warm", rows=rows_file, plan=plan_file, requests=REQUESTS)

            def report(done: int, total: int, _: str, index: int = index, iterations: int = iterations) -> None:
                if progress is not None:
                    progress(index * total + done, len(ordered) * total, f"{iterations} iterations")

            ratio = statistics.median(first_over_p50(trial.requests_ms) for trial in measure({"warm": command}, processes, report))
            seen.append(f"{iterations}: {ratio:.2f}")
            if ratio <= factor:
                return iterations, f"search: first request over p50 at most {factor} in the median of {processes} processes ({', '.join(seen)})"
    return ordered[-1], f"search: none within {factor} in the median of {processes} processes, so the largest ({', '.join(seen)})"
