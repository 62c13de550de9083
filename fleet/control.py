"""The controller on the real clock, between requests and servers: one lock, one loop, state that is saved. Standard library only."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet.controller import TICK_S, Controller
from fleet.drivers import Driver
from fleet.journal import Journal
from fleet.logs import Log
from fleet.models import Action, Phase
from fleet.modes import Mode
from fleet.saved import restore, snapshot
from pipeline.errors import QwarmError, TrialError

POLL_S = 0.05
SAVE_S = 60.0
MOST_FAILURES = 3
"""Loads that fail while a request waits, until it is told so."""
JUMP_S = 5.0
"""Wall clock against monotonic clock: a difference that grows by more is a clock that was set."""


class Control:
    """Runs `controller` with `driver`. Thread-safe.

    `state`: folder for what is saved; a new run goes on from it and takes over servers that are warm. `close` saves.
    """

    def __init__(self, controller: Controller, driver: Driver, *, state: Path | None = None, log: Log | None = None) -> None:
        self.controller, self.driver, self.log = controller, driver, log or Log()
        self.file = state / "controller.json" if state is not None else None
        self._journal: Journal | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._offset = time.time() - time.monotonic()
        self._saved_at = self._ticked_at = time.monotonic()
        with self._changed:
            if self.file is not None:
                restore(controller, self.file, self.log.warning)
                self._journal = Journal(self.file.parent)
            for name in driver.found():
                if name in controller.models:
                    self._do(controller.adopt(name, self.now()))
            self._do(controller.tick(self.now()))
        self._loop = threading.Thread(target=self._run, name="controller", daemon=True)
        self._loop.start()

    def now(self) -> float:
        """Seconds since the epoch as of the start, so that a clock that is set later makes no gap."""
        return time.monotonic() + self._offset

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self.log.info("action", kind=action.kind.value, model=action.model, urgent=action.urgent, reason=action.reason)
            model = self.controller.models.get(action.model)
            if model is None:
                continue
            try:
                self.driver.begin(action, model.spec, self.now())
            except (OSError, QwarmError) as error:
                self._do(self.controller.failed(action.model, self.now(), f"{type(error).__name__}: {error}"))

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            with self._changed:
                try:
                    self.step()
                except Exception as error:  # a fault of ours must not end the loop that requests wait for
                    self.log.error("fault", where="controller", fault=f"{type(error).__name__}: {error}")
            if time.monotonic() - self._saved_at > SAVE_S:
                self.save()

    def step(self) -> None:
        """One round of the loop: what servers did, and what is due. The lock must be held."""
        controller, now = self.controller, self.now()
        drift = time.time() - time.monotonic() - self._offset
        if abs(drift) > JUMP_S:
            self.log.warning("clock_jumped", seconds=drift)
            self._offset += drift
            now = self.now()
            controller.jumped(now)
        events = self.driver.poll(now)
        for event in events:
            if event.what in ("loaded", "unloaded"):
                self._do(getattr(controller, event.what)(event.name, now))
            else:
                self._do(getattr(controller, event.what)(event.name, now, event.reason))
        dead = bool(controller.forecasts.fault(now)) != (controller.modes.mode is Mode.CONSERVATIVE)
        if dead or controller.forecasts.heard or controller.next_wake() <= now or time.monotonic() - self._ticked_at > TICK_S / 4.0:
            self._ticked_at = time.monotonic()
            self._do(controller.tick(now))
        if events:
            self._changed.notify_all()

    def save(self) -> None:
        """Write what was learnt, without holding requests up meanwhile; a full disk is logged and nothing else."""
        self._saved_at = time.monotonic()
        if self.file is not None:
            with self._changed:
                saved = snapshot(self.controller, self.now())
                if self._journal is not None:
                    self._journal.turn()
            try:
                saved.save(self.file)
                if self._journal is not None:
                    self._journal.forget()
            except QwarmError as error:
                self.log.error("state_not_saved", **error.as_json())

    def _request(self, name: str, now: float) -> None:
        actions = self.controller.request(name, now)
        if self._journal is not None:
            with contextlib.suppress(OSError):  # a full disk, which saving tells of
                self._journal.add(name, now)
        self._do(actions)

    @contextlib.contextmanager
    def using(self, name: str, seconds: float) -> Iterator[Callable[[], str]]:
        """The model stays while the block runs. What is yielded waits until it is warm and returns the address that answers for it; to be called
        again after `lost`.

        Raises InputError for an unknown model; what is yielded raises TrialError when it is not warm `seconds` after the request, or its load fails.
        """
        with self._changed:
            self._request(name, self.now())
            model = self.controller.model(name)
            failures = model.counts["load_failures"]
        deadline = time.monotonic() + seconds

        def address() -> str:
            with self._changed:
                while model.phase is not Phase.WARM or (found := self.driver.address(name)) is None:
                    left = deadline - time.monotonic()
                    if left <= 0.0 or model.counts["load_failures"] >= failures + MOST_FAILURES:
                        raise TrialError("The model does not get warm", where=name, expected=f"within {seconds:g} s", got=model.phase.name)
                    self._changed.wait(min(1.0, left))
                return found

        try:
            yield address
        finally:
            with self._changed:
                self._do(self.controller.done(name, self.now()))

    def saw(self, name: str, count: int) -> None:
        """Requests that a server of its own has answered just now (shadow mode)."""
        with self._changed:
            for _ in range(count):
                now = self.now()
                self._request(name, now)
                self._do(self.controller.done(name, now))

    def status(self) -> dict[str, Any]:
        """What the controller knows, for operators."""
        with self._changed:
            return {**self.controller.status(self.now()), "addresses": {name: self.driver.address(name) for name in self.controller.models}}

    def lost(self, name: str, reason: str, address: str) -> None:
        """A request found that the server at `address` does not answer; nothing is done when another one has taken its place."""
        with self._changed:
            if self.driver.address(name) != address or self.controller.models[name].phase is not Phase.WARM:
                return
            self._do(self.controller.lost(name, self.now(), reason))

    def close(self, unload: bool = False) -> None:
        """Stop deciding, save, and leave the servers to the next controller (or end them)."""
        self._stop.set()
        self._loop.join(10.0)
        self.save()
        with self._changed:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            self.controller.forecasts.close()
            self.driver.close(unload)
