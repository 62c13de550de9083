"""From ranges to the Q/DQ model that is written: fitted, and where that is not near enough to float, with layers that go back to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from calibration.exposing import Opener
from calibration.float_layers import NONE, modules_of
from calibration.search.candidates import adjacent, candidates, costs
from calibration.search.choices import Choices
from calibration.search.frontier import Budget, Found, Search, frontier
from calibration.search.journal import Journal
from calibration.search.measure import Measure
from calibration.search.methods import judged
from calibration.search.plot import drawn
from calibration.variants import Job, Progress, Rules, Variant, silent, variants
from calibration.winner import closest, finish, judge
from pipeline.caches import cache_folder
from pipeline.digests import sha256_bytes, sha256_code, sha256_file, sha256_json
from pipeline.records import QuantizedModel, Ranges
from pipeline.search_records import SearchResult
from pipeline.side_files import written_sha256

RECORD, PICTURE = "search.json", "search.svg"


@dataclasses.dataclass(frozen=True)
class Deployment:
    """`{target: its runtime with its deployed options}`, and the facts that a latency measured there is bound to."""

    openers: Mapping[str, Opener] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def quantize(
    rules: Rules,
    job: Job,
    by_method: Mapping[str, Ranges],
    folder: Path,
    budget: Budget | None,
    deployment: Deployment,
    *,
    float_layers: Mapping[str, str] = NONE,
    classes: bool = True,
    progress: Progress = silent,
) -> tuple[QuantizedModel, SearchResult]:
    """Write `folder`/model.onnx and quantized.json as a scheme's `quantize` does, with search.json and search.svg beside them.

    Of `by_method` the ranges are taken whose activations are nearest to float; `job.ranges` is not looked at. With a `budget` layers go back to
    float until the model is near enough, on the search rows and in every runtime of `deployment`. Layers in `float_layers` `{node: reason}` are
    in float from the start. What was measured is kept in the cache `search`, so that a killed search continues. Raises as the scheme's
    `quantize` does.
    """
    drifts = judged(rules, dataclasses.replace(job, ranges=next(iter(by_method.values()))), by_method, float_layers)
    method = min(by_method, key=lambda name: drifts.get(name, 0.0))
    job = dataclasses.replace(job, ranges=by_method[method])
    made = variants(rules, job, float_layers, progress)
    best = _best(job, made)
    measure = Measure(job, deployment.openers if budget else {}, made[best].model)
    if budget is None:
        found = Found((measure.point("", (), made[best].model),), 0, (), {}, "no max_drift was asked for", 0.0)
    else:
        journal = Journal(cache_folder("search") / f"{_key(job, made[best], deployment)}.json")
        choices = Choices(rules, job, made[best], float_layers, measure, budget, journal)
        source, layers = made[best].source, made[best].placement.quantized_nodes
        costed = costs(source, job.exported, layers)
        found = Search(layers, candidates(source, layers), costed, adjacent(source), choices, budget, progress).run()
        if chosen := found.points[found.chosen].float_layers:
            made = {best: choices.fit(frozenset(chosen), found.reasons)}
    result = SearchResult(
        scheme=rules.scheme,
        onnx_sha256=written_sha256(made[best].model, job.limit),
        search_rows=len(next(iter(job.rows.values()))),
        method=method,
        methods={name: -10 * math.log10(drift) if drift > 0 else None for name, drift in drifts.items()},
        max_drift=budget.max_drift if budget else None,
        max_slowdown=budget.max_slowdown if budget else None,
        sensitivities=found.sensitivities,
        points=found.points,
        frontier=frontier(found.points),
        chosen=found.chosen,
        met=budget.met(found.points[found.chosen]) if budget else None,
        stopped=found.stopped,
        seconds=found.seconds,
        modules=modules_of(made[best].source),
        unmeasured=measure.unmeasured,
    )
    also = {RECORD: result.to_text(), PICTURE: drawn(result)}
    return finish(rules, job, made, folder, classes=classes, also=also, progress=progress), result


def _best(job: Job, made: Mapping[str, Variant]) -> str:
    if len(made) == 1:
        return next(iter(made))
    return closest(judge(job, {name: variant.model for name, variant in made.items()}, classes=False))


def _key(job: Job, variant: Variant, deployment: Deployment) -> str:
    """What a measured drift or latency depends on."""
    rows = {name: sha256_bytes(array.tobytes()) for name, array in job.rows.items()}
    code = sha256_code(Path(__file__).parents[2], ("calibration",))
    bound_to = {"code": code, "judge": sha256_file(job.judge), "rows": rows, "targets": sorted(deployment.openers), "facts": dict(deployment.facts)}
    return sha256_json({"model": written_sha256(variant.model, job.limit), **bound_to})
