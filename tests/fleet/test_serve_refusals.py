"""`serve` and requests that cannot be: each gets one error in JSON, and the server goes on."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from serving import INFER, ZEROS, Running, body

BAD: dict[str, tuple[int, str, str, Any, dict[str, str]]] = {
    "malformed-json": (400, "POST", INFER, b'{"inputs": [', {}),
    "not-utf8": (400, "POST", INFER, b"\xff\xfe\x00", {}),
    "nan": (400, "POST", INFER, b'{"inputs": [{"name": "image", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', {}),
    "infinite": (400, "POST", INFER, body(ZEROS, data=[1e39] * 64), {}),
    "wrong-name": (400, "POST", INFER, body(ZEROS, name="picture"), {}),
    "wrong-datatype": (400, "POST", INFER, body(ZEROS, datatype="FP64"), {}),
    "wrong-shape": (400, "POST", INFER, body(ZEROS, shape=[1, 8, 8]), {}),
    "wrong-count": (400, "POST", INFER, body(ZEROS, data=[0.0] * 63), {}),
    "batch-too-large": (400, "POST", INFER, body(np.zeros((5, 1, 8, 8))), {}),
    "batch-empty": (400, "POST", INFER, body(np.zeros((0, 1, 8, 8))), {}),
    "unknown-output": (400, "POST", INFER, body(ZEROS) | {"outputs": [{"name": "x"}]}, {}),
    "unknown-model": (404, "POST", "/v2/models/other/infer", body(ZEROS), {}),
    "unknown-version": (404, "POST", "/v2/models/tiny/versions/9/infer", body(ZEROS), {}),
    "unknown-path": (404, "GET", "/metrics-of-someone-else", None, {}),
    "get-infer": (405, "GET", INFER, None, {}),
    "post-ready": (405, "POST", "/v2/health/ready", b"{}", {}),
    "unknown-method": (501, "DELETE", INFER, None, {}),
    "too-large": (413, "POST", INFER, b"[" * 200_000, {}),
    "compressed": (415, "POST", INFER, b"\x1f\x8b", {"Content-Encoding": "gzip"}),
    "binary-extension": (415, "POST", INFER, b"{}0000", {"Inference-Header-Content-Length": "2"}),
    "length-no-number": (400, "POST", INFER, None, {"Content-Length": "ten"}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(running: Running, name: str) -> None:
    expected, method, path, content, headers = BAD[name]
    status, answer, _ = running.call(method, path, content, headers)
    assert status == expected
    assert list(answer) == ["error"]
    assert answer["error"]
    assert "Traceback" not in answer["error"]
    assert running.call("GET", "/v2/health/ready")[0] == 200


def raw(running: Running, content: bytes) -> bytes:
    """Send bytes as they are and read until the server closes."""
    with socket.create_connection((running.host, running.port), timeout=30) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\n\r\n", b" 411 "),
        (b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b" 411 "),
        (b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{}", b" 400 "),
        (b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b" 413 "),
        (b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b" 400 "),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", b" 400 "),
        (b"GET //[x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 404 "),
        (b"GARBAGE\r\n\r\n", b'"error"'),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b" 431 "),
    ],
    ids=["no-length", "chunked", "short", "huge", "two-lengths", "get-with-body", "odd-path", "garbage", "long-path", "many-headers"],
)
def test_raw_bad_requests(running: Running, content: bytes, status: bytes) -> None:
    assert status in raw(running, content)
    assert running.call("GET", "/v2/health/live")[0] == 200
