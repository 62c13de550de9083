"""The HTTP side of `serve`: bounded connections, a bounded queue, metrics, and an end that loses no running request. Standard library."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from fleet.connection import Connection
from fleet.handler import Handler
from fleet.logs import Log
from fleet.metrics import Metrics
from pipeline.errors import ConfigError
from pipeline.records import ReleaseManifest

if TYPE_CHECKING:
    from fleet.host import Served

PROBES = 32
"""Connections taken beyond the limit, for one request each: probes and /metrics are answered also in a crowd, infer is told to come
again. One more is closed at once."""
LATE_SECONDS = 0.2
"""While a drain begins, connections that the kernel already took are accepted; under load that would never end by itself."""
QUIET_SECONDS = 0.1
"""While draining, an open connection may still bring the request its client was sending: the end is a pause this long."""


class Server(ThreadingHTTPServer):
    """Answers `live` from the first moment, and the rest once `served` is set.

    `places`: infer requests that may be inside at once, waiting ones included; one more is told to come again (503).
    `connections`: open ones that are served; each has a thread, so this bounds threads and memory.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, *, places: int, connections: int, log: Log) -> None:
        self.log, self.places, self.connections, self.metrics = log, places, connections, Metrics()
        self.manifest: ReleaseManifest | None = None
        self.served: Served | None = None
        self.draining = False
        self._lock = threading.Lock()
        self._accepting: threading.Thread | None = None
        self._running = self._inside = self._open = 0
        self._beyond: set[Any] = set()
        self._last_ended = 0.0
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                "The server cannot listen",
                where=f"{host}:{port}",
                expected="an address of this machine and a free port",
                got=str(error),
                next="give another --port (0 takes a free one) or --host",
            ) from error

    def start(self) -> None:
        """Accept connections in a thread."""
        self._accepting = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="accept", daemon=True)
        self._accepting.start()

    def server_bind(self) -> None:
        """Bind without the reverse DNS look-up of the standard library, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def idle(self) -> bool:
        """Whether no request is running."""
        with self._lock:
            return self._running == 0

    @property
    def address(self) -> str:
        """`http://host:port` as bound."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """A connection that broke off is no fault of the server; anything else is logged."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            self.log.error("fault", client=client_address[0], fault=f"{type(error).__name__}: {error}")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or close it when all of them and those for probes are taken."""
        with self._lock:
            taken = self._open < self.connections + PROBES
            self._open += taken
            if taken and self._open > self.connections:
                self._beyond.add(request)
        if not taken:
            self.metrics.count("qwarm_connection_rejections_total")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._closed(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._closed(request)

    def _closed(self, request: Any) -> None:
        with self._lock:
            self._open -= 1
            self._beyond.discard(request)

    def beyond(self, request: Any) -> bool:
        """Whether a connection was taken beyond the limit."""
        with self._lock:
            return request in self._beyond

    def answered(self, connection: Connection, status: int, seconds: float) -> None:
        """Count a request that was answered, and log it: at debug when all was well."""
        self.metrics.answered(connection.route, status, seconds)
        level = "debug" if status < 400 else "info" if status < 499 else "error" if status == 500 else "warning"
        self.log.write(
            level, "request", client=connection.client_address[0], method=connection.command, path=connection.path[:200],
            route=connection.route, status=status, ms=round(seconds * 1000.0, 3),
        )  # fmt: skip

    def metrics_page(self) -> str:
        """What /metrics answers."""
        served = self.served
        with self._lock:
            now = {"qwarm_requests_in_flight": self._inside, "qwarm_connections": self._open}
        now["qwarm_ready"] = int(served is not None and not self.draining)
        return self.metrics.render(now, served.session.cache_hits if served is not None else {})

    def serve_warm(self, served: Served) -> None:
        """From now on infer requests are taken."""
        manifest, timings = served.manifest, served.timings_ms
        self.metrics.set("qwarm_bundle_info", 1, name=manifest.name, version=manifest.version, target=served.target)
        for metric, timing in (("verify", "verify"), ("load", "load"), ("warmup", "warm"), ("startup", "ready")):
            self.metrics.set(f"qwarm_{metric}_seconds", timings[timing] / 1000.0)
        self.places += served.session.concurrency
        self.served = served

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A request from its first byte to its answer's last, which a drain waits for."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._last_ended = time.monotonic()

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Take a place in the bounded queue; yields whether there was one."""
        with self._lock:
            taken = self._inside < self.places
            self._inside += taken
        try:
            yield taken
        finally:
            with self._lock:
                self._inside -= taken

    def drain(self, seconds: float) -> bool:
        """Take in what has connected, stop listening, wait for running requests. Returns whether all ended within `seconds`."""
        self.draining = True
        if self._accepting is not None:
            self.shutdown()
        self.timeout = 0
        started = time.monotonic()
        while time.monotonic() - started < LATE_SECONDS and select.select([self.socket], [], [], 0)[0]:
            self.handle_request()
        self.server_close()
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            with self._lock:
                quiet = self._running == 0 and time.monotonic() - max(self._last_ended, started) >= QUIET_SECONDS
            if quiet:
                return True
            time.sleep(0.01)
        return False
