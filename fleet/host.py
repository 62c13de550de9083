"""Open a bundle in the process that will answer: verify, choose a target, load, warm, and only then say so."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

import engines
from engines.contract import Session
from fleet import state as states
from fleet.parts import Parts, read_parts
from fleet.verify import Verified, verify
from pipeline.errors import InputError, QwarmError, TargetError, TrialError
from pipeline.padding import cut, stack
from pipeline.records import ReleasedTarget, ReleaseManifest, WarmupResult
from pipeline.tensors import Batch, check_inputs
from warmup.plan import pad_to_plan
from warmup.runner import run_plan

HUNG_SECONDS = 1.0


class Served:
    """A warm engine with its preprocessing. `infer` and `prepare` are thread-safe.

    `timings_ms`: verify, load, warm (each alone) and ready (from process start).
    """

    def __init__(self, parts: Parts, session: Session, warmed: WarmupResult, timings_ms: Mapping[str, float]) -> None:
        self.parts, self.session, self.warmed, self.timings_ms = parts, session, warmed, dict(timings_ms)
        self.manifest: ReleaseManifest = parts.verified.manifest
        self.target = parts.released.target
        self.labels: tuple[str, ...] = parts.labels
        self._ladder = parts.plan.ladder
        self.fell_back: dict[str, str] = {}
        """Targets of the bundle that fit this machine and could not be made hot, and why: this one was taken in their place."""
        self._state_folder: Path | None = None

    def infer(self, inputs: Batch) -> dict[str, np.ndarray]:
        """`{"image": (N, ...)}` to `{"logits": (N, ...)}`; N, and each axis that may be padded, grows to the next warmed size, and the answer
        is cut back.

        Raises InputError when a name, dtype or shape is not as declared; nothing is converted.
        """
        check_inputs(inputs, self.manifest.inputs, self.manifest.shapes)
        padded, sizes = pad_to_plan(inputs, self.manifest.inputs, self._ladder)
        return cut(self.session.run(padded), self.manifest.outputs, sizes)

    def prepare(self, raw: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """One raw row, or a list of rows, to the model's tensors with a batch axis, by the shipped preprocessing.

        Raises InputError naming the row that the preprocessing refuses.
        """
        rows = [raw] if isinstance(raw, Mapping) else list(raw)
        if not rows:
            raise InputError("There is no row to prepare", where="prepare", expected="one row or more", got="an empty list")
        prepared = []
        for index, row in enumerate(rows):
            try:
                tensors = self.parts.prepare(row)
                prepared.append({spec.name: np.asarray(tensors[spec.name]) for spec in self.manifest.inputs})
            except Exception as error:  # the shipped function is a user's and may raise anything
                raise InputError(
                    "The preprocessing refuses a row", where=f"row {index}", expected=f"what {self.manifest.preprocess} takes",
                    got=f"{type(error).__name__}: {error}",
                ) from error  # fmt: skip
        batch = stack(prepared, self.manifest.inputs, self.manifest.shapes, [f"row {index}" for index in range(len(prepared))])
        check_inputs(batch, self.manifest.inputs, self.manifest.shapes)
        return batch

    def announce(self, folder: str | os.PathLike[str] | None = None, address: str | None = None) -> states.State:
        """Write the state that `ready` reads; from now on this process counts as warm until it ends or `close` is called."""
        self._state_folder = Path(folder) if folder is not None else states.default_folder()
        return states.write(
            self._state_folder,
            bundle=self.parts.verified.folder,
            bundle_sha256=self.parts.verified.digest,
            name=self.manifest.name,
            version=self.manifest.version,
            target=self.target,
            address=address,
            ready_ms=self.timings_ms["ready"],
        )

    def withdraw(self) -> None:
        """Take the state back: `ready` is false from now on, `infer` still works."""
        if self._state_folder is not None:
            states.remove(self._state_folder)
            self._state_folder = None

    def close(self) -> None:
        """Withdraw, wait for running calls, free the runtime. Closing twice is harmless."""
        self.withdraw()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open(
    bundle: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    target: str | None = None,
    concurrency: int | None = None,
    key: str | os.PathLike[str] | None = None,
    allow_unsigned: bool = False,
) -> Served:
    """Verify, load and warm `bundle` in this process, then write its state to the folder `state`.

    `key`: public key, or identity file (fleet/identity.py), that must have signed it; without one it is refused, unless `allow_unsigned`.

    `state`: default `fleet.state.default_folder()`. `target`: default the first in the manifest that this machine can run.
    `concurrency`: calls at once inside the runtime, at most (and by default) what the plan warms.

    Raises Refused when the bundle is not what its manifest says or not what `key` signed, TargetError when no target fits this machine, TrialError
    when the plan misses its deadline or an output is not the recorded one.
    """
    started = time.perf_counter()
    verified = verify(bundle, key, allow_unsigned=allow_unsigned)
    served = load(verified, target=target, concurrency=concurrency, verify_ms=(time.perf_counter() - started) * 1000.0)
    try:
        served.announce(state)
    except QwarmError:
        served.close()
        raise
    return served


def load(verified: Verified, *, target: str | None = None, concurrency: int | None = None, verify_ms: float = 0.0) -> Served:
    """Open and warm what was verified, without announcing it.

    Where a target cannot be opened or made hot, the next of the bundle that fits this machine is taken, unless one was asked for: `fell_back`
    of what is returned says why. Raises what the last of them raised; Refused (a file that is not as signed) ends it at once.
    """
    fell_back: dict[str, str] = {}
    candidates = fitting(verified.manifest, target)
    for released in candidates:
        try:
            served = _load(verified, released, concurrency, verify_ms)
        except (TargetError, TrialError) as error:
            if released is candidates[-1]:
                raise
            fell_back[released.target] = str(error)
        else:
            served.fell_back = fell_back
            return served
    raise AssertionError("fitting gives one target or raises")


def _load(verified: Verified, released: ReleasedTarget, concurrency: int | None, verify_ms: float) -> Served:
    parts = read_parts(verified, released)
    start = time.perf_counter()
    session = parts.open_session(concurrency)
    try:
        loaded = time.perf_counter()
        warmed = run_plan(session, parts.plan, parts.rows, parts.expected)
        timings = {"verify": verify_ms, "load": (loaded - start) * 1000.0, "warm": (time.perf_counter() - loaded) * 1000.0}
        return Served(parts, session, warmed, {**timings, "ready": states.process_age_ms()})
    except BaseException:
        session.close(timeout=HUNG_SECONDS)  # a call that hangs in the runtime must not keep the next target from being tried
        raise


def choose(manifest: ReleaseManifest, target: str | None = None) -> ReleasedTarget:
    """The first of `fitting`."""
    return fitting(manifest, target)[0]


def fitting(manifest: ReleaseManifest, target: str | None = None) -> list[ReleasedTarget]:
    """The targets of the manifest, or the one named, that this machine can run: those of its platform, in the manifest's order.

    Raises TargetError saying for each target what differs when there is none.
    """
    candidates = [released for released in manifest.targets if target in (None, released.target)]
    reasons = {released.target: unfit(released) for released in candidates}
    if able := [released for released in candidates if reasons[released.target] is None]:
        return able
    known = [released.target for released in manifest.targets]
    raise TargetError(
        "No target of this bundle runs on this machine" if candidates else "The bundle has no such target",
        where=f"{manifest.name} {manifest.version}",
        expected=f"one of {', '.join(known)}" + ("".join(f"; left out: {name} ({reason})" for name, reason in manifest.left_out.items())),
        got="; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or str(target),
        next="install what is named, or release the bundle for this platform",
    )


def unfit(released: ReleasedTarget) -> str | None:
    """Why this machine cannot run a target, or None when it can."""
    try:
        backend = engines.backend(released.target)
    except TargetError as error:
        return error.what
    if reason := backend.unrunnable(released.target):
        return reason
    return ", ".join(backend.misfit(released.target, released.key_fields)) or None
