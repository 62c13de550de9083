"""A control workload: matrix products that take about as long as a request, to tell the machine's noise from the engine's."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Self

import numpy as np

MAX_THREADS = 8
SIZE_RANGE = (16, 2048)


class Control:
    """`call` multiplies one matrix in each of `threads` threads and waits for all, as a runtime splits a layer and joins.

    So it is late when any core is taken away, as the engine is. The threads persist and are woken through queues written in C. The matrix
    library itself must be held to one thread (OPENBLAS_NUM_THREADS=1, see `warmup.coldstart`): its own threads spin on after a
    call and disturb the engine (measured: the request after one takes 3 to 5 times as long).
    """

    def __init__(self, threads: int) -> None:
        self._extra = max(0, min(threads, MAX_THREADS) - 1)
        self._go = [queue.SimpleQueue[bool]() for _ in range(self._extra)]
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._resize(SIZE_RANGE[0])
        self._threads = [threading.Thread(target=self._work, args=(index,), name="control", daemon=True) for index in range(self._extra)]
        for thread in self._threads:
            thread.start()

    def _resize(self, size: int) -> None:
        self.size = size
        self._matrix = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
        self._products = [np.empty_like(self._matrix) for _ in range(self._extra + 1)]

    def _work(self, index: int) -> None:
        while self._go[index].get():
            np.matmul(self._matrix, self._matrix, out=self._products[index])
            self._done.put(None)

    def call(self) -> None:
        for go in self._go:
            go.put(True)
        np.matmul(self._matrix, self._matrix, out=self._products[-1])
        for _ in self._go:
            self._done.get()

    def fit(self, milliseconds: float) -> float:
        """Choose the matrix size whose call takes about `milliseconds`; returns what it then takes. Leaves it warm.

        By the fastest of some calls, since noise only ever adds: give the fastest of some requests.
        """
        taken = self._fastest()
        for _ in range(6):
            scaled = round(self.size * min(4.0, max(0.25, (milliseconds / taken) ** (1 / 3))))
            size = min(SIZE_RANGE[1], max(SIZE_RANGE[0], scaled))
            if size == self.size or 0.9 <= taken / milliseconds <= 1.1:
                break
            self._resize(size)
            taken = self._fastest()
        return taken

    def _fastest(self) -> float:
        samples = []
        for _ in range(12):
            begun = time.perf_counter_ns()
            self.call()
            samples.append((time.perf_counter_ns() - begun) / 1e6)
        return min(samples)

    def close(self) -> None:
        for go in self._go:
            go.put(False)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
