"""What `serve` answers: Open Inference Protocol v2 paths, /metrics, and a status with a JSON error for whatever else comes in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fleet import __version__
from fleet.connection import Connection, Problem
from fleet.metrics import CONTENT_TYPE
from fleet.protocol import body_limit, metadata, parse_infer, render_infer
from pipeline.errors import InputError

if TYPE_CHECKING:
    from fleet.host import Served

RETRY = {"Retry-After": "1"}


def one_line(error: InputError) -> str:
    """An error's facts without line breaks, for a JSON string."""
    return "; ".join(" ".join(line.split()) for line in str(error).splitlines())


class Handler(Connection):
    """Dispatches by path; `route` names what a path asked for in metrics and logs."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def answer(self, method: str) -> None:
        """Dispatch, and turn every failure into a status with `{"error": ...}`."""
        try:
            content = self.dispatch(method)
            if isinstance(content, str):
                self.send(200, content.encode(), CONTENT_TYPE)
            else:
                self.send(200, content if isinstance(content, bytes) else json.dumps(content).encode())
        except Problem as problem:
            self.send_problem(problem)
        except InputError as error:
            self.send_problem(Problem(400, one_line(error)))
        except (TimeoutError, ConnectionError):
            raise
        except Exception as error:  # a fault of ours: the client learns that, the log learns which
            if self.answered:
                raise
            self.server.log.error("fault", method=method, path=self.path[:200], fault=f"{type(error).__name__}: {error}")
            self.send_problem(Problem(500, "internal error; the server's log says more"))

    def dispatch(self, method: str) -> bytes | str | dict[str, Any]:
        """The answer's body, text when it is metrics and JSON otherwise; raises Problem or InputError."""
        self.unread = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        self.route = action = self.action(path)
        allowed = "POST" if action == "infer" else "GET"
        if method != allowed:
            raise Problem(405, f"{self.path[:200]} takes {allowed}", {"Allow": allowed})
        if action == "infer":
            return self.infer()
        if self.unread:
            raise Problem(400, "a GET request has no body")
        if action == "live":
            return {"live": True}
        if action == "server":
            return {"name": "qwarm", "version": __version__, "extensions": []}
        if action == "metrics":
            return self.server.metrics_page()
        served = self.warm()
        if action == "ready" and self.server.draining:
            raise Problem(503, "not ready: the server drains")
        return {"ready": True} if action == "ready" else metadata(served.manifest, served.target)

    def action(self, path: list[str]) -> str:
        """What a path asks for; raises 404 for another path, model or version."""
        match path:
            case ["metrics"]:
                return "metrics"
            case ["v2"]:
                return "server"
            case ["v2", "health", ("live" | "ready") as probe]:
                return probe
            case ["v2", "models", name, *rest]:
                manifest = self.server.manifest or self.warm().manifest
                if name != manifest.name:
                    raise Problem(404, f"unknown model {name[:200]!r}: this server has {manifest.name!r}")
                if rest[:1] == ["versions"] and len(rest) > 1:
                    if rest[1] != manifest.version:
                        raise Problem(404, f"unknown version {rest[1][:200]!r}: this server has {manifest.version!r}")
                    rest = rest[2:]
                if not rest:
                    return "model"
                if rest in (["ready"], ["infer"]):
                    return rest[0]
        raise Problem(404, f"no such path: {self.path[:200]}")

    def warm(self) -> Served:
        """The warm engine; raises 503 before there is one."""
        served = self.server.served
        if served is None:
            raise Problem(503, "not ready: the engine is loading and warming", RETRY)
        return served

    def infer(self) -> bytes:
        """Body in, tensors through the engine, body out."""
        served = self.warm()
        if self.crowded:
            self.server.metrics.count("qwarm_connection_rejections_total")
            raise Problem(503, f"too many connections: {self.server.connections} are served at once", RETRY)
        body = self.body(body_limit(served.manifest))
        with self.server.place() as taken:
            if not taken:
                self.server.metrics.count("qwarm_queue_rejections_total")
                raise Problem(503, f"the queue is full: {self.server.places} requests are inside", RETRY)
            request = parse_infer(body, served.manifest)
            outputs = served.infer(request.inputs)
            try:
                return render_infer(served.manifest, request, outputs)
            except ValueError as error:
                raise Problem(500, "an output of the model is not finite for this input") from error
