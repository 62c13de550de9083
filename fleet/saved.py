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
from fleet.journal import read_journal
from pipeline.digests import sha256_bytes
from pipeline.errors import RecordError
from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class SavedModel(Record):
    """`arrivals`: base64 of `Arrivals.to_bytes`.

    `leader`, `costs` by policy in seconds of warm memory, and `staked` in cold starts of `price_s` each, are the selector's.
    """

    arrivals: str
    sha256: str
    price_s: float
    leader: str
    costs: dict[str, float]
    staked: float


@dataclasses.dataclass(frozen=True)
class Saved(Record):
    """`at`: seconds since the epoch. `forecasts`: `Forecasts.saved`."""

    SCHEMA: ClassVar[str] = "qwarm.controller/3"
    at: float
    models: dict[str, SavedModel]
    forecasts: dict[str, str]


def snapshot(controller: Controller, now: float) -> Saved:
    """What was learnt until now; its `save` writes it atomically."""
    models = {}
    for name, model in controller.models.items():
        content, selector = model.habits.arrivals.to_bytes(), model.selector
        costs = dict(zip(selector.names, selector.costs, strict=True))
        models[name] = SavedModel(
            base64.b64encode(content).decode(), sha256_bytes(content), model.habits.price_s, selector.name, costs, selector.staked
        )
    return Saved(now, models, controller.forecasts.saved())


def restore(controller: Controller, path: str | Path, log: Callable[..., None] = lambda *_, **__: None) -> list[str]:
    """Give the controller's models what was learnt of them; returns those that were restored.

    Then they live again through the requests since the save, by the journal beside it. No file is a first start. A file, or a model in it, that is
    torn or of another schema is left out and logged: that model starts conservative.
    """
    folder = Path(path).parent
    if not Path(path).exists():
        _relive(controller, folder, 0.0)
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
            if not 0.0 <= kept.staked < math.inf:
                raise ValueError("a stake that cannot be")
            if not all(math.isfinite(cost) and cost >= 0.0 for cost in kept.costs.values()):
                raise ValueError("a cost that cannot be")
            arrivals = Arrivals.from_bytes(content)
        except (ValueError, binascii.Error) as error:
            log("state_refused", file=str(path), model=name, reason=str(error), next="starts conservative")
            continue
        controller.restore(name, arrivals)
        if kept.price_s == controller.models[name].habits.price_s:
            controller.models[name].selector.restore(kept.costs, kept.staked, kept.leader)
        else:
            log("costs_forgotten", file=str(path), model=name, reason="a cold start has another price now", next="starts conservative")
        restored.append(name)
    refused = controller.forecasts.restore({name: text for name, text in saved.forecasts.items() if name in controller.models})
    for name in refused:
        log("state_refused", file=str(path), model=name, reason="a past of forecasts that cannot be", next="its forecasts begin anew")
    _relive(controller, folder, saved.at)
    return restored


def _relive(controller: Controller, folder: Path, since: float) -> None:
    for at, name in read_journal(folder, since):
        controller.relive(name, at)
    controller.forget_pauses()
