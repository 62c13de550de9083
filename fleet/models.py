"""What the controller knows of a model before any traffic: memory, cost of a load, what it may do. From the bundle, as the release measured it."""

from __future__ import annotations

import dataclasses
import enum
import math
from pathlib import Path
from typing import ClassVar

from pipeline.errors import ConfigError
from pipeline.records import ReleaseManifest
from pipeline.strict import Record


class Phase(enum.Enum):
    """Where a model is. WEIGHTS: its contexts were given back, weights are there."""

    OUT = "out"
    LOADING = "loading"
    WARM = "warm"
    WEIGHTS = "weights"
    UNLOADING = "unloading"


class Kind(enum.Enum):
    """What a server is asked for."""

    LOAD = "load"
    HURRY = "hurry"
    """Somebody waits now for what was begun in the background: a load, or the memory of one that is unloaded."""
    DROP_CONTEXTS = "drop contexts"
    UNLOAD = "unload"


@dataclasses.dataclass(frozen=True)
class Action:
    """One request to a server; `urgent` when somebody waits for it."""

    kind: Kind
    model: str
    urgent: bool = False
    reason: str = ""
    seconds: float = 0.0
    """How long a load takes, as measured."""


@dataclasses.dataclass(frozen=True)
class ModelSpec(Record):
    """A model that the controller may load: `weights_mb` + `contexts_mb` while warm; `load_s` from nothing, `contexts_s` with weights there.

    `price_s`: seconds of warm memory that one cold start is worth, null for the controller's. `priority` scales it: 2 is worth twice as much.
    `sla_ms`: largest latency promised; a load that breaks it makes a cold start worth up to ten times as much.
    """

    SCHEMA: ClassVar[str] = ""
    name: str
    weights_mb: float = 100.0
    contexts_mb: float = 0.0
    load_s: float = 1.0
    contexts_s: float = 0.0
    priority: float = 1.0
    pinned: bool = False
    price_s: float | None = None
    sla_ms: float | None = None
    bundle: str = ""
    address: str = ""
    """`http://host:port` of a server of your own, which the controller watches and does not start."""
    last_good: str = ""
    """Bundle to go back to when `bundle` does not load; empty for none."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name} {value:g}"
            for name, value, least in (
                ("weights_mb", self.weights_mb, 0.0),
                ("contexts_mb", self.contexts_mb, -1.0),
                ("load_s", self.load_s, -1.0),
                ("contexts_s", self.contexts_s, -1.0),
                ("priority", self.priority, 0.0),
                ("price_s", 1.0 if self.price_s is None else self.price_s, 0.0),
                ("sla_ms", 1.0 if self.sla_ms is None else self.sla_ms, 0.0),
            )
            if not math.isfinite(value) or not (value >= 0.0 if least < 0.0 else value > 0.0)
        ]
        if wrong or not self.name:
            raise ConfigError("A model is described by a number that cannot be", where=self.name, expected="positive numbers", got=", ".join(wrong))

    @property
    def size_mb(self) -> float:
        """Memory while warm."""
        return self.weights_mb + self.contexts_mb

    def cold_price_s(self, price_s: float) -> float:
        """What a cold start of this model is worth, in seconds of its warm memory."""
        broken = 1.0 if self.sla_ms is None else min(10.0, max(1.0, self.load_s * 1000.0 / self.sla_ms))
        return (self.price_s if self.price_s is not None else price_s) * self.priority * broken


def from_bundle(folder: str | Path, *, target: str | None = None, last_good: str = "", **options: float | bool | None) -> ModelSpec:
    """A model as its release measured it: time from process start to warm, and resident memory at most, of `target` (default: the first).

    Raises RecordError for what is no bundle, ConfigError when it has no such target or was not measured. Verification is the server's.
    """
    manifest = ReleaseManifest.load(Path(folder) / "manifest.json", next="give the folder of a released bundle")
    released = next((item for item in manifest.targets if target in (None, item.target)), None)
    if released is None or not {"ready_ms", "peak_rss_mb"} <= set(released.figures):
        got = "no such target" if released is None else f"figures {sorted(released.figures)}"
        raise ConfigError("The bundle does not say what a cold start costs", where=str(folder), expected="ready_ms and peak_rss_mb", got=got)
    resident = released.figures["peak_rss_mb"]
    return ModelSpec(
        name=manifest.name,
        weights_mb=max(1.0, resident),
        load_s=released.figures["ready_ms"] / 1000.0,
        bundle=str(folder),
        last_good=last_good,
        **options,  # type: ignore[arg-type]
    )
