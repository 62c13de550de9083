"""What is saved comes back equal; what is torn, foreign or impossible starts conservative and says so. And the file that an operator writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.announced import announce, read
from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Shadow
from fleet.fleet_metrics import fleet_page
from fleet.logs import Log
from fleet.models import Kind, ModelSpec
from fleet.saved import restore, snapshot
from fleet.settings import read_settings
from fleet.watch import counted
from pipeline.errors import ConfigError

START = 1_704_067_200.0


def used(runs: int = 60) -> Controller:
    controller = Controller([ModelSpec("a"), ModelSpec("b")])
    for run in range(runs):
        at = START + 3600.0 * run
        pending = controller.request("a", at)
        while pending:
            action = pending.pop()
            pending += controller.loaded("a", at) if action.kind is Kind.LOAD else controller.unloaded("a", at)
        controller.done("a", at)
        controller.tick(at)
    return controller


def test_a_new_controller_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    before, after = used(), Controller([ModelSpec("a"), ModelSpec("c")])
    snapshot(before, START).save(tmp_path / "controller.json")
    assert restore(after, tmp_path / "controller.json") == ["a"]
    assert after.models["a"].habits.arrivals.to_bytes() == before.models["a"].habits.arrivals.to_bytes()
    assert after.models["a"].selector.name == before.models["a"].selector.name != "conservative"
    assert after.models["a"].selector.costs == before.models["a"].selector.costs
    assert after.models["a"].selector.staked == before.models["a"].selector.staked > 0.0


def test_who_was_followed_stays_though_another_is_ahead_by_less_than_a_cold_start(tmp_path: Path) -> None:
    before, after = used(), Controller([ModelSpec("a")])
    selector = before.models["a"].selector
    selector.leader, selector.costs = 0, [400.0, *[500.0] * (len(selector.names) - 2), 100.0]
    snapshot(before, START).save(tmp_path / "controller.json")
    restore(after, tmp_path / "controller.json")
    assert after.models["a"].selector.name == "conservative"


def test_costs_at_another_price_are_not_taken(tmp_path: Path) -> None:
    before, after = used(), Controller([ModelSpec("a")], price_s=5.0)
    snapshot(before, START).save(tmp_path / "controller.json")
    logged: list[str] = []
    assert restore(after, tmp_path / "controller.json", lambda event, **_: logged.append(event)) == ["a"]
    assert logged == ["costs_forgotten"]
    assert (after.models["a"].selector.name, after.models["a"].selector.staked) == ("conservative", 0.0)
    assert after.models["a"].habits.arrivals.to_bytes() == before.models["a"].habits.arrivals.to_bytes()


def tear(data: dict[str, Any]) -> Any:
    return json.dumps(data)[:500]


def other_schema(data: dict[str, Any]) -> Any:
    return json.dumps({**data, "schema": "qwarm.controller/9"})


def flipped(data: dict[str, Any]) -> Any:
    data["models"]["a"]["arrivals"] = "zzzz" + data["models"]["a"]["arrivals"][4:]
    return json.dumps(data)


def no_base64(data: dict[str, Any]) -> Any:
    data["models"]["a"]["arrivals"] = "%%%"
    return json.dumps(data)


def no_stake(data: dict[str, Any]) -> Any:
    data["models"]["a"]["staked"] = -1.0
    return json.dumps(data)


@pytest.mark.parametrize("harm", [tear, other_schema, flipped, no_base64, no_stake, lambda _: "[]", lambda _: ""])
def test_corrupt_state_starts_conservative_and_says_so(tmp_path: Path, harm: Any) -> None:
    file, logged = tmp_path / "controller.json", []
    snapshot(used(), START).save(file)
    file.write_text(harm(json.loads(file.read_text())))
    after = Controller([ModelSpec("a")])
    assert restore(after, file, lambda event, **fields: logged.append((event, fields["next"]))) == []
    assert logged == [("state_refused", "starts conservative")]
    assert after.models["a"].selector.name == "conservative"
    assert restore(after, tmp_path / "absent.json") == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"models": []}, "no model"),
        ({"models": [{"name": "a"}], "cap": 5}, "cap_mb"),
        ({"models": [{"name": "a", "wieghts_mb": 5}]}, "weights_mb"),
        ({"models": [{"name": "a", "load_s": "5"}]}, "another kind"),
        ({"models": [{"name": "a", "pinned": 1}]}, "another kind"),
        ({"models": [{"load_s": 5}]}, "no name"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "twice"),
        ({"models": [{"name": "a"}], "price_s": -1}, "number cannot be"),
        ({"models": [{"name": "a", "load_s": -1}]}, "cannot be"),
        ([], "no JSON object"),
    ],
)
def test_a_wrong_fleet_file_is_refused_by_key(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=message):
        read_settings(path)


def test_a_bundle_tells_what_its_release_measured(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"models": [{"bundle": str(bundle)}]}))
    with pytest.raises(ConfigError, match="ready_ms"):  # this fixture's evidence is made by hand, and has neither
        read_settings(path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["targets"][0]["figures"] = {"ready_ms": 400.0, "peak_rss_mb": 120.0}
    folder = tmp_path / "measured"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    path.write_text(json.dumps({"models": [{"bundle": str(folder), "priority": 2}]}))
    [spec] = read_settings(path).models
    assert (spec.name, spec.load_s, spec.size_mb, spec.priority) == ("tiny", 0.4, 120.0, 2)


def test_the_page_of_metrics_is_read_by_prometheus() -> None:
    controller = used()
    families = {family.name: family for family in text_string_to_metric_families(fleet_page(controller.status(START)))}
    cold = {sample.labels["model"]: sample.value for sample in families["qwarm_cold_starts"].samples}
    assert cold == {"a": controller.models["a"].counts["cold"], "b": 0}
    assert {sample.labels["policy"] for sample in families["qwarm_decisions"].samples} >= {"conservative"}
    assert {sample.labels["mode"] for sample in families["qwarm_decisions"].samples} == {"NORMAL"}
    assert sum(sample.value for sample in families["qwarm_fleet_mode"].samples) == 1


def test_a_shadow_says_what_it_would_do(tmp_path: Path) -> None:
    controller = Controller([ModelSpec("a", load_s=0.0)])
    with open(tmp_path / "log", "w") as stream:
        control = Control(controller, Shadow(), state=tmp_path, log=Log(stream=stream))
        control.saw("a", 3)
        status = control.status()
        control.close()
    assert status["models"]["a"]["requests"] == 3
    assert '"event": "action", "kind": "load", "model": "a"' in (tmp_path / "log").read_text()
    assert (tmp_path / "controller.json").exists()


def test_counts_of_both_kinds_of_servers_are_read() -> None:
    lines = ('{code="200",route="infer"} 5', '{code="503",route="infer"} 2', '{code="200",route="ready"} 9')
    ours = "".join(f"qwarm_requests_total{line}\n" for line in lines)
    triton = 'nv_inference_request_success{model="a",version="1"} 7\nnv_inference_request_success{model="b",version="1"} 1\n'
    assert (counted(ours, "a"), counted(triton, "a"), counted(triton, "c")) == (7.0, 7.0, 0.0)


def test_what_is_announced_is_read_while_its_process_lives(tmp_path: Path) -> None:
    announce(tmp_path, "http://127.0.0.1:1", True, used().status(START))
    found = read(tmp_path)
    assert found is not None
    assert "mode NORMAL, shadow" in found.describe()
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": 1}))
    assert read(tmp_path) is None
    assert read(tmp_path / "absent") is None
