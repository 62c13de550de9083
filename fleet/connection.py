"""One HTTP connection of `serve`: deadlines for whatever is slow, answers in one piece, and a close that loses none. Standard library."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from fleet import __version__

if TYPE_CHECKING:
    from fleet.server import Server

IDLE_SECONDS = 30.0
"""A connection on which no request begins for so long is closed."""
HEAD_SECONDS, BODY_SECONDS, SEND_SECONDS = 10.0, 30.0, 30.0
"""Most time for a request's head from its first byte, for its body, and for a client to take the answer: totals, so that a
client which sends or reads a byte now and then cannot hold a thread for longer."""
CROWDED_SECONDS = 1.0
"""What a connection beyond the limit gets instead of IDLE_SECONDS and HEAD_SECONDS."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 8 << 20
"""How long and how much of an unwanted body is read away, so that the client sees the answer and not a reset."""
CLIENT_GONE = 499
"""Counted, not sent: the client closed before it had the answer (nginx' number)."""


class Problem(Exception):
    """An HTTP status and its reason."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class TimedReader(io.RawIOBase):
    """Bytes of a socket until a moment that is set for all reads together; raises TimeoutError after it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.until = connection, math.inf

    def allow(self, seconds: float) -> None:
        """Reads may take until `seconds` from now, all together."""
        self.until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Connection(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other; a subclass has the `do_` methods and sets `route`."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.reader = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self.reader, 1 << 16)
        self.answer_buffer = self.wfile = io.BytesIO()
        self.crowded = self.server.beyond(self.request)

    def handle_one_request(self) -> None:
        """Wait for a first byte, then count the request as running until its answer is out."""
        self.reader.allow(CROWDED_SECONDS if self.crowded else IDLE_SECONDS)
        try:
            first = self.rfile.peek(1)  # type: ignore[attr-defined]
        except (TimeoutError, ConnectionError):
            first = b""
        if not first:
            self.close_connection = True
            return
        self.unread, self.answered, self.route, self.started = True, False, "other", time.perf_counter()
        self.requestline = self.request_version = self.command = ""
        self.path = "?"
        self.reader.allow(CROWDED_SECONDS if self.crowded else HEAD_SECONDS)
        with self.server.running():
            super().handle_one_request()

    def parse_request(self) -> bool:
        """As the standard library does it; on a connection beyond the limit the request is the last."""
        parsed = super().parse_request()
        if self.crowded:
            self.close_connection = True
        return parsed

    def handle_expect_100(self) -> bool:
        """`100 Continue` must leave at once, before the body comes."""
        proceed = super().handle_expect_100()
        self.flush_answer()
        return proceed

    def body(self, limit: int) -> bytes:
        """The request's body, whole; raises 411, 400, 413, 415 or 408."""
        if "Transfer-Encoding" in self.headers or "Content-Length" not in self.headers:
            raise Problem(411, "Content-Length is needed")
        length = self.headers["Content-Length"]
        if not (length.isascii() and length.isdigit()) or len(self.headers.get_all("Content-Length", [])) != 1:
            raise Problem(400, f"Content-Length is not a number: {length[:80]!r}")
        if len(length) > 18 or int(length) > limit:
            raise Problem(413, f"the body has {length[:18]} bytes, and the largest batch needs at most {limit}")
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise Problem(415, "compressed bodies are not taken: send plain JSON")
        if "Inference-Header-Content-Length" in self.headers:
            raise Problem(415, "the binary tensor extension is not served: send tensors as JSON")
        self.reader.allow(BODY_SECONDS)
        try:
            content = self.rfile.read(int(length))
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        if len(content) < int(length):
            raise Problem(400, f"the body ended {int(length) - len(content)} bytes early")
        self.unread = False
        return content

    def send(self, status: int, body: bytes, content_type: str = "application/json", headers: dict[str, str] | None = None) -> None:
        """Send status, headers and body in one piece; counts and logs the request."""
        self.answered = True
        if self.server.draining:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        try:
            self.flush_answer()
        except OSError:
            status = CLIENT_GONE
            raise
        finally:
            self.server.answered(self, status, time.perf_counter() - self.started)

    def flush_answer(self) -> None:
        """Put on the wire what was written; raises OSError when the client is gone or does not read."""
        content = self.answer_buffer.getvalue()
        self.answer_buffer.seek(0)
        self.answer_buffer.truncate()
        self.connection.settimeout(SEND_SECONDS)
        self.connection.sendall(content)

    def send_problem(self, problem: Problem) -> None:
        """Send `{"error": ...}`; after an unread body, close once the client had time to read it."""
        self.close_connection = self.close_connection or self.unread
        self.send(problem.status, json.dumps({"error": str(problem)}).encode(), headers=problem.headers)
        if self.unread:
            self.linger()

    def linger(self) -> None:
        """Half-close and read away what still comes: closing at once would reset the connection and lose the answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.reader.allow(LINGER_SECONDS)
            left = LINGER_BYTES
            while left > 0 and (part := self.rfile.read1(1 << 16)):
                left -= len(part)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses itself (a bad request line, an unknown method) gets a JSON error too."""
        self.send_problem(Problem(code, message or explain or self.responses.get(code, ("error",))[0]))

    def version_string(self) -> str:
        """The Server header."""
        return f"qwarm/{__version__}"

    def log_error(self, *_: Any) -> None:
        """The standard library calls this when reading or sending took too long, and only then: a slow head gets its answer."""
        if not self.answered:
            self.send_problem(Problem(408, f"the request's head did not arrive within {HEAD_SECONDS:g} s"))

    def log_message(self, format: str, *args: Any) -> None:
        """The server logs (`Server.answered`)."""
