from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter

import numpy as np
import pytest

import engines
from engines.contract import Session
from pipeline.errors import Refused, TargetError, TrialError
from warmup.runner import run_plan


class RecordingSession(Session):
    """A double that has no runtime: remembers which slot ran which batch size; may be slow, or stuck until `released`."""

    def __init__(self, engine, concurrency, pause=0.0, stuck_on=None):
        super().__init__(engine, list(range(concurrency)))
        self.pause, self.stuck_on, self.seen, self.released = pause, stuck_on, set(), threading.Event()

    def _infer(self, slot, inputs):
        rows = len(inputs["image"])
        self.seen.add((slot, rows))
        time.sleep(self.pause)
        if self.stuck_on == rows:
            self.released.wait(20)
        return {"logits": np.zeros((rows, 5), np.float32)}

    def _release(self):
        pass


@pytest.fixture
def expected(warmable):
    with engines.open_engine(warmable.folder) as session:
        alone = [session.run({"image": warmable.rows["image"][index : index + 1]})["logits"] for index in range(6)]
    return {"logits": np.concatenate(alone)}


def test_a_plan_runs_on_a_real_engine_and_reproduces_the_recorded_outputs(warmable, expected):
    plan = warmable.plan()
    with engines.open_engine(warmable.folder, concurrency=2) as session:
        result = run_plan(session, plan, warmable.rows, expected)
    assert len(result.seconds_by_step) == len(plan.steps)
    assert 0 < sum(result.seconds_by_step) <= result.total_seconds < plan.max_seconds


def test_every_slot_meets_every_batch_size(warmable):
    for slots in (3, 2):
        session = RecordingSession(warmable.engine, slots)
        run_plan(session, warmable.plan(concurrency=[1, 3]), warmable.rows)
        assert session.seen >= {(slot, rows) for slot in range(slots) for rows in (1, 4, 8)}


def test_a_session_with_slots_that_the_plan_does_not_reach_is_refused(warmable):
    with pytest.raises(Refused, match="more request slots"):
        run_plan(RecordingSession(warmable.engine, 3), warmable.plan(), warmable.rows)


def test_a_plan_of_another_engine_is_refused(warmable):
    other = dataclasses.replace(warmable.engine, model_sha256="0" * 64)
    with engines.open_engine(warmable.folder, concurrency=2) as session, pytest.raises(Refused, match="another engine"):
        run_plan(session, dataclasses.replace(warmable.plan(), engine_sha256=other.digest()), warmable.rows)


def test_other_rows_are_refused(warmable):
    changed = {"image": warmable.rows["image"].copy()}
    changed["image"][5, 0, 0, 0] += 1
    with engines.open_engine(warmable.folder, concurrency=2) as session, pytest.raises(Refused, match="other rows"):
        run_plan(session, warmable.plan(), changed)


def test_outputs_that_are_not_finite_are_refused_by_row(overflowing):
    with engines.open_engine(overflowing.folder, concurrency=2) as session, pytest.raises(TrialError, match=r"not finite[\s\S]*rows \[3\]"):
        run_plan(session, overflowing.plan(batches=[4]), overflowing.rows)


def test_outputs_that_are_not_the_recorded_ones_are_refused_by_row(warmable, expected):
    wrong = {"logits": expected["logits"].copy()}
    wrong["logits"][2] += 0.2 * np.abs(wrong["logits"]).max()
    with engines.open_engine(warmable.folder, concurrency=2) as session:
        with pytest.raises(TrialError, match="warm-up row 2"):
            run_plan(session, warmable.plan(), warmable.rows, wrong)
        wrong["logits"][2] = np.nan
        with pytest.raises(TrialError, match="warm-up row 2"):
            run_plan(session, warmable.plan(), warmable.rows, wrong)
        for other in ({"logits": expected["logits"][:, :4]}, {"scores": expected["logits"]}):
            with pytest.raises(TrialError, match="recorded otherwise"):
                run_plan(session, warmable.plan(), warmable.rows, other)


def test_a_plan_that_outlasts_its_deadline_is_an_error(warmable):
    for slots in (2, 1):
        session = RecordingSession(warmable.engine, slots, pause=0.05)
        with pytest.raises(TrialError, match=rf"step 1 of 6: batch 8, {slots} threads[\s\S]*whole plan within 0\.3 s"):
            run_plan(session, warmable.plan(iterations=50, max_seconds=0.3), warmable.rows)


def test_a_call_that_never_returns_does_not_hold_up_the_deadline(warmable):
    session = RecordingSession(warmable.engine, 2, stuck_on=4)
    begun = time.monotonic()
    with pytest.raises(TrialError, match="too long"):
        run_plan(session, warmable.plan(max_seconds=0.5), warmable.rows)
    assert time.monotonic() - begun < 15
    session.released.set()


def test_a_lone_call_that_never_returns_holds_up_neither_the_deadline_nor_closing(warmable):
    session = RecordingSession(warmable.engine, 1, stuck_on=4)
    begun = time.monotonic()
    with pytest.raises(TrialError, match=r"too long(?s:.)*batch 4"):
        run_plan(session, warmable.plan(max_seconds=0.5, concurrency=[1]), warmable.rows)
    session.close(timeout=0.1)
    assert time.monotonic() - begun < 15
    with pytest.raises(TargetError, match="closed"):
        session.run({"image": warmable.rows["image"][:1]})
    session.released.set()


def test_the_calling_thread_asks_last(warmable):
    session, threads = RecordingSession(warmable.engine, 2), []
    session._infer = lambda slot, inputs: threads.append(threading.current_thread()) or RecordingSession._infer(session, slot, inputs)
    run_plan(session, warmable.plan(iterations=1), warmable.rows)
    assert threads[-1] is threading.current_thread()
    assert threading.current_thread() not in threads[:-1]


def test_the_last_step_runs_as_often_as_it_says_on_every_slot(warmable):
    class Counting(RecordingSession):
        def _infer(self, slot, inputs):
            calls.append(slot)
            return super()._infer(slot, inputs)

    maker = warmable.maker(batches=[1], concurrency=[1, 2])
    for callers, wanted in ((2, {0: 5, 1: 5}), (1, {0: 6})):  # one run more of a lone one, in the plan's own thread
        calls = []
        situation = next(each for each in maker.situations() if each.callers == callers)
        result = run_plan(Counting(warmable.engine, 2), maker.plan([(situation, 5)], "by hand"), warmable.rows)
        assert sorted(Counter(calls).values()) == sorted(wanted.values())
        assert len(result.seconds_by_step) == 1


def test_an_error_in_one_thread_is_what_is_raised(warmable):
    session = RecordingSession(warmable.engine, 2)

    def fail(slot, inputs):
        if slot == 1:
            raise ValueError("the runtime broke")
        return RecordingSession._infer(session, slot, inputs)

    session._infer = fail
    with pytest.raises(TrialError, match="ValueError: the runtime broke"):
        run_plan(session, warmable.plan(), warmable.rows)
    session._infer = RecordingSession._infer.__get__(session)
    run_plan(session, warmable.plan(), warmable.rows)


class FailingSession(RecordingSession):
    """The double, whose slot 1 raises what a runtime raises in its first `failures` runs: one an attempt."""

    def __init__(self, engine, failures):
        super().__init__(engine, 2)
        self.failures = failures

    def _infer(self, slot, inputs):
        if slot == 1 and self.failures:
            self.failures -= 1
            raise RuntimeError("out of resources")
        return super()._infer(slot, inputs)


def test_a_fault_of_the_runtime_is_tried_again_and_told(warmable):
    plan = warmable.plan(concurrency=[1, 2], retries=1)
    result = run_plan(FailingSession(warmable.engine, 1), plan, warmable.rows)
    assert len(result.retried) == 1
    assert "step 1" in result.retried[0]
    assert "out of resources" in result.retried[0]
    with pytest.raises(TrialError, match=r"fails at a warm-up step(?s:.)*2 attempts"):
        run_plan(FailingSession(warmable.engine, 2), plan, warmable.rows)
    with pytest.raises(TrialError, match="1 attempts"):
        run_plan(FailingSession(warmable.engine, 1), warmable.plan(concurrency=[1, 2], retries=0), warmable.rows)


def test_a_wrong_answer_is_not_asked_for_again(warmable, expected):
    session, asked = RecordingSession(warmable.engine, 2), []
    session._infer = lambda slot, inputs: asked.append(slot) or RecordingSession._infer(session, slot, inputs)
    with pytest.raises(TrialError, match="not what was recorded"):
        run_plan(session, warmable.plan(iterations=1, batches=[1], retries=3), warmable.rows, expected)
    assert len(asked) <= 2, "once a thread of the first step"


def test_a_memory_ceiling_ends_the_warm_up(warmable):
    session = RecordingSession(warmable.engine, 2)
    with pytest.raises(TrialError, match=r"more memory than it may(?s:.)*at most 1 MB"):
        run_plan(session, warmable.plan(max_rss_mb=1.0), warmable.rows)
    assert session.seen == {(slot, rows) for slot, rows in session.seen if rows == 8}, "after the first step, which is the largest"
    assert run_plan(session, warmable.plan(max_rss_mb=1e6), warmable.rows).retried == ()
