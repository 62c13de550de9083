"""`warm`: what this host gets from the plan, measured in fresh processes; warmth itself does not outlive a process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.host import fitting
from fleet.trial import COLD, WARM, trial_command
from fleet.verify import verify
from pipeline.errors import TrialError
from pipeline.records import Trial
from warmup import coldstart, latency


def measure_bundle(
    bundle: str | os.PathLike[str],
    *,
    target: str | None = None,
    key: str | os.PathLike[str] | None = None,
    allow_unsigned: bool = False,
    runs: int = 5,
    requests: int = 50,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """First request with and without the plan, in `runs` new processes each, taking turns; times in ms, each a median.

    `first_request_ms`: the first request after the plan. `cold_first_request_ms`: the first request of a process without it.
    `steady_p50_ms`: p50 of a warm process's later requests. `ready_ms`: process start to warm, verification included.
    Where a process of a target fails the next of the bundle that fits is measured, unless one was asked for; `fell_back` says why.
    Raises what `fleet.open` raises, and TrialError when a process of the last target fails.
    """
    verified = verify(bundle, key, allow_unsigned=allow_unsigned)
    candidates, fell_back = fitting(verified.manifest, target), {}
    for released in candidates:
        try:
            trials = _trials(Path(bundle).absolute(), released.target, None if key is None else Path(key).absolute(), runs, requests, log)
            break
        except TrialError as error:
            if released is candidates[-1]:
                raise
            log(f"{released.target} cannot be measured, the next target of the bundle is: {error}")
            fell_back[released.target] = str(error)
    warm = [trial for trial in trials if trial.variant == WARM]
    cold = [trial for trial in trials if trial.variant == COLD]
    first, steady = (statistics.median(values) for values in ([trial.requests_ms[0] for trial in warm], [latency.p50(t.requests_ms) for t in warm]))
    return {
        "name": verified.manifest.name,
        "version": verified.manifest.version,
        "manifest_sha256": verified.digest,
        "target": released.target,
        "fell_back": fell_back,
        "runs": runs,
        "requests": requests,
        "first_request_ms": round(first, 4),
        "cold_first_request_ms": round(statistics.median(trial.requests_ms[0] for trial in cold), 4),
        "steady_p50_ms": round(steady, 4),
        "ready_ms": round(statistics.median(trial.phases_ms["ready"] for trial in warm), 2),
        "peak_rss_mb": round(statistics.median(trial.peak_rss_mb for trial in warm), 1),
        "trials": [trial.to_json() for trial in trials],
    }


def _trials(bundle: Path, target: str, key: Path | None, runs: int, requests: int, log: Callable[[str], None]) -> tuple[Trial, ...]:
    commands = {variant: trial_command(bundle, variant, target=target, key=key, requests=requests) for variant in (WARM, COLD)}
    return coldstart.measure(commands, runs, lambda done, total, note: log(f"{done} of {total} fresh processes ({note})"))
