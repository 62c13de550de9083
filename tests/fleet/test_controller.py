"""The controller on a made-up clock: loads that fail, hang or die, modes, pins, and what must hold whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from controlled import START, kinds, serve, spec

from fleet.controller import Controller
from fleet.models import Kind, Phase
from fleet.modes import Mode
from fleet.plans import NEVER
from fleet.policies import KeepAlive
from pipeline.errors import ConfigError, InputError


def test_a_first_request_is_cold_and_the_next_is_not() -> None:
    controller = Controller([spec("a")])
    assert kinds(controller.request("a", START)) == [(Kind.LOAD, "a")]
    assert controller.request("a", START + 1) == []
    controller.loaded("a", START + 2)
    controller.done("a", START + 2)
    controller.done("a", START + 2)
    assert controller.request("a", START + 3) == []
    assert controller.models["a"].counts == {**controller.models["a"].counts, "requests": 3, "cold": 2, "loads": 1}


def test_an_idle_model_is_unloaded_when_its_keep_alive_ends() -> None:
    controller = Controller([spec("a")], policy=KeepAlive(100.0))
    serve(controller, "a", START)
    assert controller.next_wake() == START  # a forecast is due
    assert controller.tick(START) == []
    assert controller.tick(START + 99.0) == []
    assert controller.next_wake() == START + 100.0
    assert kinds(controller.tick(START + 100.0)) == [(Kind.UNLOAD, "a")]
    controller.unloaded("a", START + 100.0)
    assert controller.models["a"].phase is Phase.OUT
    assert controller.models["a"].idle_s == pytest.approx(100.0)


def test_memory_held_in_vain_for_long_is_given_back_and_not_taken_again() -> None:
    controller = Controller([spec("a")], price_s=1000.0)
    at = START
    for _ in range(3000):  # all half-hours of the week pay
        at += 300.0
        serve(controller, "a", at)
        controller.tick(at)
    model, last, actions = controller.models["a"], at, 0
    before = model.idle_s
    while (wake := controller.next_wake()) < last + 20 * 86400.0:
        for action in controller.tick(wake):
            actions += 1
            controller.loaded("a", wake) if action.kind is Kind.LOAD else controller.unloaded("a", wake)
    assert 1 <= actions <= 10
    assert model.idle_s - before <= 6 * 1000.0 + 1e-6
    assert model.phase is Phase.OUT


def test_under_pressure_contexts_go_first_then_weights_and_never_what_is_in_use() -> None:
    controller = Controller([spec("a"), spec("b"), spec("small", weights_mb=5.0, contexts_mb=5.0)], cap_mb=205.0, policy=KeepAlive(NEVER))
    for name in ("a", "b"):
        serve(controller, name, START)
    controller.request("b", START + 1)
    assert kinds(controller.request("small", START + 1)) == [(Kind.DROP_CONTEXTS, "a")]
    assert kinds(controller.unloaded("a", START + 1)) == [(Kind.LOAD, "small")]
    assert controller.models["a"].phase is Phase.WEIGHTS
    action = controller.request("a", START + 2)
    assert action == []  # 20 MB of contexts do not fit beside b and small, both in use
    controller.loaded("small", START + 2)
    assert kinds(controller.done("small", START + 2)) == [(Kind.DROP_CONTEXTS, "small")]
    [reload] = controller.unloaded("small", START + 2)
    assert (reload.kind, reload.seconds) == (Kind.LOAD, 0.5)


def test_a_pinned_model_is_loaded_by_itself_and_stays() -> None:
    controller = Controller([spec("a", pinned=True), spec("b"), spec("c")], cap_mb=220.0, policy=KeepAlive(0.0))
    assert kinds(controller.tick(START)) == [(Kind.LOAD, "a")]
    controller.loaded("a", START)
    for at in range(1, 20):
        serve(controller, "bc"[at % 2], START + at)
        controller.tick(START + at)
    assert controller.models["a"].phase is Phase.WARM
    assert controller.models["a"].counts["evictions"] == 0


def test_a_cap_below_what_must_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="cap"):
        Controller([spec("a")], cap_mb=99.0)
    with pytest.raises(ConfigError, match="cap"):
        Controller([spec("a", pinned=True), spec("b")], cap_mb=150.0)
    with pytest.raises(ConfigError, match="twice"):
        Controller([spec("a"), spec("a")])


def test_models_appear_and_vanish() -> None:
    controller = Controller([spec("a")])
    with pytest.raises(InputError, match="no such model"):
        controller.request("b", START)
    controller.add(spec("b"))
    serve(controller, "b", START)
    assert kinds(controller.remove("b", START + 1)) == [(Kind.UNLOAD, "b")]
    assert controller.done("b", START + 1) == []
    assert controller.loaded("b", START + 1) == []
    assert controller.tick(START + 1e6) == []
    with pytest.raises(InputError, match="ended than began"):
        controller.done("a", START)


def test_a_load_that_fails_is_tried_again_later_and_later() -> None:
    controller = Controller([spec("a")])
    controller.request("a", START)
    assert controller.failed("a", START + 1, "out of memory") == []
    assert controller.tick(START + 1.5) == []
    assert kinds(controller.tick(START + 2.0)) == [(Kind.LOAD, "a")]
    controller.failed("a", START + 3, "out of memory")
    assert controller.tick(START + 4.5) == []
    assert kinds(controller.tick(START + 5.0)) == [(Kind.LOAD, "a")]
    controller.loaded("a", START + 6)
    assert controller.models["a"].counts["load_failures"] == 2
    assert controller.arbiter.used_mb == 100.0


def test_a_server_that_does_not_answer_says_nothing_of_the_model() -> None:
    controller = Controller([spec("a", bundle="new", last_good="old")])
    controller.request("a", START)
    for second in range(1, 6):
        assert controller.unreachable("a", START + 2 * second - 1, "connection refused") == []
        assert kinds(controller.tick(START + 2 * second)) == [(Kind.LOAD, "a")]
    assert controller.models["a"].spec.bundle == "new"
    assert controller.models["a"].counts["load_failures"] == 0


def test_a_load_that_hangs_is_ended() -> None:
    controller = Controller([spec("a")])
    controller.request("a", START)
    actions = controller.tick(START + 15 * 2.0 + 30.0)
    assert kinds(actions) == [(Kind.UNLOAD, "a")]
    assert controller.models["a"].counts["load_failures"] == 1


def test_a_bad_bundle_is_rolled_back_to_the_last_good_one() -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    controller = Controller([spec("a", bundle="new", last_good="old")], log=lambda event, **fields: logged.append((event, fields)))
    controller.request("a", START)
    [again] = controller.failed("a", START + 1, "corrupt")
    assert again.kind is Kind.LOAD
    assert controller.models["a"].spec.bundle == "old"
    assert controller.models["a"].counts["rollbacks"] == 1
    assert any(event == "mode" and fields["mode"] == "LAST_GOOD" and "corrupt" in fields["reason"] for event, fields in logged)


def test_a_server_that_died_is_loaded_again_for_those_who_wait() -> None:
    controller = Controller([spec("a")])
    serve(controller, "a", START)
    controller.request("a", START + 1)
    assert kinds(controller.lost("a", START + 2, "killed")) == [(Kind.LOAD, "a")]
    controller.loaded("a", START + 3)
    controller.done("a", START + 3)
    assert controller.lost("a", START + 4, "killed") == []
    assert controller.models["a"].phase is Phase.OUT


def test_a_dead_forecaster_means_the_keep_alive_at_the_next_tick_and_the_way_back() -> None:
    controller = Controller([spec("a")], price_s=600.0)
    for run in range(40):
        serve(controller, "a", START + 3600.0 * run)
        controller.tick(START + 3600.0 * run)
    last = START + 3600.0 * 39
    assert controller.models["a"].selector.name != "conservative"
    assert controller.models["a"].plan is not None
    assert controller.models["a"].plan.keep_s != 600.0
    controller.forecasts.kill("killed by a test")
    controller.tick(last + 10.0)
    assert controller.modes.mode is Mode.CONSERVATIVE
    assert controller.models["a"].plan.keep_s == 600.0
    assert "killed by a test" in controller.status(last)["changes"][-1]["reason"]
    controller.forecasts.dead = ""
    controller.tick(last + 20.0)
    assert controller.modes.mode is Mode.NORMAL


def test_a_forecaster_that_raises_is_dead_and_requests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller([spec("a")])
    monkeypatch.setattr(type(controller.forecasts.models), "of", lambda *_: 1 / 0)
    serve(controller, "a", START)
    controller.tick(START)
    controller.tick(START + 1)
    assert controller.modes.mode is Mode.CONSERVATIVE
    assert "ZeroDivisionError" in controller.forecasts.fault(START)
    serve(controller, "a", START + 5)
    assert controller.models["a"].counts["cold"] == 1


@pytest.mark.parametrize("jump", [-30 * 86400.0, 30 * 86400.0])
def test_a_clock_that_is_set_begins_plans_anew(jump: float) -> None:
    controller = Controller([spec("a"), spec("b")], policy=KeepAlive(100.0))
    serve(controller, "a", START)
    controller.request("b", START + 10)
    now = START + 50 + jump
    controller.jumped(now)
    controller.loaded("b", now + 1.0)
    assert controller.tick(now + 99.0) == []
    assert kinds(controller.tick(now + 100.0)) == [(Kind.UNLOAD, "a")]
    assert controller.models["a"].idle_s <= 200.0
    controller.done("b", now + 102.0)
    assert kinds(controller.tick(now + 202.0)) == [(Kind.UNLOAD, "b")]
    assert list(controller.models["a"].habits.arrivals.sessions) == []


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -5.0, START + 1e9])
def test_a_request_of_an_impossible_time_counts_as_now(at: float) -> None:
    controller = Controller([spec("a")])
    serve(controller, "a", START)
    controller.request("a", START + 30.0, at)
    assert controller.models["a"].habits.arrivals.last == START + 30.0


@pytest.mark.parametrize("facts", [{"weights_mb": -1.0}, {"load_s": float("nan")}, {"priority": 0.0}, {"price_s": -5.0}, {"name": ""}])
def test_a_model_that_cannot_be_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        spec(**{"name": "a", **facts})


def test_priority_and_sla_scale_the_price() -> None:
    assert spec("a", priority=3.0).cold_price_s(600.0) == 1800.0
    assert spec("a", sla_ms=500.0).cold_price_s(600.0) == 2400.0
    assert spec("a", price_s=10.0).cold_price_s(600.0) == 10.0


def test_a_background_load_that_a_request_comes_to_wait_for_is_hurried_once() -> None:
    controller = Controller([spec("a", pinned=True)])
    [load] = controller.tick(START)
    assert not load.urgent
    assert kinds(controller.request("a", START + 1)) == [(Kind.HURRY, "a")]
    assert controller.modes.lanes == {"a": Mode.FULL_LOAD}
    assert controller.request("a", START + 1) == []
    controller.loaded("a", START + 2)
    assert controller.modes.lanes == {}


def test_an_unload_that_somebody_comes_to_wait_for_is_hurried() -> None:
    controller = Controller([spec("a"), spec("b")], policy=KeepAlive(10.0), cap_mb=100.0)
    serve(controller, "a", START)
    assert kinds(controller.tick(START + 11.0)) == [(Kind.UNLOAD, "a")]
    assert kinds(controller.request("b", START + 12.0)) == [(Kind.HURRY, "a")]
    assert kinds(controller.unloaded("a", START + 13.0)) == [(Kind.LOAD, "b")]
    controller.loaded("b", START + 14.0)
    controller.done("b", START + 14.0)
    actions = controller.request("a", START + 15.0)
    assert (kinds(actions), actions[0].urgent) == ([(Kind.UNLOAD, "b")], True)
