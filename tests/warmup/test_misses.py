"""Cold requests behind a plan are found by fresh processes; a plan that covers them is not accused."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from engines.contract import Session
from pipeline.records import AxisRange, Situation
from pipeline.verdicts import Verdict
from warmup.coldstart import engine_command, measure
from warmup.diagnosis import diagnose
from warmup.misses import TOGETHER, draw, look, misses
from warmup.visit import IN_A_ROW, ROUNDS, Met, Visit, visit


def test_sizes_are_drawn_inside_the_range_and_never_from_the_plan() -> None:
    shapes = {"batch": AxisRange(1, 4, 8), "time": AxisRange(16, 32, 64)}
    drawn = draw(shapes, {"batch": (1, 4, 8), "time": (16, 64)}, 12, seed=3)
    assert len(drawn) == 12
    for sizes in drawn:
        assert 1 <= sizes["batch"] <= 8
        assert 16 <= sizes["time"] <= 64
        assert sizes["batch"] not in (1, 4, 8) or sizes["time"] not in (16, 64)
    assert drawn == draw(shapes, {"batch": (1, 4, 8), "time": (16, 64)}, 12, seed=3)
    assert draw({"batch": AxisRange(1, 1, 2)}, {"batch": (1, 2)}, 5, seed=0) == []


class SlowOnUnseenShapes(Session):
    """A double whose first run of each shape takes 300 ms more, as in a runtime that compiles for each shape."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, [0])
        self.ran: set[tuple[int, ...]] = set()

    def _infer(self, _slot: Any, inputs: Any) -> Any:
        shape = inputs["image"].shape
        time.sleep(0.002 if shape in self.ran else 0.3)
        self.ran.add(shape)
        return {"logits": np.zeros((shape[0], 5), np.float32)}

    def _release(self) -> None:
        pass


def test_an_engine_that_is_slow_on_sizes_it_never_ran_is_found_out(warmable: Any) -> None:
    plan = warmable.plan(batches=[1, 8], concurrency=[1])
    unseen = [Situation(sizes, 1) for sizes in draw(warmable.engine.shapes, plan.ladder, 3, seed=0)]
    verdicts = {}
    for pad in (True, False):
        slow = SlowOnUnseenShapes(warmable.engine)
        seen = visit(slow, unseen, warmable.rows, plan=plan, pad=pad)
        assert slow.ran == {(size, 3, 8, 8) for size in ([1, 8] if pad else [1, 8, *(one.sizes["batch"] for one in unseen)])}
        assert all(met.padded == ({"batch": 8} if pad else met.situation.sizes) for met in seen.met)
        verdicts[pad] = misses([seen] * 5)[0].verdict
    assert verdicts[False] is Verdict.FAIL


def seen(unseen: list[float], together: float | None) -> Visit:
    """A process with these first times over steady ones of 2 ms."""

    def met(sizes: dict[str, int], callers: int, ratio: float) -> Met:
        return Met(Situation(sizes, callers), {"batch": 8}, (2.0 * ratio,) * callers, (2.0 * ratio, *[2.0] * (ROUNDS * IN_A_ROW - 1)))

    alone = [met({"batch": 2 + index}, 1, ratio) for index, ratio in enumerate(unseen)]
    opening = ((2.0 * together, 2.0 * together), *[(2.0, 2.0)] * 20) if together else ()
    return Visit((*([met({"batch": 1}, 2, 1.0)] if together else []), *alone), opening, 0.0)


def test_verdicts_of_misses() -> None:
    clean = misses([seen([1.0, 1.1], 1.1)] * 9)
    assert [one.verdict for one in clean] == [Verdict.PASS, Verdict.PASS]
    assert clean[0].requests == 18
    one_cold_size = misses([seen([1.0, 9.0], 2.0)] * 9)
    assert [one.verdict for one in one_cold_size] == [Verdict.FAIL, Verdict.FAIL]
    assert one_cold_size[0].worst_sizes == {"batch": 3}
    few = misses([seen([9.0], None)] * 2)
    assert (few[0].verdict, few[0].ratio) == (Verdict.UNDECIDED, 9.0)
    assert (few[1].kind, few[1].verdict) == (TOGETHER, Verdict.NOT_MEASURED)
    assert misses([seen([], None)])[0].verdict is Verdict.NOT_MEASURED


def test_callers_that_come_together_are_each_timed(warmable: Any, tmp_path: Any) -> None:
    warmable.plan(batches=[1], concurrency=[1, 2]).save(tmp_path / "plan.json")
    (found,) = look(warmable.folder, tmp_path / "plan.json", warmable.rows_file, shapes=warmable.engine.shapes, draws=1, processes=1)
    assert [met.situation.callers for met in found.met] == [2, 1]
    assert len(found.met[0].first_ms) == 2
    assert all(len(taken) == 2 for taken in found.opening_ms)
    assert all(len(met.times_ms) == ROUNDS * IN_A_ROW and min(met.times_ms) > 0 for met in found.met)


def test_a_cold_engine_is_diagnosed_from_its_requests_and_phases(warmable: Any) -> None:
    command = {"cold": engine_command(warmable.folder, "cold", rows=warmable.rows_file, requests=20)}
    real = measure(command, 1)[0]
    found = diagnose([real] * 5, "cold")
    assert list(found.phase_ms)[:3] == ["interpreter", "imports", "load"]
    assert sum(found.phase_ms.values()) == pytest.approx(real.phases_ms["ready"])
    planted = dataclasses.replace(real, requests_ms=(30.0, 3.0, 1.0, *[1.0] * 17))
    cold = diagnose([planted] * 5, "cold")
    assert [request.verdict for request in cold.leading] == [Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    assert (cold.warm_up_needed, cold.leading[0].ratio, cold.leading[0].excess_ms) == (Verdict.FAIL, 30.0, 29.0)
    few = diagnose([planted] * 2, "cold")
    assert few.warm_up_needed is Verdict.UNDECIDED
    assert few.decide == "at least 5 processes"
    assert diagnose([dataclasses.replace(real, requests_ms=(1.5, *[1.0] * 19))] * 5, "cold").warm_up_needed is Verdict.PASS
