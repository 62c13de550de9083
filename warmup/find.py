"""Find the shortest warm-up: the fewest iterations after which the first request is as fast as the steady ones."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.records import WarmupPlan
from warmup.coldstart import Progress, engine_command, measure
from warmup.latency import first_over_p50, per_process, variant

ITERATIONS = (1, 2, 3, 5, 10, 20)
FACTOR = 1.15
PROCESSES = 5
REQUESTS = 60


def find_iterations(
    folder: Path,
    rows_file: Path,
    make_plan: Callable[..., WarmupPlan],
    *,
    candidates: Sequence[int] = ITERATIONS,
    factor: float = FACTOR,
    processes: int = PROCESSES,
    progress: Progress | None = None,
) -> tuple[int, str]:
    """The shortest warm-up that is good enough, and one rung of `candidates` more as a margin, with a sentence that says how it was found.

    Good enough: in the median of `processes` fresh processes the first request takes at most `factor` times that process's steady p50.
    All candidates are measured interleaved, so that noise meets them alike. When none is good enough the largest is taken.
    `make_plan(iterations=, found_by=)` makes a plan for the engine in `folder` and the rows of `rows_file`. Raises TrialError when a
    process fails, for one because the plan outlasts its deadline.
    """
    ordered = sorted(set(candidates))
    with tempfile.TemporaryDirectory() as scratch:
        commands = {}
        for iterations in ordered:
            plan_file = Path(scratch) / f"plan-{iterations}.json"
            make_plan(iterations=iterations, found_by="a candidate").save(plan_file)
            commands[str(iterations)] = engine_command(folder, str(iterations), rows=rows_file, plan=plan_file, requests=REQUESTS)
        trials = measure(commands, processes, progress)
    ratios = {iterations: statistics.median(per_process(variant(trials, str(iterations)), first_over_p50)) for iterations in ordered}
    seen = ", ".join(f"{iterations}: {ratio:.2f}" for iterations, ratio in ratios.items())
    wanted = f"first request over p50 at most {factor} in the median of {processes} processes"
    good = next((index for index, iterations in enumerate(ordered) if ratios[iterations] <= factor), None)
    if good is None:
        return ordered[-1], f"search: none has its {wanted}, so the largest ({seen})"
    return ordered[min(good + 1, len(ordered) - 1)], f"search: {wanted} from {ordered[good]} iterations on, and one step of margin ({seen})"
