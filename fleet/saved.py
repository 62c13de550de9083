"""The controller's memory across restarts: each model's arrivals and what its policies have cost. Torn state starts it conservative, and says so."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fleet.arrivals import Arrivals
from fleet.controller import Controller
from pipeline.digests import sha256_bytes
from pipeline.errors import RecordError
from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class SavedModel(Record):
    """`arrivals`: base64 of `Arrivals.to_bytes`. `costs`: the selector's, by policy, in seconds of warm memory. `warm`: whether it was when saved."""

    arrivals: str
    sha256: str
    costs: dict[str, float]
    pauses: int
    warm: bool


@dataclasses.dataclass(frozen=True)
class Saved(Record):
    """`at`: seconds since the epoch."""

    SCHEMA: ClassVar[str] = "qwarm.controller/1"
    at: float
    models: dict[str, SavedModel]


def snapshot(controller: Controller, now: float) -> Saved:
    """What was learnt until now; its `save` writes it atomically."""
    models = {}
    for name, model in controller.models.items():
        content = model.habits.arrivals.to_bytes()
        costs = dict(zip(model.selector.names, model.selector.costs, strict=True))
        models[name] = SavedModel(
            base64.b64encode(content).decode(), sha256_bytes(content), costs, model.selector.pauses, model.idle_since is not None
        )
    return Saved(now, models)


def restore(controller: Controller, path: str | Path, log: Callable[..., None] = lambda *_, **__: None) -> list[str]:
    """Give the controller's models what was learnt of them; returns those that were restored.

    No file is a first start. A file, or a model in it, that is torn or of another schema is left out and logged: that model starts conservative.
    """
    if not Path(path).exists():
        return []
    try:
        saved = Saved.load(path, next="delete it: the controller starts conservative")
    except RecordError as error:
        log("state_refused", file=str(path), reason=f"{error.what}: {error.got}", next="starts conservative")
        return []
    restored = []
    for name, kept in saved.models.items():
        if name not in controller.models:
            continue
        try:
            content = base64.b64decode(kept.arrivals, validate=True)
            if sha256_bytes(content) != kept.sha256:
                raise ValueError("its digest is another")
            arrivals = Arrivals.from_bytes(content)
        except (ValueError, binascii.Error) as error:
            log("state_refused", file=str(path), model=name, reason=str(error), next="starts conservative")
            continue
        controller.restore(name, arrivals, {key: cost for key, cost in kept.costs.items() if math.isfinite(cost) and cost >= 0.0}, kept.pauses)
        restored.append(name)
    return restored
