"""Shadow mode's eyes: reads how many infer requests servers have counted on their /metrics, and tells the controller. Standard library only."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from fleet.control import Control
from fleet.logs import Log

EVERY_S = 1.0
TIMEOUT_S = 2.0
MOST_BYTES = 4 << 20
MOST_NEW = 10_000
"""Requests in one reading; more is a counter that was set anew."""
SERVE = re.compile(r'^qwarm_requests_total\{[^}]*route="infer"[^}]*\} ([0-9.e+]+)$', re.MULTILINE)
TRITON = r'^nv_inference_request_success\{{[^}}]*model="{}"[^}}]*\}} ([0-9.e+]+)$'


def counted(page: str, model: str) -> float:
    """Infer requests of `model` that a page of `qwarm serve` or of Triton counts; neither has a line before the first."""
    found = SERVE.findall(page) or re.findall(TRITON.format(re.escape(model)), page, re.MULTILINE)
    return sum(map(float, found))


class Watch:
    """A thread that reads each server of `addresses` (model to `http://host:port`) every second."""

    def __init__(self, control: Control, addresses: Mapping[str, str], log: Log) -> None:
        self.control, self.addresses, self.log = control, dict(addresses), log
        self._seen: dict[str, float] = {}
        self._silent: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            for name, address in self.addresses.items():
                self.look(name, address)

    def look(self, name: str, address: str) -> int:
        """Read one server; returns how many requests were new. A server that does not answer is logged once, and again when it does."""
        try:
            page = read_page(address)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if name not in self._silent:
                self._silent.add(name)
                self.log.warning("server_silent", model=name, address=address, reason=f"{type(error).__name__}: {error}")
            return 0
        if name in self._silent:
            self._silent.discard(name)
            self.log.info("server_answers", model=name, address=address)
        total = counted(page, name)
        before = self._seen.get(name)
        self._seen[name] = total
        new = 0 if before is None else int(total - before if total >= before else total)
        new = min(new, MOST_NEW)
        self.control.saw(name, new)
        return new

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(10.0)


def read_page(address: str) -> str:
    """GET /metrics; raises OSError, HTTPException or ValueError."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        content = answer.read(MOST_BYTES)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return content.decode()
    finally:
        connection.close()
