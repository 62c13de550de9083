"""The pool that every session shares, on a session without a runtime."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_onnx

from engines.contract import Session
from pipeline.errors import ConfigError, InputError, TargetError


class CountingSession(Session):
    """A double that has no runtime: counts who is inside at once and on which slot."""

    def __init__(self, engine, concurrency, pause=0.005):
        super().__init__(engine, list(range(concurrency)))
        self.pause, self.lock = pause, threading.Lock()
        self.inside, self.most, self.slots, self.released = 0, 0, [], 0

    def _infer(self, slot, inputs):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.slots.append(slot)
        time.sleep(self.pause)
        with self.lock:
            self.inside -= 1
        return {"logits": np.zeros((len(inputs["image"]), 5), np.float32)}

    def _release(self):
        self.released += 1


@pytest.fixture
def engine(built):
    return built.engines["int8"]


def test_at_most_concurrency_calls_are_inside(engine):
    session = CountingSession(engine, 2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: session.run(tiny_onnx.images(1)), range(24)))
    assert session.most == 2
    assert len(session.slots) == 24


def test_leases_held_together_are_on_different_slots(engine):
    session = CountingSession(engine, 3, pause=0)
    with session.lease() as first, session.lease() as second, session.lease() as third:
        for run in (first, second, third, first):
            run(tiny_onnx.images(1))
    assert len(set(session.slots[:3])) == 3
    assert session.slots[3] == session.slots[0]


def test_a_lone_caller_stays_on_one_slot(engine):
    session = CountingSession(engine, 3, pause=0)
    for _ in range(5):
        session.run(tiny_onnx.images(1))
    assert len(set(session.slots)) == 1


def test_a_refused_request_gives_its_slot_back(engine):
    session = CountingSession(engine, 1)
    for _ in range(3):
        with pytest.raises(InputError):
            session.run({})
    session.run(tiny_onnx.images(1))


def test_close_waits_for_calls_in_flight_and_refuses_later_and_waiting_ones(engine):
    session = CountingSession(engine, 1, pause=0.2)
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(session.run, tiny_onnx.images(2))
        while not session.inside:
            time.sleep(0.001)
        waiting = [pool.submit(session.run, tiny_onnx.images(1)) for _ in range(2)]
        session.close()
        assert (session.inside, session.released) == (0, 1)
        assert running.result()["logits"].shape == (2, 5)
        errors = [future.exception() for future in waiting]
    assert all(error is None or isinstance(error, TargetError) for error in errors)
    session.close()
    assert session.released == 1
    for _ in range(2):
        with pytest.raises(TargetError, match="closed"):
            session.run(tiny_onnx.images(1))


def test_a_session_needs_a_slot(engine):
    with pytest.raises(ConfigError):
        CountingSession(engine, 0)
