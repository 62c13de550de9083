"""What every backend offers, and the session that all of them share: checks, a pool of request slots, closing."""

from __future__ import annotations

import abc
import contextlib
import functools
import queue
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from pipeline.errors import ConfigError, TargetError
from pipeline.gpus import Gpu
from pipeline.records import AxisRange, Engine, Platform, TensorSpec
from pipeline.tensors import Batch, check_inputs

if TYPE_CHECKING:
    import numpy as np

PRECISIONS = ("int8", "float32")


NO_SETTINGS: Mapping[str, Any] = types.MappingProxyType({})
Progress = Callable[[int, int, str], None]
"""`progress(done, total, note)`"""


def silent(_done: int, _total: int, _note: str) -> None:
    """The progress that nobody watches."""


class Backend(Protocol):
    """A module `engines/<name>.py`. Its functions import the runtime when they are called, never at module level.

    Where its runtime has a profiler it also has `profile(folder, engine, batch, requests)`: milliseconds of each layer by name and type, in
    each of `requests` requests of a new session (`warmup/attribution.py` asks for it).
    """

    TARGETS: tuple[str, ...]
    SCHEMES: Mapping[str, tuple[str, ...]]
    """Quantization schemes of each target, the preferred one first."""
    HOST_PACKAGES: Mapping[str, tuple[str, ...]]
    """Distributions that a serving host of each target installs beside numpy, in the versions the bundle names."""

    def unavailable(self, target: str) -> str | None:
        """Why no engine of `target` can be built here, and what to install or where to go; None when one can."""

    def unrunnable(self, target: str) -> str | None:
        """Why an engine of `target` cannot be run here, though perhaps built: its hardware is missing. None when it can."""

    def platform_key(self, target: str) -> dict[str, str]:
        """What makes an engine of `target` invalid when it changes."""

    def gpu(self, target: str) -> Gpu | None:
        """The GPU that engines of `target` run on: None for a target of the CPU, and where there is none."""

    def misfit(self, target: str, wanted: Mapping[str, str]) -> list[str]:
        """One line for each of an engine's key fields, `wanted`, that keeps it from running here; none when it fits, though it may not be equal."""

    def preload(self, target: str) -> None:
        """Import the runtime and nothing more, so that a trial can tell its import from loading an engine."""

    def build(
        self,
        model: Path,
        folder: Path,
        *,
        target: str,
        precision: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        shapes: dict[str, AxisRange],
        platform: Platform,
        settings: Mapping[str, Any] = NO_SETTINGS,
        progress: Progress = silent,
    ) -> Engine:
        """Build the ONNX `model` into `folder` (files and engine.json), which appears whole or not at all.

        `settings` is what params.yaml says under `targets.<target>` besides `required`: a backend refuses what it does not know.
        """

    def load(self, folder: Path, engine: Engine, *, concurrency: int) -> Session:
        """Open what `build` wrote; the bytes given to the runtime are the very bytes whose sha256 was checked."""


Run = Callable[[Batch], "dict[str, np.ndarray]"]


class Session(abc.ABC):
    """An open engine. `run` is thread-safe; at most `concurrency` calls are inside the runtime at once, others wait.

    A backend subclasses it, hands one *slot* (an infer request, an execution context) for each concurrent call to
    `__init__`, and implements `_infer`. A slot is used by one thread at a time. The slot used last is given out first, so that a lone caller
    stays on warm buffers.
    """

    def __init__(self, engine: Engine, slots: Sequence[Any]) -> None:
        if not slots:
            raise ConfigError("A session needs at least one request slot", where="concurrency", expected="1 or more", got="0")
        self.engine = engine
        self.concurrency = len(slots)
        self._free: queue.LifoQueue[Any] = queue.LifoQueue()
        self._closing = threading.Lock()
        self._closed = False
        for slot in slots:
            self._free.put(slot)

    @abc.abstractmethod
    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        """Run checked inputs on `slot` and return copies of the outputs: nothing may point into the slot's buffers."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Drop what the runtime holds; called once, when no call is in flight."""

    @property
    def settings(self) -> dict[str, str]:
        """What the runtime says it really uses (threads, streams, precision), read back from it."""
        return {}

    @property
    def cache_hits(self) -> dict[str, int]:
        """Hits of the runtime's own caches since it was opened, by cache; empty where it has none or does not tell."""
        return {}

    def run(self, inputs: Batch) -> dict[str, np.ndarray]:
        """`{"image": (N, C, H, W)}` to `{"logits": (N, classes)}`.

        Raises InputError when a name, dtype, rank or size is not what the engine declares; nothing is converted.
        """
        slot = self._take()
        try:
            return self._checked(slot, inputs)
        finally:
            self._free.put(slot)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Run]:
        """Hold one slot and yield a `run` bound to it.

        Threads that hold leases at the same time are on different slots for certain: that is how a warm-up reaches all of them.
        Raises TargetError when the session is closed.
        """
        slot = self._take()
        try:
            yield functools.partial(self._checked, slot)
        finally:
            self._free.put(slot)

    def _take(self) -> Any:
        slot = self._free.get()
        if self._closed:
            self._free.put(slot)
            raise TargetError("The session is closed", where=self.engine.target, expected="an open session", next="open the engine again")
        return slot

    def _checked(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        check_inputs(inputs, self.engine.inputs, self.engine.shapes)
        return self._infer(slot, inputs)

    def close(self, timeout: float | None = None) -> None:
        """Wait for the calls in flight, then free the runtime's memory. Later calls raise TargetError; closing twice is harmless.

        After `timeout` seconds what a call that does not return holds is left to it until the process ends.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(queue.Empty):
                for _ in range(self.concurrency):
                    self._free.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
                self._release()
            self._free.put(None)  # wakes whoever waited for a slot, one after the other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
