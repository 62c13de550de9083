"""How fast is `serve`, and what does it cost over the bare engine? Loopback only; every answer is checked, bit for bit.

    python benchmarks/serve.py --json build/bench/serve.json

Two parts against one real `serve` process. Load: clients on kept-alive connections for some seconds, each sending its next
request when the last was answered (a closed loop); throughput, p50, p99 and errors, which must be zero. Overhead: one request
over HTTP and one bare `Session.run` on the same row in this process, taking turns in changing order; the median of the pairwise
ratios and differences with its distribution-free interval (95 % a side). Raw samples are kept in the file. An answer is right
when it is what `fleet.open` on the same bundle gives in this process. Clients and server share this machine's cores, so the
load figures are those of both. Exit code 1 when an answer is wrong or missing, or when the server counted other requests than
were sent.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import folder_last  # noqa: F401
import numpy as np

import fleet
from fleet.protocol import DATATYPE_OF
from pipeline.errors import ConfigError, QwarmError
from pipeline.platforms import machine_facts
from warmup import latency
from warmup.plan import pad_to_plan

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
MOST_SAMPLES = 250_000
"""A client stops after so many requests; raw samples of 8 clients then take about 20 MB."""
LEAD = 10
"""First requests of each connection, and first pairs, that are not counted: they are a client's own warm-up."""


def newest_bundle(releases: Path) -> Path:
    """The bundle in `releases` that was written last; raises ConfigError when there is none."""
    found = sorted(releases.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError("There is no bundle", where=str(releases), expected="a released bundle", got="none", next="make repro, or give --bundle")
    return found[-1].parent


class Rows:
    """The bundle's warm-up rows one by one (or as many as the smallest batch): as request bodies, as arrays, and what they give."""

    def __init__(self, served: fleet.Served) -> None:
        manifest, rows = served.manifest, served.parts.rows
        self.path = f"/v2/models/{manifest.name}/infer"
        batch = manifest.shapes[str(manifest.inputs[0].shape[0])].min
        self.count = len(next(iter(rows.values()))) - batch + 1
        self.inputs = [{name: array[index : index + batch] for name, array in rows.items()} for index in range(self.count)]
        ladder = served.parts.plan.ladder
        self.padded = [pad_to_plan(inputs, manifest.inputs, ladder)[0] for inputs in self.inputs]
        """What reaches the engine."""
        self.expected = [{name: array.ravel() for name, array in served.infer(inputs).items()} for inputs in self.inputs]
        self.bodies = []
        for inputs in self.inputs:
            tensors = [
                {"name": name, "shape": list(array.shape), "datatype": DATATYPE_OF[str(array.dtype)], "data": array.ravel().tolist()}
                for name, array in inputs.items()
            ]
            self.bodies.append(json.dumps({"inputs": tensors}).encode())

    def right(self, index: int, content: bytes) -> bool:
        """Whether an answer's body holds the outputs of row `index`, bit for bit."""
        outputs = {output["name"]: output["data"] for output in json.loads(content)["outputs"]}
        return all(np.array_equal(np.array(outputs[name], array.dtype), array) for name, array in self.expected[index].items())


@contextlib.contextmanager
def serving(bundle: Path, origin: list[str]) -> Iterator[tuple[str, int]]:
    """A `serve` process of `bundle` on a free port of this machine; yields its host and port once it is warm."""
    with tempfile.TemporaryDirectory(prefix="qwarm-bench-") as state:
        command = [sys.executable, "-m", "fleet.main", "serve", str(bundle), *origin, "--port", "0", "--state", state, "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stderr is not None
        logged: list[str] = []
        threading.Thread(target=lambda stream: logged.extend(stream), args=(process.stderr,), daemon=True).start()
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
            watchdog.cancel()
            told = json.loads(line) if line else {}
            if "address" not in told:
                raise QwarmError("The server did not get ready", where=str(bundle), expected="a ready line", got=line or "".join(logged[-3:]))
            address = urlsplit(told["address"])
            yield str(address.hostname), int(address.port or 0)
            process.terminate()
            if code := process.wait(60):
                raise QwarmError("The server ended badly", where=str(bundle), expected="exit code 0", got=str(code), next="".join(logged[-3:]))
        finally:
            watchdog.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()


class Client:
    """One kept-alive connection."""

    def __init__(self, address: tuple[str, int], rows: Rows) -> None:
        self.rows, self.connection = rows, http.client.HTTPConnection(*address, timeout=60)
        self.answered, self.errors = 0, []  # type: int, list[str]

    def request(self, index: int) -> float:
        """Milliseconds of one request of row `index`, from before it is sent until its answer is read; then the answer is checked."""
        started = time.perf_counter()
        try:
            self.connection.request("POST", self.rows.path, self.rows.bodies[index])
            answer = self.connection.getresponse()
            content = answer.read()
            elapsed = (time.perf_counter() - started) * 1000.0
        except (OSError, http.client.HTTPException) as error:
            self.errors.append(repr(error))
            self.connection.close()  # the next request opens it again
            return (time.perf_counter() - started) * 1000.0
        self.answered += 1
        if answer.status != 200:
            self.errors.append(f"status {answer.status}: {content[:200]!r}")
        elif not self.rows.right(index, content):
            self.errors.append(f"row {index}: the answer is not what the engine gives")
        return elapsed


def load(address: tuple[str, int], rows: Rows, clients: int, seconds: float) -> dict[str, Any]:
    """Throughput and latency of `clients` at once for `seconds`."""
    gate = threading.Barrier(clients + 1)

    def run(number: int) -> tuple[Client, list[float]]:
        client = Client(address, rows)
        samples: list[float] = []
        for turn in range(LEAD):
            client.request((number + turn) % rows.count)
        gate.wait(60)
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline and len(samples) < MOST_SAMPLES:
            samples.append(client.request((number + len(samples)) % rows.count))
        client.connection.close()
        return client, samples

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(run, number) for number in range(clients)]
        gate.wait(60)
        started = time.perf_counter()
        results = [future.result() for future in futures]
        wall = time.perf_counter() - started
    samples = [sample for _, each in results for sample in each]
    errors = [error for client, _ in results for error in client.errors]
    return {
        "clients": clients,
        "seconds": wall,
        "requests": len(samples),
        "answered": sum(client.answered for client, _ in results),
        "errors": len(errors),
        "first_errors": errors[:5],
        "throughput_per_s": len(samples) / wall,
        "p50_ms": float(np.quantile(samples, 0.5)),
        "p99_ms": float(np.quantile(samples, 0.99)),
        "max_ms": max(samples),
        "samples_ms": [[round(sample, 4) for sample in each] for _, each in results],
    }


def overhead(address: tuple[str, int], rows: Rows, served: fleet.Served, pairs: int, seconds: float) -> dict[str, Any]:
    """A lone request over HTTP against the bare engine call, in turns, for at most `pairs` pairs or `seconds`."""
    client, server_ms, engine_ms = Client(address, rows), [], []

    def bare(index: int) -> float:
        started = time.perf_counter()
        served.session.run(rows.padded[index])
        return (time.perf_counter() - started) * 1000.0

    deadline = time.perf_counter() + seconds
    for turn in range(pairs + LEAD):
        index = turn % rows.count
        if turn % 2:
            over_http, engine = client.request(index), bare(index)
        else:
            engine, over_http = bare(index), client.request(index)
        if turn >= LEAD:
            server_ms.append(over_http)
            engine_ms.append(engine)
        if time.perf_counter() > deadline and len(server_ms) >= 20:
            break
    client.connection.close()
    ratios = latency.paired(server_ms, engine_ms)
    differences = [one - other for one, other in zip(server_ms, engine_ms, strict=True)]
    intervals = [latency.median_interval(values, 0.95) for values in (ratios, differences)]
    return {
        "pairs": len(ratios),
        "answered": client.answered,
        "errors": len(client.errors),
        "first_errors": client.errors[:5],
        "server_p50_ms": statistics.median(server_ms),
        "engine_p50_ms": statistics.median(engine_ms),
        "ratio": statistics.median(ratios),
        "ratio_interval": [intervals[0].low, intervals[0].high] if intervals[0] else None,
        "difference_ms": statistics.median(differences),
        "difference_interval_ms": [intervals[1].low, intervals[1].high] if intervals[1] else None,
        "samples_ms": {"server": [round(value, 4) for value in server_ms], "engine": [round(value, 4) for value in engine_ms]},
    }


def counted(address: tuple[str, int], answered: int) -> dict[str, int]:
    """What the server itself counted: infer requests by status, from /metrics; it counts once an answer is out, so a moment late."""
    for _ in range(20):
        found = scrape(address)
        if sum(found.values()) == answered:
            break
        time.sleep(0.05)
    return found


def scrape(address: tuple[str, int]) -> dict[str, int]:
    """Infer requests by status."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    prefix = 'qwarm_requests_total{route="infer",code="'
    lines = [line.removeprefix(prefix).split('"} ') for line in page.splitlines() if line.startswith(prefix)]
    return {code: int(value) for code, value in lines}


def show(report: dict[str, Any]) -> None:
    """The figures as a table."""
    loaded, extra = report["load"], report["overhead"]

    def interval(values: list[float] | None) -> str:
        return f"  ({values[0]:.3f} to {values[1]:.3f})" if values else ""

    rows = [
        ("bundle", f"{report['name']} {report['version']}, {report['target']}, {report['origin']}"),
        ("load", f"{loaded['clients']} clients, {loaded['seconds']:.1f} s, {loaded['requests']} requests"),
        ("throughput", f"{loaded['throughput_per_s']:.0f} requests/s"),
        ("p50, p99, max", f"{loaded['p50_ms']:.2f} ms, {loaded['p99_ms']:.2f} ms, {loaded['max_ms']:.2f} ms"),
        ("errors", f"{loaded['errors'] + extra['errors']}"),
        ("counted by the server", ", ".join(f"{code}: {count}" for code, count in report["counted"].items())),
        ("one client: over HTTP, bare engine", f"{extra['server_p50_ms']:.3f} ms, {extra['engine_p50_ms']:.3f} ms (p50 of {extra['pairs']} pairs)"),
        ("overhead", f"{extra['difference_ms']:.3f} ms" + interval(extra["difference_interval_ms"])),
        ("over HTTP / bare engine", f"{extra['ratio']:.3f}" + interval(extra["ratio_interval"])),
    ]
    for label, text in rows:
        print(f"{label:<36}{text}")
    for error in loaded["first_errors"] + extra["first_errors"]:
        print(f"error: {error}")


def bounded(kind: type[Any], low: float, high: float) -> Any:
    """A number of an option, between `low` and `high`."""

    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not {low:g} to {high:g}")
        return value

    return number


def main() -> int:
    """Measure, print, write the file; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="the bundle's folder (default: the newest in build/release)")
    parser.add_argument("--key", type=Path, help="its public key (default: development.pub beside it; without one it is taken unsigned)")
    parser.add_argument("--clients", type=bounded(int, 1, 64), default=8, help="connections at once (default: %(default)s)")
    parser.add_argument("--seconds", type=bounded(float, 0.1, 600), default=30.0, help="length of the load (default: %(default)s)")
    parser.add_argument("--pairs", type=bounded(int, 20, 100_000), default=2000, help="most pairs of the overhead (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file to write, raw samples included")
    arguments = parser.parse_args()
    try:
        bundle = arguments.bundle or newest_bundle(Path("build/release"))
        beside = bundle.parent / "development.pub"
        key = arguments.key or (beside if beside.exists() else None)
        origin = ["--allow-unsigned"] if key is None else ["--key", str(key)]
        with (
            tempfile.TemporaryDirectory(prefix="qwarm-bench-") as state,
            fleet.open(bundle, state=state, key=key, allow_unsigned=key is None) as served,
        ):
            rows = Rows(served)
            with serving(bundle, origin) as address:
                loaded = load(address, rows, arguments.clients, arguments.seconds)
                extra = overhead(address, rows, served, arguments.pairs, max(arguments.seconds, 5.0))
                seen = counted(address, loaded["answered"] + extra["answered"])
                report: dict[str, Any] = {
                    "name": served.manifest.name, "version": served.manifest.version, "manifest_sha256": served.parts.verified.digest,
                    "target": served.target, "origin": served.parts.verified.origin, "machine": machine_facts(),
                    "concurrency": served.session.concurrency, "load": loaded, "overhead": extra, "counted": seen,
                }  # fmt: skip
    except QwarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    lost = loaded["errors"] + extra["errors"] or sum(report["counted"].values()) != loaded["answered"] + extra["answered"]
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
