"""How far a choice of layers is from float, as written and in each runtime, and how long a request takes there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.exposing import Opener, Run, run_rows
from calibration.runtime import run_session, session, simulator
from calibration.variants import Job
from pipeline.decibels import drift, sqnr_db
from pipeline.errors import ModelError, QuantizeError
from pipeline.search_records import DeployedPoint, SearchPoint
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

SCREENED = 16
"""Search rows that order candidates; every search row judges a point."""
ROWS = 8
"""Rows that run at once."""
WARM, FEWEST, MOST, SECONDS = 5, 15, 200, 5.0
"""Requests before the clock starts; pairs of timed ones, until `SECONDS` are over."""
DIGITS = 5
"""Of a time in ms: ten nanoseconds."""


class Measure:
    """Judges models on the search rows of a job. `openers`: each target's runtime with its deployed options; `plain` is what all are timed against.

    Times are ratios of requests that take turns in this process; what is released is measured again, in fresh processes.
    """

    def __init__(self, job: Job, openers: Mapping[str, Opener], plain: onnx.ModelProto) -> None:
        self._job, self._openers, self._plain = job, openers, plain
        self._allowed = AxisRange(job.batch.min, job.batch.min, min(max(ROWS, job.batch.min), job.batch.max))
        runtime = session(job.judge, optimize=False)
        self._reference = self._run(lambda batch: run_session(runtime, batch), job.rows)
        self._few = {name: array[:SCREENED] for name, array in job.rows.items()}
        self.unmeasured: dict[str, str] = {}
        """Targets that cannot run plain INT8, and why."""

    def screen(self, model: onnx.ModelProto) -> float:
        """Drift on the first `SCREENED` rows, Q/DQ computed as written."""
        return self._drift(_simulated(model), self._few)

    def whole(self, model: onnx.ModelProto) -> float:
        """Drift on every row."""
        return self._drift(_simulated(model), self._job.rows)

    def point(self, added: str, layers: Collection[str], model: onnx.ModelProto, *, whole: bool = True) -> SearchPoint:
        """Everything about one choice. Raises what a runtime raises that cannot build the model."""
        deployed = {}
        for target, opener in self._openers.items():
            if target in self.unmeasured:
                continue
            with contextlib.ExitStack() as opened:
                try:
                    plain = opened.enter_context(opener(self._plain))  # anew: what was opened in a young process stays several per cent quicker
                except ModelError as error:  # the stage `build` will refuse it
                    self.unmeasured[target] = " ".join(str(error).split())
                    continue
                run = opened.enter_context(opener(model)) if layers else plain
                plain_ms, ms = self._timed(plain, run)
                ratio = float(np.median(np.array(ms) / np.array(plain_ms))) if layers else 1.0  # of neighbours, which share the machine's mood
                deployed[target] = DeployedPoint(self._drift(run, self._job.rows), ratio, plain_ms, ms)
        return SearchPoint(added, tuple(sorted(layers)), self.whole(model), deployed, whole)

    def _run(self, run: Run, rows: Batch) -> dict[str, np.ndarray]:
        return run_rows(run, rows, self._allowed)

    def _drift(self, run: Run, rows: Batch) -> float:
        got = self._run(run, rows)
        decibels = []
        for name, array in got.items():
            if not np.isfinite(array).all():
                raise QuantizeError("The Q/DQ model gives values that are not finite", where=f"output {name}", expected="finite numbers")
            decibels.append(sqnr_db(self._reference[name][: len(array)], array))
        return max(map(drift, decibels))

    def _timed(self, plain: Run, other: Run) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Times in ms of single requests of the smallest batch, each model first every other time."""
        batch = {name: np.ascontiguousarray(np.resize(array[:1], (self._job.batch.min, *array.shape[1:]))) for name, array in self._job.rows.items()}
        spent: tuple[list[float], list[float]] = ([], [])
        for run in (plain, other) * WARM:
            run(batch)
        ends = time.perf_counter() + SECONDS
        while len(spent[0]) < FEWEST or (len(spent[0]) < MOST and time.perf_counter() < ends):
            for place in (0, 1) if len(spent[0]) % 2 else (1, 0):
                started = time.perf_counter()
                (plain, other)[place](batch)
                spent[place].append(round((time.perf_counter() - started) * 1000, DIGITS))
        return tuple(spent[0]), tuple(spent[1])


def _simulated(model: onnx.ModelProto) -> Callable[[Batch], Mapping[str, np.ndarray]]:
    runtime = simulator(model)
    return lambda batch: run_session(runtime, batch)
