"""The controller in front of real `qwarm serve` processes: cold, warm, capped, killed, restarted; no request is lost and no state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tiny
from serving import ROOT, Running, until

from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Shadow
from fleet.logs import Log
from fleet.models import ModelSpec
from fleet.watch import Watch

NAMES = ("ant", "bee", "cow")
RESIDENT_MB = 100.0
BODY = json.dumps({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": np.zeros(64).tolist()}]}).encode()


@pytest.fixture(scope="module")
def fleet(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FLEET.json of three tiny bundles in memory for two."""
    folder = tmp_path_factory.mktemp("fleet")
    models = []
    for name in NAMES:
        bundle = tiny.pack(parts, folder / name, name=name)
        models.append({"name": name, "bundle": str(bundle), "weights_mb": RESIDENT_MB, "load_s": 2.0})
    path = folder / "fleet.json"
    path.write_text(json.dumps({"cap_mb": 2.5 * RESIDENT_MB, "price_s": 600, "models": models}))
    return path


class Acting:
    """A `control --act` process and what it logs."""

    def __init__(self, fleet: Path, state: Path, *options: str) -> None:
        program = [sys.executable, "-m", "fleet.main", "control", str(fleet)]
        command = [*program, "--state", str(state), "--port", "0", "--act", "--allow-unsigned", "--json"]
        self.log = open(state.parent / f"{state.name}.log", "ab")  # noqa: SIM115  (closed in stop)
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (state.parent / f"{state.name}.log").read_text()
        self.address = json.loads(line)["address"]

    def ask(self, name: str) -> int:
        with urlopen(Request(f"{self.address}/v2/models/{name}/infer", BODY), timeout=60) as answer:
            assert len(json.loads(answer.read())["outputs"][0]["data"]) == 3
            return int(answer.status)

    def status(self) -> dict[str, Any]:
        with urlopen(f"{self.address}/v2/fleet", timeout=10) as answer:
            return dict(json.loads(answer.read()))

    def stop(self, kill: bool = False) -> None:
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder; servers that a test leaves are ended."""
    folder = tmp_path / "state"
    folder.mkdir()
    yield folder
    for file in folder.glob("servers/*/process-*.json"):
        process = json.loads(file.read_text())
        if Path(f"/proc/{process['pid']}/cmdline").exists() and str(folder) in Path(f"/proc/{process['pid']}/cmdline").read_text():
            os.kill(process["pid"], signal.SIGKILL)


def test_three_models_in_memory_for_two_lose_no_request_when_things_die(fleet: Path, state: Path) -> None:
    acting = Acting(fleet, state)
    try:
        assert [acting.ask(name) for name in ("ant", "ant", "bee", "cow", "ant")] == [200] * 5  # cow takes somebody's place, perhaps ant's
        status = acting.status()
        assert status["memory_mb"] <= status["cap_mb"]
        assert sum(facts["evictions"] for facts in status["models"].values()) >= 1
        # a server dies between two requests
        addresses = {name: address for name, address in status["addresses"].items() if address}
        victim = next(json.loads(file.read_text()) for file in state.glob("servers/ant/process-*.json"))
        assert addresses["ant"] == victim["address"]
        os.kill(victim["pid"], signal.SIGKILL)
        assert acting.ask("ant") == 200
        # the controller dies: its servers go on, and the next one takes them over
        before = next(json.loads(file.read_text()) for file in state.glob("servers/ant/process-*.json"))
        acting.stop()
        acting = Acting(fleet, state)
        status = acting.status()
        assert status["addresses"]["ant"] == before["address"]
        assert status["models"]["ant"]["cold"] == 0
        assert acting.ask("ant") == 200
        assert acting.status()["models"]["ant"]["cold"] == 0
        # killed outright while requests come: clients that ask again get every answer
        answers: list[int] = []

        def client() -> None:
            for _ in range(10):
                until(lambda: answered(holder[0]), 60.0)
                answers.append(200)

        holder = [acting]

        def answered(current: Acting) -> bool:
            try:
                return current.ask("ant") == 200
            except OSError:
                return False

        thread = threading.Thread(target=client)
        thread.start()
        acting.stop(kill=True)
        holder[0] = acting = Acting(fleet, state)
        thread.join(90)
        assert answers == [200] * 10
        page = urlopen(f"{acting.address}/metrics", timeout=10).read().decode()
        assert 'qwarm_cold_starts_total{model="ant"} 0' in page
        until(lambda: acting.status()["mode"] == "NORMAL")
        until(lambda: "NORMAL" in (state / "fleet.json").read_text())
        told = subprocess.run([sys.executable, "-m", "fleet.main", "status", "--state", str(state)], capture_output=True, text=True, cwd=ROOT)
        assert "mode NORMAL" in told.stdout, told.stdout + told.stderr
        asked = subprocess.run([sys.executable, "-m", "fleet.main", "status", "--url", acting.address], capture_output=True, text=True, cwd=ROOT)
        assert "ant: WARM, policy conservative" in asked.stdout, asked.stdout + asked.stderr
        assert "forecasts are back" in asked.stdout
    finally:
        acting.stop()


def test_forecaster_server_and_controller_are_killed_in_turn_and_nothing_is_lost(fleet: Path, state: Path) -> None:
    """Each request is answered, a client that meets a dead controller asks again; what was learnt of each is there afterwards."""
    acting, asked = Acting(fleet, state, "--unload"), dict.fromkeys(NAMES, 0)

    def ask(name: str) -> None:
        assert acting.ask(name) == 200
        asked[name] += 1

    try:
        until(lambda: acting.status()["mode"] == "NORMAL")
        for name in ("ant", "ant", "bee"):
            ask(name)
        forecaster = acting.status()["forecaster_pid"]
        os.kill(forecaster, signal.SIGKILL)
        until(lambda: acting.status()["mode"] == "CONSERVATIVE")
        ask("ant")
        until(lambda: acting.status()["mode"] == "NORMAL")  # it was started again
        reasons = [change["reason"] for change in acting.status()["changes"] if change["model"] == ""]
        assert reasons[-2:] == ["no forecasts: its process ended (exit code -9)", "forecasts are back"]
        assert acting.status()["forecaster_pid"] != forecaster
        ask("ant")
        os.kill(next(json.loads(file.read_text())["pid"] for file in state.glob("servers/ant/process-*.json")), signal.SIGKILL)
        ask("ant")
        for _ in range(2):
            acting.stop(kill=True)
            acting = Acting(fleet, state, "--unload")
            assert {name: facts["seen"] for name, facts in acting.status()["models"].items()} == asked
            ask("bee")
            ask("cow")
        assert acting.status()["memory_mb"] <= acting.status()["cap_mb"]
    finally:
        acting.stop()
    assert not list(state.glob("servers/*/process-*.json"))  # none is left


def test_a_shadow_counts_the_requests_of_a_server_that_is_not_its_own(bundle: Path, tmp_path: Path) -> None:
    server = Running(bundle, tmp_path / "serve")
    with open(tmp_path / "log", "w") as stream:
        log = Log(stream=stream)
        control = Control(Controller([ModelSpec("tiny", load_s=0.0)]), Shadow(), log=log)
        watch = Watch(control, {}, log)
        try:
            server.wait_ready()
            address = f"http://{server.host}:{server.port}"
            assert watch.look("tiny", address) == 0
            assert [server.call("POST", "/v2/models/tiny/infer", BODY)[0] for _ in range(3)] == [200] * 3
            until(lambda: watch.look("tiny", address) >= 0 and control.status()["models"]["tiny"]["requests"] >= 3)  # the server may count late
            assert control.status()["models"]["tiny"]["requests"] == 3
            server.kill()
            assert watch.look("tiny", address) == 0
        finally:
            watch.close()
            control.close()
            server.kill()
    assert '"event": "server_silent"' in (tmp_path / "log").read_text()
