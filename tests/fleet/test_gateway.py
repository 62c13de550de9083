"""The gateway on servers of a test's own: what it refuses, what it waits for, and what a silent or slow server costs."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fleet.gateway
from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Event
from fleet.gateway import Gateway
from fleet.logs import Log
from fleet.models import Action, Kind, ModelSpec


class Answers(BaseHTTPRequestHandler):
    """A stand-in for `serve`, where what matters is the gateway: answers 200, or as the path's model is named."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 400 if "refuses" in self.path else 200
        content = json.dumps({"error": "bad input"} if status == 400 else {"echo": json.loads(body)}).encode()
        if "slow" in self.path:
            threading.Event().wait(4.0)
        if "dies" in self.path or "slow" in self.path:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Ready:
    """A driver whose servers are one stand-in, loaded at once; `broken` never loads."""

    def __init__(self, url: str) -> None:
        self.url, self.events, self.loads = url, list[Event](), 0

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:  # noqa: ARG002
        self.loads += action.kind is Kind.LOAD
        bad = spec.name == "broken"
        self.events.append(
            Event(spec.name, "unloaded") if action.kind is not Kind.LOAD else Event(spec.name, "failed", "no") if bad else Event(spec.name, "loaded")
        )

    def poll(self, now: float) -> list[Event]:  # noqa: ARG002
        events, self.events = self.events, []
        return events

    def address(self, name: str) -> str | None:  # noqa: ARG002
        return self.url

    def answering(self) -> AbstractContextManager[None]:
        return nullcontext()

    def found(self) -> list[str]:
        return []

    def close(self, unload: bool) -> None:
        """Nothing is held."""


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(fleet.gateway, "ANSWER_S", 2.0)
    monkeypatch.setattr(fleet.gateway, "WAIT_S", 20.0)
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    names = ("well", "refuses", "slow", "dies", "broken")
    with open(tmp_path / "log", "w") as stream:
        log = Log("error", stream=stream)
        control = Control(Controller([ModelSpec(name, load_s=0.1) for name in names]), Ready(f"http://127.0.0.1:{upstream.server_port}"), log=log)
        made = Gateway("127.0.0.1", 0, control, log=log)
        made.start()
        yield made
        made.drain(5.0)
        control.close()
    upstream.shutdown()
    upstream.server_close()


def call(gateway: Gateway, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(gateway.server_name, gateway.server_port, timeout=30)
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, json.loads(content) if content.startswith("{") else content


@pytest.mark.parametrize(
    ("model", "status", "told"),
    [
        ("well", 200, {"echo": [1]}),
        ("refuses", 400, "bad input"),
        ("slow", 504, "no answer"),
        ("dies", 502, "died 3 times"),
        ("absent", 404, "no such model"),
    ],
)
def test_answers_and_refusals_are_passed_on(gateway: Gateway, model: str, status: int, told: Any) -> None:
    found, content = call(gateway, "POST", f"/v2/models/{model}/infer", [1])
    assert found == status, content
    assert content == told if status == 200 else told in content["error"]
    assert gateway.control.status()["models"].get(model, {}).get("users", 0) == 0


def test_a_model_that_does_not_load_is_told_and_not_waited_for_forever(gateway: Gateway) -> None:
    status, content = call(gateway, "POST", "/v2/models/broken/infer", [1])
    assert (status, content["error"]) == (503, "The model does not get warm")


def test_probes_status_and_metrics(gateway: Gateway) -> None:
    assert call(gateway, "GET", "/v2/models/well/ready")[0] == 503
    assert call(gateway, "POST", "/v2/models/well/infer", [1])[0] == 200
    assert call(gateway, "GET", "/v2/models/well/ready") == (200, {"ready": True})
    for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200), ("/v2", 200), ("/v2/models/absent/ready", 404), ("/elsewhere", 404)):
        assert call(gateway, "GET", path)[0] == status
    assert call(gateway, "POST", "/v2/fleet", [])[0] == 404
    _, facts = call(gateway, "GET", "/v2/fleet")
    assert facts["models"]["well"]["phase"] == "WARM"
    _, page = call(gateway, "GET", "/metrics")
    samples = {
        (sample.name, sample.labels.get("model")): sample.value for family in text_string_to_metric_families(page) for sample in family.samples
    }
    assert samples["qwarm_cold_starts_total", "well"] == 1
    assert samples["qwarm_model_warm", "well"] == 1


def test_requests_at_once_load_a_model_once(gateway: Gateway) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(call(gateway, "POST", "/v2/models/well/infer", [1])[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 8
    assert gateway.control.driver.loads == 1  # type: ignore[attr-defined]
