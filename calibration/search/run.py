"""From ranges to the Q/DQ model that is written: fitted, and where that is not near enough to float, with layers that go back to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.exposing import Opener
from calibration.float_layers import NONE, activations_only, modules_of
from calibration.search.candidates import adjacent, candidates, costs
from calibration.search.frontier import Budget, Found, Search, frontier
from calibration.search.journal import Journal
from calibration.search.measure import Measure
from calibration.search.methods import judged
from calibration.search.plot import drawn
from calibration.variants import Job, Progress, Rules, Variant, fitted, nearest, silent, variants
from calibration.winner import closest, finish, judge, serialized
from pipeline.caches import cache_folder
from pipeline.digests import sha256_bytes, sha256_json
from pipeline.records import QuantizedModel, Ranges
from pipeline.search_records import SearchPoint, SearchResult

if TYPE_CHECKING:
    import onnx

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
    with Measure(job, deployment.openers if budget else {}, made[best].model) as measure:
        if budget is None:
            found = Found((measure.point("", (), made[best].model),), 0, (), {}, "no max_drift was asked for", 0.0)
        else:
            choices = Choices(rules, job, made[best], float_layers, measure, budget, progress)
            found = choices.search(Journal(cache_folder("search") / f"{_key(job, made[best], deployment)}.json"))
            if layers := found.points[found.chosen].float_layers:
                made = {best: choices.fit(layers, found.reasons)}
    digests = {name: sha256_bytes(serialized(variant.model)) for name, variant in made.items()}
    result = SearchResult(
        scheme=rules.scheme,
        onnx_sha256=digests[best],
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
    return closest(judge(job, {name: serialized(variant.model) for name, variant in made.items()}, classes=False))


def _key(job: Job, variant: Variant, deployment: Deployment) -> str:
    """What a measured drift or latency depends on."""
    rows = {name: sha256_bytes(array.tobytes()) for name, array in job.rows.items()}
    bound_to = {"rows": rows, "targets": sorted(deployment.openers), "facts": dict(deployment.facts)}
    return sha256_json({"model": sha256_bytes(serialized(variant.model)), **bound_to})


class Choices:
    """What a search asks about layers in float, answered for one variant of a model.

    `point` fits weights anew, unless the choice is too slow anyway. `screen` predicts that, where weights are fitted, by the lower of two: the
    drift with the weights as they are, made for errors that are gone (on EfficientNet-Lite0 up to a decibel too much, for first layers), and that of
    rounded activations alone plus what weights add to it in plain INT8 (within 0.3 dB there, but blind to what one layer's weights cost).
    """

    def __init__(
        self, rules: Rules, job: Job, variant: Variant, float_layers: Mapping[str, str], measure: Measure, budget: Budget, progress: Progress
    ) -> None:
        self._rules, self._job, self._variant, self._named = rules, job, variant, float_layers
        self._measure, self._budget, self._progress = measure, budget, progress
        self._layers = variant.placement.quantized_nodes
        self._fits: dict[tuple[str, ...], Variant] = {}
        self._weights: float | None = None

    def search(self, journal: Journal) -> Found:
        source = self._variant.source
        order = candidates(source, self._layers)
        shares = costs(source, self._job.exported, self._layers)
        return Search(self._layers, order, shares, adjacent(source), self.screen, self.point, self._budget, journal, self._progress).run()

    def screen(self, layers: frozenset[str]) -> float:
        model = self._sketch(layers)
        kept = self._measure.screen(model)
        if not self._variant.rounded:
            return kept
        activations = self._measure.screen(activations_only(model, self._variant.source))
        if not layers:
            self._weights = max(kept - activations, 0.0)
        elif self._weights is None:
            self.screen(frozenset())
        return min(kept, (self._weights or 0.0) + activations)

    def point(self, added: str, layers: frozenset[str]) -> SearchPoint:
        if not layers:
            return self._measure.point(added, layers, self._variant.model)
        if self._budget.max_slowdown is not None:
            sketch = self._measure.point(added, layers, self._sketch(layers), whole=False)
            if self._budget.slow(sketch):
                return sketch
        return self._measure.point(added, layers, self.fit(sorted(layers), dict.fromkeys(layers, "search")).model)

    def fit(self, layers: Collection[str], reasons: Mapping[str, str]) -> Variant:
        """The variant with `layers` in float and the others fitted to that; `reasons` say why."""
        key, reasons = tuple(sorted(layers)), {**self._named, **reasons}
        if key not in self._fits:
            start = nearest(self._rules, self._job, self._variant.source, self._variant.ranges, reasons)
            self._fits[key] = fitted(self._rules, self._job, start, reasons) if self._variant.rounded else start
        made = self._fits[key]
        placement = self._rules.checked(made.source, made.model, self._job, made.ranges, made.rounded, reasons)
        return dataclasses.replace(made, placement=placement)

    def _sketch(self, layers: frozenset[str]) -> onnx.ModelProto:
        if not layers:
            return self._variant.model
        return self._rules.sketched(self._variant, self._job, {**self._named, **dict.fromkeys(layers, "search")})
