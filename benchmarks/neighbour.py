"""Does a model's load slow the requests of a model beside it? Two real `qwarm serve` processes behind a real `qwarm control`, in pairs of rounds.

A client asks the neighbour for some seconds, once with nothing else going on and once while the other model is loaded again and again in the
background (as the controller loads ahead of demand); rounds take turns in changing order. The figure is the median over pairs of the ratio of p99.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import folder_last  # noqa: F401
import numpy as np

from fleet.drivers import ServeProcesses
from fleet.models import Action, Kind, ModelSpec

ROOT = Path(__file__).resolve().parents[1]
PAIRS, ROUND_S, PAUSE_S = 9, 4.0, 0.005
BODY = json.dumps({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}).encode()


def bundles(folder: Path) -> list[Path]:
    """Two tiny bundles, made as the tests make theirs: a real engine, hand-made evidence."""
    sys.path.insert(0, str(ROOT / "tests" / "fleet"))
    import tiny

    parts = tiny.make_parts(folder / "parts")
    return [tiny.pack(parts, folder / name, name=name) for name in ("neighbour", "other")]


class Client:
    """One kept-alive connection that asks every PAUSE_S."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self.connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=30)

    def ask(self) -> float:
        """Milliseconds of one request; raises RuntimeError when it is not answered well."""
        started = time.perf_counter()
        self.connection.request("POST", "/v2/models/neighbour/infer", BODY)
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        return (time.perf_counter() - started) * 1000.0

    def round(self) -> float:
        """p99 in ms of ROUND_S seconds."""
        end, samples = time.monotonic() + ROUND_S, []
        while time.monotonic() < end:
            samples.append(self.ask())
            time.sleep(PAUSE_S)
        return float(np.quantile(samples, 0.99))


class Loading:
    """Loads and unloads the other model until the block ends, through the controller's driver and at its background priority."""

    def __init__(self, driver: ServeProcesses, spec: ModelSpec) -> None:
        self.driver, self.spec, self.loads = driver, spec, 0
        self._stop = threading.Event()

    def __enter__(self) -> Loading:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for kind, wanted in ((Kind.LOAD, "loaded"), (Kind.UNLOAD, "unloaded")):
                self.driver.begin(Action(kind, self.spec.name), self.spec, time.time())
                while not any(event.name == self.spec.name and event.what == wanted for event in self.driver.poll(time.time())):
                    time.sleep(0.02)
            self.loads += 1


def measure(folder: Path, log: Callable[[str], Any]) -> float:
    """The median ratio of the neighbour's p99, loading over quiet."""
    first, second = bundles(folder)
    fleet = folder / "fleet.json"
    fleet.write_text(json.dumps({"models": [{"name": "neighbour", "bundle": str(first), "weights_mb": 100, "load_s": 1, "pinned": True}]}))
    command = [sys.executable, "-m", "fleet.main", "control", str(fleet), "--state", str(folder / "state"), "--port", "0", "--act", "--unload"]
    control = subprocess.Popen([*command, "--allow-unsigned", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    assert control.stdout is not None
    other = ServeProcesses(folder / "other-state", allow_unsigned=True)
    try:
        client = Client(json.loads(control.stdout.readline())["address"])
        for _ in range(200):
            client.ask()
        ratios, loads = [], 0
        for pair in range(PAIRS):
            found = {}
            for variant in ("quiet", "loading") if pair % 2 else ("loading", "quiet"):
                if variant == "quiet":
                    found[variant] = client.round()
                else:
                    with Loading(other, ModelSpec("other", bundle=str(second))) as loading:
                        found[variant] = client.round()
                    loads += loading.loads
            ratios.append(found["loading"] / found["quiet"])
            log(f"pair {pair}: p99 {found['quiet']:.2f} ms quiet, {found['loading']:.2f} ms while loading")
        log(f"{loads} loads; ratios {sorted(round(ratio, 3) for ratio in ratios)}")
        return statistics.median(ratios)
    finally:
        other.close(unload=True)
        control.terminate()
        control.wait(60)
