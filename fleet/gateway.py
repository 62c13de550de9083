"""The controller's front door: takes infer requests for every model, has it warmed, passes them on and the answer back. Standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

from fleet import __version__
from fleet.connection import Problem
from fleet.control import Control
from fleet.fleet_metrics import fleet_page
from fleet.handler import Handler
from fleet.logs import Log
from fleet.models import Phase
from fleet.server import Server
from pipeline.errors import InputError, TrialError

WAIT_S = 60.0
"""Longest wait for a model to get warm; the client is told to come again after it."""
ANSWER_S = 60.0
BODY_BYTES = 64 << 20
TRIES = 3
"""A server that dies under a request is loaded again and asked again so often: inference changes nothing, so asking twice is safe."""


class Upstream(threading.local):
    """This thread's kept-alive connections by address."""

    def __init__(self) -> None:
        self.open: dict[str, http.client.HTTPConnection] = {}

    def ask(self, address: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body; raises OSError or HTTPException when the server does not answer. A connection that went stale is opened anew once."""
        for fresh in (False, True):
            connection = self.open.pop(address, None)
            if connection is None or fresh:
                url = urlsplit(address)
                connection, fresh = http.client.HTTPConnection(str(url.hostname), url.port, timeout=ANSWER_S), True
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if fresh:
                    raise
                continue
            if answer.will_close:
                connection.close()
            else:
                self.open[address] = connection
            return answer.status, content
        raise AssertionError("unreachable")


class GatewayHandler(Handler):
    """/v2/models/NAME/infer, readiness of the gateway and of models, /metrics, and /v2/fleet: everything that the controller knows."""

    server: Gateway

    def dispatch(self, method: str) -> bytes | str | dict[str, Any]:
        """The answer's body."""
        self.unread = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        control = self.server.control
        parts = self.path.partition("?")[0].strip("/").split("/")
        if method == "POST":
            if len(parts) < 4 or parts[:2] != ["v2", "models"] or parts[-1] != "infer":
                raise Problem(404, f"no such path: {self.path[:200]}")
            self.route = "infer"
            return self.pass_on(parts[2])
        self.route = parts[-1] if parts[-1] in ("live", "ready", "metrics", "fleet") else "other"
        if self.unread:
            raise Problem(400, "a GET request has no body")
        match parts:
            case ["metrics"]:
                return self.server.metrics_page() + fleet_page(control.status())
            case ["v2"]:
                return {"name": "qwarm-fleet", "version": __version__, "extensions": []}
            case ["v2", "fleet"]:
                return control.status()
            case ["v2", "health", "live"]:
                return {"live": True}
            case ["v2", "health", "ready"]:
                if self.server.draining:
                    raise Problem(503, "not ready: the gateway drains")
                return {"ready": True}
            case ["v2", "models", name, "ready"]:
                models = control.status()["models"]
                if name not in models:
                    raise Problem(404, f"unknown model {name[:200]!r}")
                if models[name]["phase"] != Phase.WARM.name:
                    raise Problem(503, "not warm; a request warms it")
                return {"ready": True}
        raise Problem(404, f"no such path: {self.path[:200]}")

    def pass_on(self, name: str) -> bytes:
        """The server's answer; asks again when it dies meanwhile."""
        if self.crowded:
            raise Problem(503, "too many connections", {"Retry-After": "1"})
        body = self.body(BODY_BYTES)
        with self.server.place() as taken:
            if not taken:
                raise Problem(503, "the queue is full", {"Retry-After": "1"})
            try:
                with self.server.control.using(name, WAIT_S) as warm:
                    for _ in range(TRIES):
                        address = warm()
                        try:
                            with self.server.control.driver.answering():
                                status, content = self.server.upstream.ask(address, self.path, body)
                        except TimeoutError as error:  # it is slow, which is no reason to end what others wait for
                            raise Problem(504, f"no answer within {ANSWER_S:g} s") from error
                        except (OSError, http.client.HTTPException) as error:
                            self.server.control.lost(name, f"{type(error).__name__}: {error}", address)
                            continue
                        if status == 200:
                            return content
                        raise Problem(status, _reason(content))
            except InputError as error:
                raise Problem(404, error.what) from error
            except TrialError as error:
                raise Problem(503, error.what, {"Retry-After": "5"}) from error
        raise Problem(502, f"the server of {name} died {TRIES} times under this request")


def _reason(content: bytes) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(content).get("error", ""))
    return "the server refused"


class Gateway(Server):
    """A bounded HTTP server (see `Server`) in front of a `Control`."""

    def __init__(self, host: str, port: int, control: Control, *, places: int = 256, connections: int = 256, log: Log | None = None) -> None:
        super().__init__(host, port, places=places, connections=connections, log=log or Log())
        self.control, self.upstream = control, Upstream()
        self.RequestHandlerClass = GatewayHandler
