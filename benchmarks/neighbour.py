"""Does a model's load slow the requests of a model beside it? Two real `qwarm serve` processes behind a real `qwarm control`, in pairs of rounds.

A client asks the neighbour for some seconds, once with nothing else going on and once while the controller loads the other model again and again in
the background, as it does ahead of demand; rounds take turns in changing order. The figure is the median over pairs of the ratio of p99.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import folder_last  # noqa: F401
import numpy as np

from fleet import state as states
from fleet.pacer import yield_processor

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
    """Has the other model loaded again and again while told to, from a process of its own: it ends the model's server, and the controller, for whom
    the model is pinned, loads it anew in the background."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        self.told()

    def told(self) -> int:
        """The next number that it prints: loads so far."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def tell(self, word: str) -> None:
        """ "go", or "stop" after the load that runs."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def load_when_told(folder: Path) -> None:
    """The other side of `Loading`; the server ends with the lowest priority, as the controller's own unloads do."""
    loads, pid = 0, 0
    warm(folder, pid)
    print(loads, flush=True)
    while sys.stdin.readline().strip() == "go":
        while not select.select([sys.stdin], [], [], 0)[0]:
            pid = warm(folder, pid)
            yield_processor(pid, True)
            os.kill(pid, signal.SIGKILL)
            loads += 1
        warm(folder, pid)
        sys.stdin.readline()
        print(loads, flush=True)


def warm(folder: Path, but: int) -> int:
    """The process that serves, as soon as it is there and another than `but`, which was ended."""
    while not (living := [state.pid for state in states.living(folder) if state.address and state.pid != but]):
        time.sleep(0.05)
    return living[-1]


def measure(folder: Path, log: Callable[[str], Any]) -> float:
    """The median ratio of the neighbour's p99, loading over quiet."""
    first, second = bundles(folder)
    fleet = folder / "fleet.json"
    facts = {"weights_mb": 100, "load_s": 1, "pinned": True}
    models = [{"name": name, "bundle": str(bundle), **facts} for name, bundle in (("neighbour", first), ("other", second))]
    fleet.write_text(json.dumps({"models": models}))
    command = [sys.executable, "-m", "fleet.main", "control", str(fleet), "--state", str(folder / "state"), "--port", "0", "--act", "--unload"]
    control = subprocess.Popen([*command, "--allow-unsigned", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    assert control.stdout is not None
    client = Client(json.loads(control.stdout.readline())["address"])
    loading = Loading(folder / "state" / "servers" / "other")
    try:
        for _ in range(200):
            client.ask()
        ratios, loads = [], 0
        for pair in range(PAIRS):
            found = {}
            for variant in ("quiet", "loading") if pair % 2 else ("loading", "quiet"):
                if variant == "quiet":
                    found[variant] = client.round()
                else:
                    loading.tell("go")
                    found[variant] = client.round()
                    loading.tell("stop")
                    loads = loading.told()
            ratios.append(found["loading"] / found["quiet"])
            log(f"pair {pair}: p99 {found['quiet']:.2f} ms quiet, {found['loading']:.2f} ms while loading")
        log(f"{loads} loads; ratios {sorted(round(ratio, 3) for ratio in ratios)}")
        return statistics.median(ratios)
    finally:
        loading.close()
        control.terminate()
        control.wait(60)


if __name__ == "__main__":
    load_when_told(Path(sys.argv[1]))
