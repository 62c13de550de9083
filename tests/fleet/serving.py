"""A real `serve` process and a small client for it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SOURCE = [sys.executable, "-m", "fleet.main"]
INFER = "/v2/models/tiny/infer"
ZEROS = np.zeros((1, 1, 8, 8), np.float32)


class Running:
    """`serve` on a free port; `program` is how it is started, from the source tree unless told otherwise.

    Without a `key` it takes the bundle unsigned.
    """

    def __init__(self, bundle: Path, state: Path, *options: str, key: Path | None = None, program: list[str] | None = None, cwd: Path = ROOT) -> None:
        self.bundle, self.state, self.program, self.cwd = bundle, state, program or SOURCE, cwd
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [*self.program, "serve", str(bundle), "--port", "0", "--state", str(state), "--json", *options]
        command += ["--key", str(key)] if key else ["--allow-unsigned"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=self.environment)
        self.logs: list[dict[str, Any]] = []
        """What it logged so far; a line that is no JSON object fails the test that reads it."""
        self.reader = threading.Thread(target=self.read_logs, daemon=True)
        self.reader.start()
        until(lambda: self.events("live") or self.process.poll() is not None)
        [live] = self.events("live")
        address = urlsplit(live["address"])
        self.host, self.port = str(address.hostname), int(address.port or 0)

    def read_logs(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.logs.append(dict(json.loads(line)))
            except ValueError:
                self.logs.append({"event": "not JSON", "line": line})

    def events(self, event: str) -> list[dict[str, Any]]:
        """Logged lines of one event."""
        return [line for line in list(self.logs) if line["event"] == event]

    def wait_ready(self) -> dict[str, Any]:
        """What it prints once it is warm."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.logs
        return dict(json.loads(line))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of the same program."""
        return subprocess.run([*self.program, *arguments], capture_output=True, text=True, cwd=self.cwd, env=self.environment)

    def ready(self) -> bool:
        return self.command("ready", str(self.bundle), "--state", str(self.state)).returncode == 0

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=30)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        """Status, parsed JSON and headers of one request on a connection of its own; `body` that is not bytes is sent as JSON."""
        connection = self.connect()
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), dict(answer.getheaders())
        finally:
            connection.close()

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        code = self.process.wait(seconds)
        self.reader.join(seconds)
        assert self.events("not JSON") == []
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join(10)


def until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for `condition()`, failing after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def rows_and_recorded(bundle: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(bundle / "warmup/rows.npz")["image"], np.load(bundle / "targets/openvino-cpu/expected.npz")["logits"]


def body(rows: np.ndarray, **changes: Any) -> dict[str, Any]:
    tensor = {"name": "image", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
    return {"inputs": [{**tensor, **changes}]}


def logits(answer: dict[str, Any]) -> np.ndarray:
    [output] = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])
