"""Does a model's load slow the requests of a model beside it? Real `qwarm serve` processes behind the controller and its gateway, in turns of rounds.

A client asks the neighbour every 5 ms for some seconds: twice with nothing else going on (the second is the control), while the controller loads and
unloads another model without end as it does ahead of demand, and beside a bare process that only counts and is paced in the same way (the floor of
this machine). Order turns from set to set. A figure is the p99 of all rounds of a kind over that of all quiet ones, with a 90 % interval by drawing
sets anew. Then the same beside irregular requests (exponential pauses of 20 ms), for which no pause is told, in longer rounds.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import folder_last  # noqa: F401
import numpy as np

from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Event
from fleet.gateway import Gateway
from fleet.habits import Habits
from fleet.logs import Log
from fleet.models import Action, Kind, ModelSpec, Phase
from fleet.plans import Plan
from fleet.policies import KeepAlive
from fleet.processes import ServeProcesses

ROOT = Path(__file__).resolve().parents[1]
SETS, ROUND_S, PAUSE_S = 8, 4.0, 0.005
LONG_SETS, LONG_S, MEAN_PAUSE_S = 2, 20.0, 0.02
LOAD_S = 0.3
"""What the tiny bundle's load takes alone, about; it is begun again within a fifth of a second after the model was given back."""
KINDS = ("quiet", "loading", "control", "floor")
BODY = json.dumps({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}).encode()


def bundles(folder: Path) -> list[Path]:
    """Two tiny bundles, made as the tests make theirs: a real engine, hand-made evidence."""
    sys.path.insert(0, str(ROOT / "tests" / "fleet"))
    import tiny

    parts = tiny.make_parts(folder / "parts")
    return [tiny.pack(parts, folder / name, name=name) for name in ("neighbour", "other")]


def client(address: str) -> None:
    """A process of its own: a line of JSON [seconds, mean pause, irregular] in, the milliseconds of each request out; one kept-alive connection."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    for line in sys.stdin:
        seconds, pause, irregular = json.loads(line)
        end, samples = time.monotonic() + seconds, []
        while time.monotonic() < end:
            started = time.perf_counter()
            connection.request("POST", "/v2/models/neighbour/infer", BODY)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}")
            samples.append((time.perf_counter() - started) * 1000.0)
            time.sleep(random.expovariate(1.0 / pause) if irregular else pause)
        print(json.dumps(samples), flush=True)


class Noted(ServeProcesses):
    """Keeps how long loads took that nobody waited for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, allow_unsigned=True, program=[sys.executable, "-m", "fleet.main"])
        self.asked: float | None = None
        self.took: list[float] = []

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:
        if action.kind in (Kind.LOAD, Kind.HURRY):
            self.asked = None if action.urgent else now
        super().begin(action, spec, now)

    def poll(self, now: float) -> list[Event]:
        events = super().poll(now)
        if self.asked is not None:
            self.took += [now - self.asked for event in events if (event.name, event.what) == ("other", "loaded")]
        return events


class Often:
    """A policy: warm for a moment, again and again, while `on`; one plan a request, so each round of loads begins with a request's."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, _: Habits, now: float) -> Plan:
        return Plan(now, 0.0, tuple((now + second, now + second + 0.15) for second in np.arange(0.2, 120.0, 0.2)) if self.on else ())


class Bench:
    """The gateway with its controller in this process, the client in another. To be used as a context."""

    def __init__(self, folder: Path) -> None:
        first, second = bundles(folder)
        self.often, self.driver = Often(), Noted(folder / "servers")
        specs = [ModelSpec("neighbour", load_s=LOAD_S, pinned=True, bundle=str(first)), ModelSpec("other", load_s=LOAD_S, bundle=str(second))]
        log = Log(stream=(folder / "log").open("w"))
        self.control = Control(Controller(specs, policy={"neighbour": KeepAlive(0.0), "other": self.often}), self.driver, log=log)
        self.gateway = Gateway("127.0.0.1", 0, self.control, log=log)
        self.gateway.start()
        command = [sys.executable, str(Path(__file__).resolve()), self.gateway.address]
        self.client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.kill()
        self.client.wait()
        self.gateway.drain(2.0)
        self.control.close(unload=True)

    def ask(self, seconds: float, pause: float = PAUSE_S, irregular: bool = False) -> list[float]:
        """Milliseconds of each request of a round."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps([seconds, pause, irregular]) + "\n")
        self.client.stdin.flush()
        return [float(sample) for sample in json.loads(self.client.stdout.readline())]

    def loading(self, on: bool) -> None:
        """Loads of the other model without end, or none any more; either begins with a request for it, which is over when this returns."""
        self.often.on = on
        with self.control.using("other", 60.0) as warm:
            warm()
        while not on and self.control.controller.model("other").phase is not Phase.OUT:
            time.sleep(0.1)

    def round(self, kind: str, *how: Any) -> list[float]:
        """One round of `kind`, see KINDS; `how` as for `ask`."""
        if kind == "loading":
            self.loading(True)
            samples = self.ask(*how)
            self.loading(False)
        elif kind == "floor":
            counts = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            self.driver.pacer.add("floor", counts.pid, 1e6)
            samples = self.ask(*how)
            self.driver.pacer.release("floor")
            counts.kill()
            counts.wait()
        else:
            samples = self.ask(*how)
        return samples


def over_quiet(rounds: dict[str, list[list[float]]], kind: str) -> tuple[float, list[float]]:
    """p99 of a kind's rounds over that of all quiet ones (for the control: of the others), and its 90 % interval over sets drawn anew."""
    quiet = ("quiet",) if kind == "control" or "control" not in rounds else ("quiet", "control")
    draws = np.random.default_rng(0).integers(0, len(rounds["quiet"]), (1000, len(rounds["quiet"])))

    def ratio(sets: Any) -> float:
        of, by = ([sample for name in names for index in sets for sample in rounds[name][index]] for names in ((kind,), quiet))
        return float(np.quantile(of, 0.99) / np.quantile(by, 0.99))

    return ratio(range(len(rounds["quiet"]))), [float(end) for end in np.quantile([ratio(sets) for sets in draws], (0.05, 0.95))]


def measure(folder: Path, log: Callable[[str], Any]) -> dict[str, Any]:
    """`neighbour_p99_ratio` and what it is to be judged by."""
    with Bench(folder) as bench:
        bench.ask(2.0)
        rounds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        for index in range(SETS):
            for kind in KINDS if index % 2 else KINDS[::-1]:
                rounds[kind].append(bench.round(kind, ROUND_S))
        took = list(bench.driver.took[:])
        irregular: dict[str, list[list[float]]] = {"quiet": [], "loading": []}
        bench.driver.took.clear()
        for index in range(LONG_SETS):
            for kind in ("quiet", "loading") if index % 2 else ("loading", "quiet"):
                irregular[kind].append(bench.round(kind, LONG_S, MEAN_PAUSE_S, True))
        took_irregular = bench.driver.took
    found: dict[str, Any] = {"p50_ms": {}, "p99_ms": {}}
    for kind, samples in rounds.items():
        pooled = [sample for one in samples for sample in one]
        found["p50_ms"][kind], found["p99_ms"][kind] = (float(np.quantile(pooled, share)) for share in (0.5, 0.99))
    ratio, interval = over_quiet(rounds, "loading")
    control, control_interval = over_quiet(rounds, "control")
    floor, floor_interval = over_quiet(rounds, "floor")
    beside, beside_interval = over_quiet(irregular, "loading")
    found |= {
        "neighbour_p99_ratio": ratio, "interval": interval, "control": control, "control_interval": control_interval,
        "floor": floor, "floor_interval": floor_interval, "loads": len(took), "load_s": float(np.median(took)) if took else None,
        "requests": {kind: sum(map(len, samples)) for kind, samples in rounds.items()},
        "irregular": {
            "p99_ratio": beside, "interval": beside_interval, "loads": len(took_irregular),
            "load_s": float(np.median(took_irregular)) if took_irregular else None,
        },
    }  # fmt: skip
    log(json.dumps(found))
    rounded = {name: [[round(sample, 3) for sample in one] for one in samples] for name, samples in rounds.items()}
    return {**found, "rounds_ms": rounded}


if __name__ == "__main__":
    client(sys.argv[1])
