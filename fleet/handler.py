"""One HTTP connection of `serve`: Open Inference Protocol v2 paths, status codes, and JSON errors for whatever comes in."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fleet import __version__
from fleet.protocol import body_limit, metadata, parse_infer, render_infer
from pipeline.errors import InputError

if TYPE_CHECKING:
    from fleet.host import Served
    from fleet.server import Server

IDLE_SECONDS = 30.0
"""A connection that sends nothing for so long is closed; a body must be whole within it."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 8 << 20
"""How long and how much of an unwanted body is read away, so that the client sees the answer and not a reset."""
RETRY = {"Retry-After": "1"}


class Problem(Exception):
    """An HTTP status and its reason."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


def one_line(error: InputError) -> str:
    """An error's facts without line breaks, for a JSON string."""
    return "; ".join(" ".join(line.split()) for line in str(error).splitlines())


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection, one after the other."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    unread = True
    """Whether the request has a body that was not read, so that the connection cannot be used again."""

    def handle_one_request(self) -> None:
        """Wait for a first byte, then count the request as running until its answer is out."""
        try:
            if not self.rfile.peek(1):  # type: ignore[attr-defined]
                self.close_connection = True
                return
        except (TimeoutError, ConnectionError):
            self.close_connection = True
            return
        self.unread = True
        with self.server.running():
            super().handle_one_request()

    def handle_expect_100(self) -> bool:
        """`100 Continue` must leave at once, not wait in the write buffer."""
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def answer(self, method: str) -> None:
        """Dispatch, and turn every failure into a status with `{"error": ...}`."""
        try:
            self.send_json(200, self.dispatch(method))
        except Problem as problem:
            self.send_problem(problem)
        except InputError as error:
            self.send_problem(Problem(400, one_line(error)))
        except (TimeoutError, ConnectionError):
            raise
        except Exception as error:  # a fault of ours: the client learns that, the log learns which
            self.server.log(f"{method} {self.path}: {type(error).__name__}: {error}")
            self.send_problem(Problem(500, "internal error; the server's log says more"))

    def dispatch(self, method: str) -> bytes | dict[str, Any]:
        """The answer's body; raises Problem or InputError."""
        self.unread = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        action = self.action(path)
        allowed = "POST" if action == "infer" else "GET"
        if method != allowed:
            raise Problem(405, f"{self.path} takes {allowed}", {"Allow": allowed})
        if action == "infer":
            return self.infer()
        if self.unread:
            raise Problem(400, "a GET request has no body")
        if action == "live":
            return {"live": True}
        if action == "server":
            return {"name": "qwarm", "version": __version__, "extensions": []}
        served = self.warm()
        if action == "ready" and self.server.draining:
            raise Problem(503, "not ready: the server drains")
        return {"ready": True} if action == "ready" else metadata(served.manifest, served.target)

    def action(self, path: list[str]) -> str:
        """What a path asks for; raises 404 for another path, model or version."""
        match path:
            case ["v2"]:
                return "server"
            case ["v2", "health", ("live" | "ready") as probe]:
                return probe
            case ["v2", "models", name, *rest]:
                manifest = self.server.manifest or self.warm().manifest
                if name != manifest.name:
                    raise Problem(404, f"unknown model {name!r}: this server has {manifest.name!r}")
                if rest[:1] == ["versions"] and len(rest) > 1:
                    if rest[1] != manifest.version:
                        raise Problem(404, f"unknown version {rest[1]!r}: this server has {manifest.version!r}")
                    rest = rest[2:]
                if not rest:
                    return "model"
                if rest in (["ready"], ["infer"]):
                    return rest[0]
        raise Problem(404, f"no such path: {self.path}")

    def warm(self) -> Served:
        """The warm engine; raises 503 before there is one."""
        served = self.server.served
        if served is None:
            raise Problem(503, "not ready: the engine is loading and warming", RETRY)
        return served

    def infer(self) -> bytes:
        """Body in, tensors through the engine, body out."""
        served = self.warm()
        body = self.body(body_limit(served.manifest))
        with self.server.place() as taken:
            if not taken:
                raise Problem(503, f"the queue is full: {self.server.places} requests are inside", RETRY)
            request = parse_infer(body, served.manifest)
            outputs = served.infer(request.inputs)
            try:
                return render_infer(served.manifest, request, outputs)
            except ValueError as error:
                raise Problem(500, "an output of the model is not finite for this input") from error

    def body(self, limit: int) -> bytes:
        """The request's body, whole; raises 411, 400, 413, 415 or 408."""
        if "Transfer-Encoding" in self.headers or "Content-Length" not in self.headers:
            raise Problem(411, "Content-Length is needed")
        length = self.headers["Content-Length"]
        if not (length.isascii() and length.isdigit()) or len(self.headers.get_all("Content-Length", [])) != 1:
            raise Problem(400, f"Content-Length is not a number: {length!r}")
        if int(length) > limit:
            raise Problem(413, f"the body has {length} bytes, and the largest batch needs at most {limit}")
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise Problem(415, "compressed bodies are not taken: send plain JSON")
        if "Inference-Header-Content-Length" in self.headers:
            raise Problem(415, "the binary tensor extension is not served: send tensors as JSON")
        remaining, parts, deadline = int(length), [], time.monotonic() + IDLE_SECONDS
        while remaining:
            try:
                part = self.rfile.read1(min(remaining, 1 << 16))
            except TimeoutError:
                part = None
            if part is None or time.monotonic() > deadline:
                raise Problem(408, f"the body did not arrive within {IDLE_SECONDS:g} s")
            if not part:
                raise Problem(400, f"the body ended {remaining} bytes early")
            parts.append(part)
            remaining -= len(part)
        self.unread = False
        return b"".join(parts)

    def send_json(self, status: int, content: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send status, headers and a JSON body in one piece."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        if self.server.draining:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def send_problem(self, problem: Problem) -> None:
        """Send `{"error": ...}`; after an unread body, close once the client had time to read it."""
        self.close_connection = self.close_connection or self.unread
        self.send_json(problem.status, {"error": str(problem)}, problem.headers)
        if self.unread:
            self.linger()

    def linger(self) -> None:
        """Half-close and read away what still comes: closing at once would reset the connection and lose the answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_SECONDS)
            deadline, left = time.monotonic() + LINGER_SECONDS, LINGER_BYTES
            while left > 0 and time.monotonic() < deadline and (part := self.rfile.read1(1 << 16)):
                left -= len(part)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses itself (a bad request line, an unknown method) gets a JSON error too."""
        self.send_problem(Problem(code, message or explain or self.responses.get(code, ("error",))[0]))

    def version_string(self) -> str:
        """The Server header."""
        return f"qwarm/{__version__}"

    def log_message(self, format: str, *args: Any) -> None:
        """No line for each request: it would cost more than a small inference."""
