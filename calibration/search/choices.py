"""What a search asks about layers in float, answered for one variant of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from calibration.float_layers import activations_only
from calibration.search.budget import Budget
from calibration.search.journal import Journal
from calibration.search.measure import Measure
from calibration.variants import Job, Rules, Variant, fitted, nearest
from pipeline.search_records import SearchPoint

if TYPE_CHECKING:
    import onnx

KEPT, ACTIVATIONS = "kept", "activations"
NOTHING: frozenset[str] = frozenset()


class Choices:
    """`point` fits weights anew, unless the choice is too slow anyway; `screen` predicts its drift on a few rows, in a second or so.

    Where weights are fitted, the prediction is plain INT8's drift less what rounded activations alone lose by the choice, and what each chosen layer
    alone loses beyond that by its weights. The drift with the weights as they are would not do: they make up for errors that are gone. On
    EfficientNet-Lite0 (26.6 dB), with the first three convolutions and the last layer in float, fitting anew gives 28.2 dB, weights as they are
    27.3 and the prediction 29: fitting had made up for part of what activations lost. Candidates are put in order by it; points are measured.
    """

    def __init__(
        self, rules: Rules, job: Job, variant: Variant, float_layers: Mapping[str, str], measure: Measure, budget: Budget, journal: Journal
    ) -> None:
        self._rules, self._job, self._variant, self._named = rules, job, variant, float_layers
        self._measure, self._budget, self.journal = measure, budget, journal
        self._fit: tuple[frozenset[str], Variant] | None = None
        """The last one: of a large model not many would fit into memory."""

    def knows(self, layers: frozenset[str]) -> bool:
        """Whether `screen` would measure nothing."""
        if not self._variant.rounded:
            return self.journal.knows(KEPT, layers)
        return self.journal.knows(ACTIVATIONS, layers) and (len(layers) > 1 or self.journal.knows(KEPT, layers))

    def screen(self, layers: frozenset[str]) -> float:
        if not self._variant.rounded:
            return self._kept(layers)
        drift = self._activations(layers)
        plain, rounded = self._kept(NOTHING), self._activations(NOTHING)
        if len(layers) == 1:
            self._kept(layers)
        drift += plain - rounded
        for layer in (frozenset({name}) for name in layers):
            if self.journal.knows(KEPT, layer) and self.journal.knows(ACTIVATIONS, layer):
                drift -= max(0.0, (plain - self._kept(layer)) - (rounded - self._activations(layer)))
        return max(drift, 0.0)

    def point(self, added: str, layers: frozenset[str]) -> SearchPoint:
        return self.journal.point(layers, lambda: self._point(added, layers))

    def _point(self, added: str, layers: frozenset[str]) -> SearchPoint:
        if not layers:
            return self._measure.point(added, layers, self._variant.model)
        if self._budget.max_slowdown is not None:
            sketch = self._measure.point(added, layers, self._sketch(layers), whole=False)
            if self._budget.slow(sketch):
                return sketch
        return self._measure.point(added, layers, self.fit(layers, dict.fromkeys(layers, "search")).model)

    def fit(self, layers: frozenset[str], reasons: Mapping[str, str]) -> Variant:
        """The variant with `layers` in float and the others fitted to that; `reasons` say why."""
        reasons = {**self._named, **reasons}
        if self._fit is None or self._fit[0] != layers:
            start = nearest(self._rules, self._job, self._variant.source, self._variant.ranges, reasons)
            self._fit = layers, fitted(self._rules, self._job, start, reasons) if self._variant.rounded else start
        made = self._fit[1]
        placement = self._rules.checked(made.source, made.model, self._job, made.ranges, made.rounded, reasons)
        return dataclasses.replace(made, placement=placement)

    def _kept(self, layers: frozenset[str]) -> float:
        return self.journal.drift(KEPT, layers, lambda: self._measure.screen(self._sketch(layers)))

    def _activations(self, layers: frozenset[str]) -> float:
        return self.journal.drift(ACTIVATIONS, layers, lambda: self._measure.screen(activations_only(self._sketch(layers), self._variant.source)))

    def _sketch(self, layers: frozenset[str]) -> onnx.ModelProto:
        if not layers:
            return self._variant.model
        return self._rules.sketched(self._variant, self._job, {**self._named, **dict.fromkeys(layers, "search")})
