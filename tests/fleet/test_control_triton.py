"""The controller in front of a real `tritonserver`: three models, memory for two, loads that fail, a server that is killed and comes back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from serving import until
from tritonserver import TritonServer

from fleet.control import Control
from fleet.controller import Controller
from fleet.gateway import Gateway
from fleet.logs import Log
from fleet.models import ModelSpec
from fleet.triton import Triton

FACTORS = {"one": 1.0, "two": 2.0, "three": 3.0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TritonServer]:
    made = TritonServer(tmp_path / "triton")
    for name, factor in FACTORS.items():
        made.add(name, factor=factor)
    made.add("broken", factor=1.0, fault='raise ValueError("out of memory, as if")')
    made.start()
    yield made
    made.stop()


def ask(gateway: Gateway, name: str) -> tuple[int, Any]:
    """Status, and the answer to [1, 2] or the error."""
    connection = http.client.HTTPConnection(gateway.server_name, gateway.server_port, timeout=90)
    body = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]})
    connection.request("POST", f"/v2/models/{name}/infer", body)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told["outputs"][0]["data"] if answer.status == 200 else told["error"]


def ready(driver: Triton, name: str) -> bool:
    """What the server says; not ready while it is being started."""
    try:
        return driver.ready(name)
    except grpc.RpcError:
        return False


def test_three_models_in_memory_for_two(server: TritonServer, tmp_path: Path) -> None:
    specs = [ModelSpec(name, weights_mb=100.0, load_s=1.0) for name in (*FACTORS, "broken")]
    driver = Triton(f"127.0.0.1:{server.grpc}", f"http://127.0.0.1:{server.http}")
    log = Log(stream=open(tmp_path / "control.log", "w"))  # noqa: SIM115
    controller = Controller(specs, cap_mb=250.0, log=log.info)
    control = Control(controller, driver, state=tmp_path / "state", log=log)
    gateway = Gateway("127.0.0.1", 0, control, log=log)
    gateway.start()
    try:
        # the server may still be starting: loads are tried again until it answers
        for name in ("one", "two", "three", "one", "one", "three"):
            status, told = ask(gateway, name)
            assert (status, told) == (200, [FACTORS[name], 2.0 * FACTORS[name]]), (told, server.log())
            assert control.status()["memory_mb"] <= 250.0
            assert sum(ready(driver, other) for other in FACTORS) <= 2
        facts = control.status()["models"]
        assert sum(model["evictions"] for model in facts.values()) >= 1
        assert facts["one"]["cold"] >= 1
        status, told = ask(gateway, "broken")
        assert status == 503, told
        assert "out of memory, as if" in (tmp_path / "control.log").read_text()
        assert ask(gateway, "absent")[0] == 404
        controller.forecasts.kill("by a test")
        until(lambda: control.status()["mode"] == "CONSERVATIVE")
        assert ask(gateway, "one") == (200, [1.0, 2.0])
        server.kill()
        assert ask(gateway, "three") == (200, [3.0, 6.0]), server.log()
        until(lambda: not ready(driver, "two") or control.status()["models"]["two"]["phase"] == "WARM")
    finally:
        gateway.drain(5.0)
        control.close(unload=True)
        log._stream.close()  # type: ignore[union-attr]
