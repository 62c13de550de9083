"""A forecaster that is steadily wrong, in ways that no check of a single answer can see: it loses its weight, and costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from serving import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import dynamic_workloads

from fleet.bursts import BurstLevel
from fleet.controller import Controller
from fleet.forecast import Forecaster
from fleet.forecaster import Answer, Forecasts, Question
from fleet.policies import conservative, forecast
from fleet.replay import Replay

Lie = Callable[[list[float]], list[float]]
PRICE_S = 1800.0
OFFICE = dynamic_workloads.office(seed=50, days=21.0)
LIES: dict[str, Lie] = {
    "half a day late": lambda usuals: usuals[24:] + usuals[:24],
    "upside down": lambda usuals: [max(usuals) - usual for usual in usuals],
    "always busy": lambda usuals: [100.0] * len(usuals),
    "never busy": lambda usuals: [0.0] * len(usuals),
}


class Lying(Forecasts):
    """A double of a forecaster: what it says is possible, and wrong."""

    def __init__(self, lie: Lie) -> None:
        super().__init__()
        self.lie = lie

    def put(self, question: Question) -> None:
        self.take(Answer(question.name, question.slot, self.lie(question.usuals), None, None, 0.0))


@pytest.mark.parametrize("lie", LIES)
def test_the_selector_stops_following_it(lie: str) -> None:
    def cost(**how: object) -> tuple[float, Controller]:
        controller = Controller(OFFICE.specs, price_s=PRICE_S, forecasts=Lying(LIES[lie]), **how)  # type: ignore[arg-type]
        return Replay(OFFICE, controller).run().cost, controller

    keep_alive, _ = cost(policy=conservative)
    followed, _ = cost(policy=forecast)
    chosen, controller = cost()
    assert followed > 1.05 * keep_alive  # it is no harmless lie
    assert chosen <= 1.05 * keep_alive
    assert controller.forecasts.count > 0
    assert "forecast" not in {model.selector.name for model in controller.models.values()}


class Contrary:
    """A part of the blend that says the contrary of what comes."""

    def __init__(self) -> None:
        self.last = 0.0

    def learn(self, count: float, usual: float) -> None:  # noqa: ARG002
        self.last = count

    def ahead(self, usuals: list[float]) -> list[float]:
        return [max(0.0, 40.0 - self.last)] * len(usuals)


def test_a_part_that_is_steadily_wrong_changes_no_forecast() -> None:
    counts = np.random.default_rng(5).poisson(20.0 + 15.0 * np.sin(np.arange(1500) / 7.6)).tolist()
    with_it, without = Forecaster(extras=[BurstLevel(), Contrary()]), Forecaster(extras=[BurstLevel()])
    for count in counts:
        for forecaster in (with_it, without):
            forecaster.learn(count)
        assert with_it.forecast() == without.forecast()
