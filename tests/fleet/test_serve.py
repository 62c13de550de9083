"""`serve` as a real process: ready only while warm and alive, exact answers, clear refusals, nothing lost at the end."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from serving import INFER, ROOT, SOURCE, ZEROS, Running, body, logits, rows_and_recorded, until

from pipeline.records import WarmupPlan


def test_ready_before_during_and_after(bundle: Path, tmp_path: Path) -> None:
    """False before, true once warm, the very first answer equals the recorded one, false once killed."""
    before = subprocess.run([*SOURCE, "ready", str(bundle), "--state", str(tmp_path / "state")], cwd=ROOT, capture_output=True)
    assert before.returncode == 1
    server = Running(bundle, tmp_path / "state")
    try:
        assert server.call("GET", "/v2/health/live")[:2] == (200, {"live": True})
        told = server.wait_ready()
        assert told["address"] == f"http://127.0.0.1:{server.port}"
        rows, recorded = rows_and_recorded(bundle)
        status, answer, _ = server.call("POST", INFER, body(rows[:1]) | {"id": "first"})
        assert (status, answer["id"], answer["model_version"]) == (200, "first", "0.0.1")
        assert np.array_equal(logits(answer), recorded[:1])
        assert server.ready()
        shown = json.loads(server.command("status", "--state", str(server.state), "--json").stdout)
        assert shown["processes"][0]["address"] == told["address"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert not server.ready()
    finally:
        server.kill()


def test_live_but_not_ready_while_it_warms(parts: dict[str, Any], tmp_path: Path) -> None:
    """A plan that takes very long: `live` answers, all else says come again, and SIGTERM ends it at once."""
    plan = WarmupPlan.load(parts["warm"][tiny.TARGET] / "plan.json")
    endless = dataclasses.replace(plan, steps=tuple(dataclasses.replace(step, iterations=100_000_000) for step in plan.steps))
    warm = Path(shutil.copytree(parts["warm"][tiny.TARGET], tmp_path / "warm"))
    endless.save(warm / "plan.json")
    [evidence] = parts["evidences"]
    evidence = dataclasses.replace(evidence, bound_to={**evidence.bound_to, "plan_sha256": endless.digest()})
    server = Running(tiny.pack(parts, tmp_path / "release", warm={tiny.TARGET: warm}, evidences=[evidence]), tmp_path / "state")
    try:
        until(lambda: "warming" in server.call("GET", "/v2/models/tiny")[1]["error"])
        assert server.call("GET", "/v2/health/live")[0] == 200
        for method, path in (("GET", "/v2/health/ready"), ("GET", "/v2/models/tiny/ready"), ("POST", INFER)):
            status, answer, headers = server.call(method, path, body(ZEROS) if method == "POST" else None)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert "not ready" in answer["error"]
        assert not server.ready()
        assert server.stop(20) == 0
        assert not (tmp_path / "state").exists()
    finally:
        server.kill()


def test_protocol_paths(running: Running) -> None:
    assert running.call("GET", "/v2/health/live")[0] == 200
    assert running.call("GET", "/v2/health/ready")[0] == 200
    assert running.call("GET", "/v2")[1]["name"] == "qwarm"
    for path in ("/v2/models/tiny", "/v2/models/tiny/versions/0.0.1", "/v2/models/tiny?x=1"):
        status, answer, headers = running.call("GET", path)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert answer["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}]
    assert running.call("GET", "/v2/models/tiny/ready")[0] == 200
    assert running.call("GET", "/v2/models/tiny/versions/0.0.1/ready")[0] == 200


def test_every_batch_size(running: Running, bundle: Path) -> None:
    """Sizes 2 and 3 were not warmed and are padded to 4; the caller sees the rows that were sent, flat or nested."""
    rows, recorded = rows_and_recorded(bundle)
    for count in (1, 2, 3, 4):
        for data in (rows[:count].ravel().tolist(), rows[:count].tolist()):
            status, answer, _ = running.call("POST", INFER, body(rows[:count], data=data))
            assert status == 200
            assert answer["outputs"][0]["shape"] == [count, 3]
            np.testing.assert_allclose(logits(answer), recorded[:count], rtol=1e-4, atol=1e-5)


def test_a_connection_is_kept_and_survives_a_refused_request(running: Running, bundle: Path) -> None:
    rows, recorded = rows_and_recorded(bundle)
    connection = running.connect()
    for content, expected in ((body(rows[:1]), 200), ({"inputs": []}, 400), (body(rows[:1]), 200)):
        connection.request("POST", INFER, json.dumps(content).encode())
        answer = connection.getresponse()
        parsed = json.loads(answer.read())
        assert answer.status == expected
    assert np.array_equal(logits(parsed), recorded[:1])
    connection.close()


def test_eight_clients_at_once_each_get_their_own_answer(running: Running, bundle: Path) -> None:
    rows, recorded = rows_and_recorded(bundle)

    def client(number: int) -> int:
        connection, right = running.connect(), 0
        for turn in range(20):
            index = (number + turn) % len(rows)
            connection.request("POST", INFER, json.dumps(body(rows[index : index + 1])).encode())
            answer = connection.getresponse()
            parsed = json.loads(answer.read())
            right += answer.status == 200 and np.array_equal(logits(parsed), recorded[index : index + 1])
        connection.close()
        return right

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(client, range(8))) == 160


def test_a_full_queue_says_come_again(bundle: Path, tmp_path: Path) -> None:
    """Without room to wait and one slot, 32 at once get 200 or 503 with Retry-After, and each 200 is right."""
    rows, recorded = rows_and_recorded(bundle)
    server = Running(bundle, tmp_path / "state", "--queue", "0", "--concurrency", "1")
    try:
        server.wait_ready()
        gate = threading.Barrier(32)

        def client(_: int) -> list[tuple[int, bool]]:
            gate.wait(30)
            answers = [server.call("POST", INFER, body(rows[:4])) for _ in range(5)]
            return [
                (status, np.allclose(logits(answer), recorded[:4], rtol=1e-4, atol=1e-5) if status == 200 else headers.get("Retry-After") == "1")
                for status, answer, headers in answers
            ]

        with ThreadPoolExecutor(32) as pool:
            seen = [each for answers in pool.map(client, range(32)) for each in answers]
        assert len(seen) == 160
        assert {status for status, _ in seen} <= {200, 503}
        assert all(right for _, right in seen)
        assert any(status == 200 for status, _ in seen)
        assert server.stop() == 0
    finally:
        server.kill()


def test_sigterm_finishes_what_runs(bundle: Path, tmp_path: Path) -> None:
    """A request whose body is still arriving when SIGTERM comes is answered; new connections are not taken; exit code 0."""
    rows, recorded = rows_and_recorded(bundle)
    server = Running(bundle, tmp_path / "state")
    try:
        server.wait_ready()
        content = json.dumps(body(rows[:1])).encode()
        with socket.create_connection((server.host, server.port), timeout=30) as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(content)) + content[:50])
            until(lambda: server.call("GET", "/v2/health/live")[0] == 200)
            server.process.terminate()
            until(lambda: not server.ready())

            def refused() -> bool:
                try:
                    socket.create_connection((server.host, server.port), timeout=5).close()
                except ConnectionRefusedError:
                    return True
                return False

            until(refused)
            assert server.process.poll() is None
            connection.sendall(content[50:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        head, _, payload = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"Connection: close" in head
        assert np.array_equal(logits(json.loads(payload)), recorded[:1])
        assert server.process.wait(30) == 0
        assert list(server.state.iterdir()) == []
    finally:
        server.kill()


def test_sigterm_under_load_loses_no_answer(bundle: Path, tmp_path: Path) -> None:
    """Each request that was sent on a new connection before the listening socket closed gets a whole answer."""
    rows, recorded = rows_and_recorded(bundle)
    server = Running(bundle, tmp_path / "state")
    lost: list[str] = []
    answered = 0
    lock = threading.Lock()

    def client() -> None:
        nonlocal answered
        while True:
            connection = server.connect()
            try:
                connection.connect()
            except OSError:
                return
            try:
                connection.request("POST", INFER, json.dumps(body(rows[:1])).encode())
                answer = connection.getresponse()
                right = answer.status == 200 and np.array_equal(logits(json.loads(answer.read())), recorded[:1])
                with lock:
                    answered += 1
                    if not right:
                        lost.append(f"status {answer.status}")
            except OSError as error:
                lost.append(repr(error))
            finally:
                connection.close()

    try:
        server.wait_ready()
        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: answered > 50)
        assert server.stop() == 0
        for thread in threads:
            thread.join(30)
        # A connection that the kernel took in the instant before the socket closed is reset: at most one a client.
        assert [each for each in lost if "Reset" not in each and "BrokenPipe" not in each] == []
        assert len(lost) <= len(threads), lost
    finally:
        server.kill()


def test_a_changed_bundle_is_never_served(copy: Callable[[], Path], tmp_path: Path) -> None:
    broken = copy()
    blob = broken / "targets/openvino-cpu/model.blob"
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    command = [*SOURCE, "serve", str(broken), "--allow-unsigned", "--port", "0", "--state", str(tmp_path / "state")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 3
    assert "model.blob" in run.stderr
    assert run.stdout == ""
    assert not (tmp_path / "state").exists()


def test_a_port_in_use(running: Running, bundle: Path, tmp_path: Path) -> None:
    run = running.command("serve", str(bundle), "--allow-unsigned", "--port", str(running.port), "--state", str(tmp_path), "--json")
    assert run.returncode == 2
    assert str(running.port) in json.loads(run.stdout)["where"]
