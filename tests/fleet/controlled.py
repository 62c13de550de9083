"""What tests of the controller say for short, on a made-up clock."""

from __future__ import annotations

from typing import Any

from fleet.controller import Controller
from fleet.models import Action, Kind, ModelSpec

START = 1_704_067_200.0


def kinds(actions: list[Action]) -> list[tuple[Kind, str]]:
    return [(action.kind, action.model) for action in actions]


def spec(name: str, **facts: Any) -> ModelSpec:
    return ModelSpec(name, **{"weights_mb": 80.0, "contexts_mb": 20.0, "load_s": 2.0, "contexts_s": 0.5, **facts})


def serve(controller: Controller, name: str, at: float) -> None:
    """A request that is answered, on servers that do what they are asked."""
    pending = controller.request(name, at)
    while pending:
        action = pending.pop(0)
        pending += controller.loaded(action.model, at) if action.kind is Kind.LOAD else controller.unloaded(action.model, at)
    controller.done(name, at)
