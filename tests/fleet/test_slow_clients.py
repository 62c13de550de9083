"""Slow and many clients: each is bounded in time and number, and the others are served meanwhile. In this process, with short deadlines."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import until

from fleet import connection as connections
from fleet import host
from fleet import server as servers
from fleet.logs import Log
from fleet.server import Server
from fleet.verify import verify

INFER = "/v2/models/tiny/infer"


@pytest.fixture(scope="module")
def served(bundle: Path, public_key: Path) -> Iterator[host.Served]:
    loaded = host.load(verify(bundle, public_key))
    yield loaded
    loaded.close()


@pytest.fixture
def server(served: host.Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Three connections are served, two more get one probe each; deadlines of a fraction of a second."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "SEND_SECONDS", "CROWDED_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5)
    monkeypatch.setattr(servers, "PROBES", 2)
    running = Server("127.0.0.1", 0, places=4, connections=3, log=Log(stream=io.StringIO()))
    running.manifest = served.manifest
    running.start()
    running.serve_warm(served)
    yield running
    running.drain(5)


def connect(server: Server) -> socket.socket:
    return socket.create_connection((server.server_name, server.server_port), timeout=20)


def rest(connection: socket.socket) -> bytes:
    """All until the server closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer


def drip(connection: socket.socket, content: bytes) -> float:
    """Send a byte every 0.05 s until the server answers or closes; the seconds that it took."""
    started = time.monotonic()
    connection.setblocking(False)
    for byte in content:
        try:
            connection.send(bytes([byte]))
            if connection.recv(1, socket.MSG_PEEK) is not None:
                break
        except BlockingIOError:
            time.sleep(0.05)
        except ConnectionError:
            break
    connection.setblocking(True)
    connection.settimeout(20)
    return time.monotonic() - started


def test_a_dripped_head_ends(server: Server) -> None:
    with connect(server) as slow:
        assert drip(slow, b"GET /v2/health/live HTTP/1.1\r\n" + b"A: " + b"b" * 400) < 5
        assert b" 408 " in rest(slow)


def test_a_dripped_body_ends_and_the_next_is_served(server: Server) -> None:
    with connect(server) as slow:
        slow.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n" % INFER.encode())
        assert drip(slow, b" " * 400) < 5
        assert b" 408 " in rest(slow)
    rows = np.load(server.served.parts.verified.folder / "warmup/rows.npz")["image"]  # type: ignore[union-attr]
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": rows[:1].ravel().tolist()}
    client = http.client.HTTPConnection(server.server_name, server.server_port, timeout=20)
    client.request("POST", INFER, json.dumps({"inputs": [tensor]}).encode())
    assert client.getresponse().status == 200
    client.close()


def test_a_client_that_does_not_read_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer larger than the kernel's buffers, to a client that takes nothing."""
    monkeypatch.setattr(server, "metrics_page", lambda: "x" * (64 << 20))
    with connect(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: not server.idle, 5)
        until(lambda: server.idle, 5)
    until(lambda: server.metrics._requests[("metrics", 499)] == 1, 5)


def test_a_crowd_is_told_so_and_probes_pass(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(3)]
        until(lambda: server._open == 3, 5)
        probe = connect(server)
        probe.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = rest(probe)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"Connection: close" in answer
        probe.close()
        until(lambda: server._open == 3, 5)
        crowded = connect(server)
        crowded.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % INFER.encode())
        answer = rest(crowded)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        assert b"too many connections: 3 are served" in answer
        crowded.close()
        until(lambda: server._open == 3, 5)
        more = [stack.enter_context(connect(server)) for _ in range(2)]
        until(lambda: server._open == 5, 5)
        assert rest(stack.enter_context(connect(server))) == b""
        page = server.metrics_page()
        assert "qwarm_connection_rejections_total 2" in page
        assert "qwarm_connections 5" in page
        for each in more:  # silent ones beyond the limit are let go soon
            assert rest(each) == b""
        idle[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert rest(idle[0]).startswith(b"HTTP/1.1 200 ")


def test_a_burst_is_served_up_to_the_limit(server: Server) -> None:
    """Who came within the limit is served, however many came right after."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(5)]
        for client in clients:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = [client.recv(65536) for client in clients]
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        assert [b"Connection: close" in answer for answer in answers] == [False] * 3 + [True] * 2


def test_threads_do_not_grow_with_connections(server: Server) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect(server))
        until(lambda: server.metrics._values[("qwarm_connection_rejections_total", ())] >= 45, 10)
        assert threading.active_count() - before <= 5


def test_logs_are_one_object_a_line_and_escape_what_clients_send(server: Server) -> None:
    stream = server.log._stream
    assert isinstance(stream, io.StringIO)
    with connect(server) as client:
        client.sendall(b'GET /x\x1b[31m"\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
        assert b" 404 " in rest(client)
    until(lambda: stream.getvalue(), 5)
    [line] = stream.getvalue().splitlines()
    logged = json.loads(line)
    assert (logged["level"], logged["event"], logged["status"], logged["route"]) == ("info", "request", 404, "other")
    assert line.isprintable()


def test_a_log_that_was_closed_stops_nobody() -> None:
    stream = io.StringIO()
    log = Log("warning", stream)
    log.info("x")
    assert stream.getvalue() == ""
    stream.close()
    log.error("x")
