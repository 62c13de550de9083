"""Calibration rows through both graphs, again and again, from the last place whose tensors fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from calibration.rounding.methods import Calibration
from calibration.rounding.twin import Twin
from calibration.runtime import simulator
from pipeline.tensors import AxisRange, Batch

KEPT_BYTES = 192 * 2**20
"""What the stored tensors of all rows may take together. Less memory costs time, never accuracy."""
ROWS = 8
"""Rows that run at once, where the model allows it."""


class Replay:
    """Gives tensors of a `Twin`, batch by batch."""

    def __init__(self, twin: Twin, calibration: Calibration, batch: AxisRange) -> None:
        self.twin, self.rows, self.count, self.batch = twin, calibration.batches, calibration.count, batch
        self._stored: list[dict[str, np.ndarray]] | None = None
        self._keep(self.batches(), lambda batch: dict(batch))

    def batches(self) -> Iterable[Batch]:
        """The rows, at the place they are replayed from, in batches that are the same each time."""
        if self._stored is not None:
            return self._stored
        return (part for batch in self.rows() for part in parts(batch, self.batch))

    def computed(self, names: Sequence[str], batches: Iterable[Batch]) -> Iterator[dict[str, np.ndarray]]:
        """The tensors `names` for each of `batches`, with the constants as they are now."""
        run: Callable[[Batch], dict[str, np.ndarray]] | None = None
        for batch in batches:
            run = run or self._runner(names, batch.keys())
            yield run(batch)

    def advance(self, end: int) -> None:
        """Replay from behind the first `end` nodes from now on, if what is alive there fits into memory."""
        names = self.twin.live(end)
        first = next(iter(self.batches()))
        run = self._runner(names, first.keys())
        if self._fits(run(first), first):
            self._keep(self.batches(), run)

    def _keep(self, batches: Iterable[Batch], run: Callable[[Batch], dict[str, np.ndarray]]) -> None:
        """Store what `run` gives for each batch, each in the place of what it was made from."""
        if self._stored is not None:
            for index, stored in enumerate(self._stored):
                self._stored[index] = run(stored)
            return
        kept, size = [], 0
        for batch in batches:
            kept.append(run(batch))
            size += sum(array.nbytes for array in kept[-1].values())
            if size > KEPT_BYTES:
                return
        self._stored = kept

    def _fits(self, tensors: Batch, batch: Batch) -> bool:
        rows = len(next(iter(batch.values())))
        return sum(array.nbytes for array in tensors.values()) * self.count <= KEPT_BYTES * rows

    def _runner(self, names: Sequence[str], given: Iterable[str]) -> Callable[[Batch], dict[str, np.ndarray]]:
        known = set(given)
        missing = [name for name in names if name not in known]
        if not missing:
            return lambda batch: {name: batch[name] for name in names}
        with self.twin.part(known, missing) as model:
            session = simulator(model)
        feeds = [value.name for value in session.get_inputs()]

        def run(batch: Batch) -> dict[str, np.ndarray]:
            results = dict(zip(missing, session.run(missing, {name: batch[name] for name in feeds}), strict=True))
            return {name: results[name] if name in results else batch[name] for name in names}

        return run


def parts(batch: Batch, allowed: AxisRange) -> Iterator[Batch]:
    """Batches of at most `ROWS` rows of a size that the model takes; the last row is repeated where there are too few."""
    rows = len(next(iter(batch.values())))
    most = min(max(ROWS, allowed.min), allowed.max)
    for start in range(0, rows, most):
        size = min(most, rows - start)
        index = np.minimum(np.arange(start, start + max(size, allowed.min)), start + size - 1)
        yield {name: array[index] for name, array in batch.items()}
