"""Every page of /metrics is read by Prometheus' own parser and agrees with what clients saw."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Running, until

from fleet.metrics import BUCKETS, CONTENT_TYPE, FAMILIES, Metrics

INFER = "/v2/models/tiny/infer"


def parsed(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples by name and labels; checks that each family is whole, typed and explained."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    names = []
    for family in text_string_to_metric_families(page):
        names.append(family.name)
        kind = {"counter": "counter", "gauge": "gauge", "histogram": "histogram"}[family.type]
        assert (kind, family.documentation) == FAMILIES[family.name + ("_total" if kind == "counter" else "")]
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    assert len(names) == len(set(names))
    return found


def scrape(server: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    connection = server.connect()
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    page = answer.read().decode()
    assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
    connection.close()
    return parsed(page)


def requests(samples: dict[Any, float], route: str) -> dict[str, float]:
    """Count of each status of a route."""
    wanted = [(dict(labels), value) for (name, labels), value in samples.items() if name == "qwarm_requests_total"]
    return {labels["code"]: value for labels, value in wanted if labels["route"] == route}


def test_names_follow_the_conventions() -> None:
    for name, (kind, meaning) in FAMILIES.items():
        assert name.startswith("qwarm_")
        assert name.endswith("_total") == (kind == "counter")
        assert meaning
        assert not any(unit in name for unit in ("_ms", "_milli"))


def test_a_page_by_hand() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.0006, 99.0):
        metrics.answered("infer", 200, seconds)
    metrics.answered("infer", 400, 1.0)
    metrics.set("qwarm_bundle_info", 1, name='a "b"\\\n', version="1")
    page = parsed(metrics.render({"qwarm_ready": 1}, {"kernels": 7}))
    assert page[("qwarm_bundle_info", (("name", 'a "b"\\\n'), ("version", "1")))] == 1
    assert page[("qwarm_engine_cache_hits_total", (("cache", "kernels"),))] == 7
    assert page[("qwarm_first_request_seconds", ())] == 0.0005
    assert page[("qwarm_inference_duration_seconds_bucket", (("le", "0.0005"),))] == 1
    assert page[("qwarm_inference_duration_seconds_bucket", (("le", "0.001"),))] == 2
    assert page[("qwarm_inference_duration_seconds_bucket", (("le", repr(BUCKETS[-1])),))] == 2
    assert page[("qwarm_inference_duration_seconds_bucket", (("le", "+Inf"),))] == 3
    assert page[("qwarm_inference_duration_seconds_count", ())] == 3
    assert page[("qwarm_inference_duration_seconds_sum", ())] == pytest.approx(99.0011)
    assert requests(page, "infer") == {"200": 3, "400": 1}


def test_counts_from_many_threads_are_whole() -> None:
    metrics = Metrics()

    def work(_: int) -> None:
        for _ in range(1000):
            metrics.answered("infer", 200, 0.002)
            metrics.count("qwarm_queue_rejections_total")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    page = parsed(metrics.render({}, {}))
    assert page[("qwarm_queue_rejections_total", ())] == page[("qwarm_inference_duration_seconds_count", ())] == 8000


def test_a_server_from_start_to_load(bundle: Path, public_key: Path, tmp_path: Path) -> None:
    """Not ready, then ready; 64 at once with room for few are each answered and each counted."""
    rows = np.load(bundle / "warmup/rows.npz")["image"]
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": rows[:1].ravel().tolist()}
    content = json.dumps({"inputs": [tensor]}).encode()
    server = Running(bundle, tmp_path / "state", "--queue", "2", "--concurrency", "1", "--log-level", "debug", key=public_key)
    try:
        early = scrape(server)
        told = server.wait_ready()
        page = scrape(server)
        assert early[("qwarm_ready", ())] in (0, 1)  # 1 when the scrape came late
        assert page[("qwarm_ready", ())] == 1
        assert page[("qwarm_warmup_seconds", ())] == pytest.approx(told["timings_ms"]["warm"] / 1000, abs=1e-5)
        assert page[("qwarm_startup_seconds", ())] == pytest.approx(told["timings_ms"]["ready"] / 1000, abs=1e-5)
        assert ("qwarm_first_request_seconds", ()) not in page
        info = [dict(labels) for name, labels in page if name == "qwarm_bundle_info"]
        assert info == [{"name": "tiny", "version": "0.0.1", "target": "openvino-cpu"}]

        def client(_: int) -> list[int]:
            connection, statuses = server.connect(), []
            for _ in range(5):
                connection.request("POST", INFER, content)
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            connection.close()
            return statuses

        with ThreadPoolExecutor(64) as pool:
            seen = [status for statuses in pool.map(client, range(64)) for status in statuses]
        assert len(seen) == 320
        assert set(seen) <= {200, 503}
        assert server.call("POST", INFER, b"{")[0] == 400
        until(lambda: sum(requests(scrape(server), "infer").values()) == 321)  # counted once the answer is out
        page = scrape(server)
        assert requests(page, "infer") == {code: count for code, count in (("200", seen.count(200)), ("503", seen.count(503)), ("400", 1)) if count}
        assert page[("qwarm_queue_rejections_total", ())] == seen.count(503)
        assert page[("qwarm_inference_duration_seconds_count", ())] == seen.count(200)
        assert page[("qwarm_first_request_seconds", ())] > 0
        assert page[("qwarm_requests_in_flight", ())] == 0
        until(lambda: scrape(server)[("qwarm_connections", ())] == 1)
        assert server.stop() == 0
        logged = [line for line in server.events("request") if line["route"] == "infer"]
        assert sorted(line["status"] for line in logged) == sorted([*seen, 400])
        assert {line["level"] for line in logged if line["status"] == 503} <= {"warning"}
        assert {line["level"] for line in logged if line["status"] == 200} == {"debug"}
        assert [server.events(event)[0]["level"] for event in ("live", "ready", "draining", "drained")] == ["info"] * 4
    finally:
        server.kill()


def test_64_at_once_fit_the_default_queue(bundle: Path, tmp_path: Path) -> None:
    rows, recorded = np.load(bundle / "warmup/rows.npz")["image"], np.load(bundle / "targets/openvino-cpu/expected.npz")["logits"]
    server = Running(bundle, tmp_path / "state")
    try:
        server.wait_ready()

        def client(number: int) -> bool:
            index = number % len(rows)
            tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": rows[index].ravel().tolist()}
            status, answer, _ = server.call("POST", INFER, {"inputs": [tensor]})
            return status == 200 and np.array_equal(np.array(answer["outputs"][0]["data"], np.float32), recorded[index])

        with ThreadPoolExecutor(64) as pool:
            assert all(pool.map(client, range(64)))
        assert server.events("request") == []  # all was well, and the level is info
        assert server.stop() == 0
    finally:
        server.kill()


def test_a_client_that_is_gone_is_counted(bundle: Path, tmp_path: Path) -> None:
    """And hurts nobody: the next is served."""
    server = Running(bundle, tmp_path / "state")
    try:
        server.wait_ready()
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        connection.putrequest("POST", INFER)
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"{")
        connection.close()
        until(lambda: sum(requests(scrape(server), "infer").values()) == 1)
        assert set(requests(scrape(server), "infer")) <= {"400", "499"}
        assert server.call("GET", "/v2/health/ready")[0] == 200
        assert server.stop() == 0
    finally:
        server.kill()
