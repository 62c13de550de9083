"""Cold requests behind a plan are found by fresh processes; a plan that covers them is not accused."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

import engines
from pipeline.records import AxisRange
from pipeline.verdicts import Verdict
from warmup.coldstart import engine_command, measure
from warmup.diagnosis import diagnose
from warmup.misses import TOGETHER, look, misses, probe_command
from warmup.unseen import Probe, Unseen, draw
from warmup.unseen import probe as look_into


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


class SlowOnUnseenShapes:
    """A real session that takes 300 ms more for each shape it has not run, as a runtime that compiles for each shape does."""

    def __init__(self, session: Any) -> None:
        self.session, self.engine, self.ran = session, session.engine, set()

    def run(self, batch: Any) -> Any:
        shape = batch["image"].shape
        time.sleep(0.002 if shape in self.ran else 0.3)
        self.ran.add(shape)
        return self.session.run(batch)


def test_an_engine_that_is_slow_on_sizes_it_never_ran_is_found_out(warmable: Any) -> None:
    plan = warmable.plan(batches=[1, 8], concurrency=[1])
    seen = {}
    for pad in (True, False):
        with engines.open_engine(warmable.folder) as session:
            slow: Any = SlowOnUnseenShapes(session)
            for batch in (1, 8):
                slow.run({"image": warmable.rows["image"][[0] * batch]})
            seen[pad] = look_into(slow, plan, warmable.rows, draws=4, callers=1, seed=0, pad=pad)
            assert slow.ran == {(size, 3, 8, 8) for size in ([1, 8] if pad else [1, 8, *(one.sizes["batch"] for one in seen[False].unseen)])}
    for pad, found in seen.items():
        assert all(one.padded == ({"batch": 8} if pad else one.sizes) for one in found.unseen)
    assert misses([seen[False]] * 5)[0].verdict is Verdict.FAIL


def probe(unseen: list[float], together: list[float]) -> Probe:
    met = tuple(Unseen({"batch": 2 + index}, {"batch": 8}, ratio * 2.0, 2.0) for index, ratio in enumerate(unseen))
    return Probe(met, tuple(value * 3.0 for value in together), 3.0 if together else None)


def test_verdicts_of_misses() -> None:
    clean = misses([probe([1.0, 1.1], [1.0, 1.2])] * 9)
    assert [one.verdict for one in clean] == [Verdict.PASS, Verdict.PASS]
    assert clean[0].requests == 18
    one_cold_size = misses([probe([1.0, 9.0], [2.0, 2.0])] * 9)
    assert [one.verdict for one in one_cold_size] == [Verdict.FAIL, Verdict.FAIL]
    assert one_cold_size[0].worst_sizes == {"batch": 3}
    few = misses([probe([9.0], [])] * 2)
    assert (few[0].verdict, few[0].ratio) == (Verdict.UNDECIDED, 9.0)
    assert (few[1].kind, few[1].verdict) == (TOGETHER, Verdict.NOT_MEASURED)
    assert misses([probe([], [])])[0].verdict is Verdict.NOT_MEASURED


def test_callers_that_come_together_are_each_timed(warmable: Any, tmp_path: Any) -> None:
    warmable.plan(batches=[1], concurrency=[1, 2]).save(tmp_path / "plan.json")
    found = look(probe_command(warmable.folder, rows=warmable.rows_file, plan=tmp_path / "plan.json", draws=1, callers=2), 1)
    assert len(found[0].together_ms) == 2
    assert found[0].together_steady_ms


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
