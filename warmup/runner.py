"""Run a warm-up plan on an open session, in the process that will answer."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from engines.contract import Session
from pipeline.digests import sha256_arrays
from pipeline.errors import QwarmError, Refused, TrialError
from pipeline.padding import fit
from pipeline.records import WarmupPlan, WarmupResult, WarmupStep
from pipeline.tensors import Batch
from warmup.memory import rss_mb
from warmup.plan import batch_axis, expected_name, other_sizes
from warmup.power import Pace

TOLERANCE = 0.05
"""Largest difference from a recorded output, over that output's largest absolute value. Batch sizes take different kernels whose float
rounding can move an 8-bit code by one, which grows on the way to the output; a wrong engine or wrong rows differ by far more."""

GRACE_SECONDS = 0.5
"""Beyond the deadline: a step that notices it says where it was."""


def run_plan(session: Session, plan: WarmupPlan, rows: Batch, expected: Batch | None = None) -> WarmupResult:
    """Run every step; a step of n threads holds n of the session's slots at once, so each of them meets each shape.
    On a session with fewer slots than that, as many threads run as there are slots. A last step of one thread runs once more than it says, in the
    plan's own thread, and as often as it says in the thread that called.

    `rows` are the warm-up arrays the plan was made for, `expected` the recorded output of each row run alone (`record`). Raises Refused when
    the plan is of another engine or other rows, or reaches fewer slots than `session` has, TrialError when it takes longer than
    `plan.max_seconds` or more memory than `plan.max_rss_mb`, the runtime fails at a step more than `plan.retries` times, an output is not
    finite, or one is further than `TOLERANCE` from what was recorded: a wrong answer is not asked for again.
    """
    _refuse_foreign(session, plan, rows)
    run = _Run(session, plan, rows, expected)
    worker = threading.Thread(target=run.steps, name="warmup", daemon=True)  # a runtime that never returns must not hold up who called
    worker.start()
    worker.join(plan.max_seconds + GRACE_SECONDS)
    if worker.is_alive():
        raise run.late()
    if run.error is not None:
        raise run.error
    run.settle()
    return WarmupResult(tuple(run.seconds), time.monotonic() - run.started, tuple(run.retried), run.pace.paced_seconds)


class _Run:
    """One plan at work: `steps` in a thread of their own, `settle` in the thread that will answer."""

    def __init__(self, session: Session, plan: WarmupPlan, rows: Batch, expected: Batch | None) -> None:
        self.session, self.plan, self.rows, self.expected = session, plan, rows, expected
        self.started = time.monotonic()
        self.deadline = self.started + plan.max_seconds
        self.pace = Pace(plan.max_power_w, plan.max_celsius)
        self.seconds: list[float] = []
        self.retried: list[str] = []
        self.error: BaseException | None = None
        self.where = "before the first step"

    def steps(self) -> None:
        try:
            for number in range(len(self.plan.steps)):
                begun = time.monotonic()
                step = self.step(number)
                self.where = step.where
                if self.settles(number, step.threads):
                    step = dataclasses.replace(step, iterations=1)
                self.retried += _with_retries(step, self.plan.retries)
                _within(self.plan, step.where)
                self.seconds.append(time.monotonic() - begun)
        except BaseException as error:
            self.error = error

    def settles(self, number: int, threads: int) -> bool:
        """Whether a step is for the thread that called: the last one, of one thread."""
        return number + 1 == len(self.plan.steps) and threads == 1

    def step(self, number: int) -> _Step:
        step = self.plan.steps[number]
        chosen = {name: array[list(step.rows)] for name, array in self.rows.items()}
        batch = fit(chosen, self.session.engine.inputs, step.sizes)
        threads = min(step.threads, self.session.concurrency)
        where = f"step {number + 1} of {len(self.plan.steps)}: {_sizes(step)}, {threads} threads"
        return _Step(self.session, step, threads, step.iterations, batch, self.expected, where, self.plan.max_seconds, self.deadline, self.pace)

    def settle(self) -> None:
        """A last step of one thread in the thread that called, which no other can stand in for: with other threads just gone, a kernel takes some
        30 ms until it runs a thread beside those of the runtime (ONNX Runtime: requests of 1.3 times their p50 until then, measured).

        A runtime that hangs has shown it before: the step has run once in the plan's own thread.
        """
        if not self.plan.steps:
            return
        begun, number = time.monotonic(), len(self.plan.steps) - 1
        last = self.step(number)
        if self.settles(number, last.threads):
            self.retried += _with_retries(last, self.plan.retries)
            self.seconds[-1] += time.monotonic() - begun

    def late(self) -> TrialError:
        return _late(self.where, self.plan.max_seconds)


def _with_retries(work: _Step, retries: int) -> list[str]:
    """Run a step, again where the runtime itself fails; what failed. What we judge (an output, the deadline) is final at once."""
    failed: list[str] = []
    while True:
        try:
            work.run()
            return failed
        except QwarmError:
            raise
        except Exception as error:  # a runtime's exceptions have no common base but Exception
            failed.append(f"{work.where}: {type(error).__name__}: {error}")
            if len(failed) > retries:
                raise TrialError(
                    "The runtime fails at a warm-up step", where=work.where, expected=f"success in {retries + 1} attempts",
                    got="; ".join(failed), next="verify the bundle, then build on this platform; warmup.retries in params.yaml allows more attempts",
                ) from error  # fmt: skip


def _within(plan: WarmupPlan, where: str) -> None:
    """Raise TrialError where the process holds more memory than the plan allows."""
    held = rss_mb() if plan.max_rss_mb is not None else None
    if held is not None and plan.max_rss_mb is not None and held > plan.max_rss_mb:
        raise TrialError(
            "The warm-up takes more memory than it may", where=where, expected=f"at most {plan.max_rss_mb:g} MB resident", got=f"{held:.0f} MB",
            next="raise warmup.max_rss_mb in params.yaml, or warm smaller batches and fewer callers",
        )  # fmt: skip


def record(session: Session, rows: Batch, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, np.ndarray]:
    """The output of each warm-up row run alone, `{name: (rows, ...)}`: what a host compares its own with.

    A model with named axes other than the batch has one record for each combination of their warmed sizes (`expected_name`).
    """
    engine = session.engine
    axis, count = batch_axis(engine.inputs), len(next(iter(rows.values())))
    smallest = engine.shapes[axis].min
    recorded: dict[str, np.ndarray] = {}
    for sizes in other_sizes(engine.inputs, engine.shapes, shapes):
        fitted = fit(rows, engine.inputs, {**sizes, axis: count})
        alone = [session.run({name: np.repeat(array[index : index + 1], smallest, 0) for name, array in fitted.items()}) for index in range(count)]
        recorded |= {expected_name(name, sizes): np.concatenate([outputs[name][:1] for outputs in alone]) for name in alone[0]}
    return recorded


def _refuse_foreign(session: Session, plan: WarmupPlan, rows: Batch) -> None:
    for what, wanted, found in (
        ("A warm-up plan is of another engine", plan.engine_sha256, session.engine.digest()),
        ("A warm-up plan is of other rows", plan.rows_sha256, sha256_arrays(rows)),
    ):
        if wanted != found:
            raise Refused(what, where=f"plan of {plan.target}", expected=f"sha256 {wanted}", got=f"sha256 {found}", next="run `dvc repro`")
    if session.concurrency > plan.concurrency:
        raise Refused(
            "A session has more request slots than its warm-up plan reaches",
            where=f"plan of {plan.target}",
            expected=f"concurrency of {plan.concurrency} or less",
            got=str(session.concurrency),
            next="open the engine with fewer slots, or widen warmup.concurrency in params.yaml and run `dvc repro`",
        )


@dataclasses.dataclass(frozen=True)
class _Step:
    """One step at work. `deadline` is on the clock of `time.monotonic`."""

    session: Session
    step: WarmupStep
    threads: int
    iterations: int
    batch: Batch
    expected: Batch | None
    where: str
    max_seconds: float
    deadline: float
    pace: Pace

    def run(self) -> None:
        barrier = threading.Barrier(self.threads)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self.iterate(barrier)
            except BaseException as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, name="warmup", daemon=True) for _ in range(self.threads - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join(self.left())
        if errors:  # a thread's own error rather than the broken barrier it left to the others
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), self.late())
        if any(thread.is_alive() for thread in threads):
            raise self.late()

    def iterate(self, barrier: threading.Barrier) -> None:
        """One thread's part, on one slot from start to end."""
        with self.session.lease() as run:
            barrier.wait(timeout=self.left())
            for _ in range(self.iterations):
                self.pace.wait(self.deadline)
                self.check(run(self.batch))
                if time.monotonic() > self.deadline:
                    raise self.late()

    def left(self) -> float:
        return max(0.001, self.deadline - time.monotonic())

    def late(self) -> TrialError:
        return _late(self.where, self.max_seconds)

    def check(self, outputs: Batch) -> None:
        others = {axis: size for axis, size in self.step.sizes.items() if axis != batch_axis(self.session.engine.inputs)}
        for name, output in outputs.items():
            if output.dtype.kind == "f" and not np.isfinite(output).all():
                bad = [index for index, row in zip(self.step.rows, output, strict=False) if not np.isfinite(row).all()]
                where = f"{self.where}; output {name}, warm-up rows {bad[:5]}"
                raise TrialError("A warm-up output is not finite", where=where, expected="finite numbers", got="NaN or infinity")
            if self.expected is not None:
                self.compare(expected_name(name, others), output, self.expected)

    def compare(self, name: str, output: np.ndarray, expected: Batch) -> None:
        if name not in expected or output.shape[1:] != expected[name].shape[1:]:
            got = str(expected[name].shape[1:]) if name in expected else "nothing recorded"
            raise TrialError("A warm-up output was recorded otherwise", where=f"{self.where}; output {name}", expected=str(output.shape[1:]), got=got)
        allowed = TOLERANCE * float(np.abs(expected[name]).max(initial=0.0))
        distances = np.abs(output.astype(np.float64) - expected[name][list(self.step.rows)]).reshape(len(self.step.rows), -1).max(axis=1)
        worst = int(distances.argmax())
        if not distances[worst] <= allowed:
            raise TrialError(
                "A warm-up output is not what was recorded",
                where=f"{self.where}; output {name}, warm-up row {self.step.rows[worst]}",
                expected=f"within {allowed:.4g} of the recorded output",
                got=f"a difference of {distances[worst]:.4g}",
                next="verify the bundle, then build on this platform",
            )


def _late(where: str, max_seconds: float) -> TrialError:
    return TrialError(
        "The warm-up took too long",
        where=where,
        expected=f"the whole plan within {max_seconds:g} s",
        got="deadline passed",
        next="raise warmup.max_seconds in params.yaml, or warm fewer batch sizes",
    )


def _sizes(step: WarmupStep) -> str:
    return ", ".join(f"{name} {size}" for name, size in step.sizes.items())
