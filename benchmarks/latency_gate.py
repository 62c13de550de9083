"""The latency gate on simulated processes whose true ratio is known: 50 repeats at 0.8, 1 and 1.25 times the limit, extended as in `validate`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import folder_last  # noqa: F401
import numpy as np

from pipeline.records import Trial
from pipeline.verdicts import Verdict
from release.gates import latency_checks

LIMIT, REPEATS, SPREAD, TRIALS, MAX, REQUESTS = 1.5, 50, 0.12, 15, 45, 125
SIDE_CONFIDENCE = 0.999


def simulated(ratio: float, random: np.random.Generator) -> Trial:
    """A process whose first request takes about `ratio` times its steady requests; its control workload is as noisy, and steady."""
    quiet = lambda count: np.exp(0.02 * random.standard_normal(count))  # noqa: E731
    first = ratio * float(np.exp(SPREAD * random.standard_normal()))
    control = quiet(60)
    return Trial("warm", {}, (first, *quiet(REQUESTS).tolist()), tuple(control.tolist()), 0.0)


def gate() -> list[dict[str, float]]:
    """How `release/gates.py` decides on `first_request_over_p50`, extended by trials as `validate` does, where the true ratio is known."""
    limits: Any = SimpleNamespace(side_confidence=SIDE_CONFIDENCE, int8_speedup=1.0, first_request_over_p50=LIMIT, p99_over_p50=2.5)
    random, found = np.random.default_rng(0), []
    for true_ratio in (0.8, 1.0, 1.25):
        verdicts = []
        for _ in range(REPEATS):
            trials: tuple[Trial, ...] = ()
            verdict = Verdict.UNDECIDED
            while verdict is Verdict.UNDECIDED and len(trials) < MAX:
                trials += tuple(simulated(LIMIT * true_ratio, random) for _ in range(TRIALS))
                measured: Any = SimpleNamespace(coldstart=SimpleNamespace(trials=trials))
                verdict = next(check.verdict for check in latency_checks(measured, limits) if check.name == "first_request_over_p50")
            verdicts.append(verdict)
        shares = {name: verdicts.count(Verdict[name.upper()]) / len(verdicts) for name in ("pass", "fail", "undecided")}
        found.append({"true_ratio": true_ratio, **shares})
    return found
