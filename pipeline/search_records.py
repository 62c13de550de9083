"""The nouns of the search for layers that stay in float."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class DeployedPoint(Record):
    """A model in one target's runtime: its `drift` there, and the times of single requests in ms, taken in turn with those of plain INT8.

    `latency_ratio` is the median of the ratios of neighbours.
    """

    drift: float
    latency_ratio: float
    plain_ms: tuple[float, ...]
    ms: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class SearchPoint(Record):
    """One choice of layers that stay in float. `added`: the layer or torch module by which it differs from the choice before, "" for plain INT8.

    `drift`: power of the error over that of the float model's output, of the worst output, for the graph as written. `whole` is false for one that
    was found too slow before weights were fitted to it.
    """

    added: str
    float_layers: tuple[str, ...]
    drift: float
    deployed: dict[str, DeployedPoint]
    whole: bool = True

    @property
    def worst_drift(self) -> float:
        """The largest drift of the graph as written and of every runtime."""
        return max([self.drift, *(point.drift for point in self.deployed.values())])

    @property
    def latency_ratio(self) -> float | None:
        """Of the target that suffers most; null where none can be measured here."""
        return max((point.latency_ratio for point in self.deployed.values()), default=None)


@dataclasses.dataclass(frozen=True)
class Sensitivity(Record):
    """The drift that is left on the screened rows when only these layers are in float; `cost` is their predicted share of the time.

    Of activations alone, with float weights, where weights are fitted. `gain_db` is 10 log10(drift without them / drift).
    """

    name: str
    layers: tuple[str, ...]
    drift: float
    gain_db: float
    cost: float


@dataclasses.dataclass(frozen=True)
class SearchJournal(Record):
    """What a search has measured so far, so that a killed one continues: drifts by kind and layers in float, one a line, and points by layers."""

    SCHEMA: ClassVar[str] = "qwarm.search-journal/2"
    seconds: float
    drifts: dict[str, float]
    points: dict[str, SearchPoint]


@dataclasses.dataclass(frozen=True)
class SearchResult(Record):
    """The search for `max_drift`: what was measured, and which model that gave.

    `methods`: SQNR in dB by range method with float weights, null without limit; `method` is the one that was taken. `points` are the measured
    choices in order, each with weights fitted to it; `frontier` lists those that no other beats in both drift and latency, `chosen` is the
    one that was written (places in `points`). `met`: whether it is within `max_drift` everywhere; null where none was asked for. `modules`: the torch
    module of each layer. `unmeasured`: targets that could not run plain INT8, and why.
    """

    SCHEMA: ClassVar[str] = "qwarm.search/2"
    scheme: str
    onnx_sha256: str
    search_rows: int
    method: str
    methods: dict[str, float | None]
    max_drift: float | None
    max_slowdown: float | None
    sensitivities: tuple[Sensitivity, ...]
    points: tuple[SearchPoint, ...]
    frontier: tuple[int, ...]
    chosen: int
    met: bool | None
    stopped: str
    seconds: float
    modules: dict[str, str]
    unmeasured: dict[str, str]

    @property
    def written(self) -> SearchPoint:
        """The choice that became the model."""
        return self.points[self.chosen]
