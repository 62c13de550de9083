"""What the calibration rows themselves must not be: not finite, or all alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.observe import not_finite
from pipeline.errors import RangeError
from pipeline.tensors import Batch


def refuse_non_finite(batch: Batch, ids: Sequence[str]) -> None:
    """Raise RangeError naming input and row for a value of `batch` `{input: (n, ...)}` that is NaN or infinite."""
    for name, array in batch.items():
        rows = array.reshape(len(array), -1)
        if array.dtype.kind == "f" and (bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))).size:
            raise not_finite(f"input {name}", ids[bad[0]], rows[bad[0]], "then at data.preprocess")


class InputWatch:
    """Notices inputs that do not vary: every row equal, or single rows of one value (a mask of integers may be either)."""

    def __init__(self) -> None:
        self.first: dict[str, np.ndarray] = {}
        self.varies: set[str] = set()
        self.flat: dict[str, int] = {}
        self.masks: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Take note of rows `{input: (n, ...)}`."""
        for name, array in batch.items():
            self.masks |= {name} if array.dtype.kind in "ib" else set()
            first = self.first.setdefault(name, array[0].copy())
            if name not in self.varies and any(row.shape != first.shape or not np.array_equal(row, first) for row in array):
                self.varies.add(name)
            rows = array.reshape(len(array), -1)
            self.flat[name] = self.flat.get(name, 0) + int((rows == rows[:, :1]).all(axis=1).sum())

    def refuse_constant(self, rows: int, dead: Sequence[str] = ()) -> None:
        """Raise RangeError for an input that is the same in every row; `dead` tensors are named with it."""
        for name, first in self.first.items():
            if name not in self.varies and rows > 1 and (name not in self.masks or not self.varies):
                tensors = f"; tensors that are zero throughout: {', '.join(dead[:5])}" if dead else ""
                raise RangeError(
                    "The calibration rows are degenerate: an input is the same in every row",
                    where=f"input {name}",
                    expected="rows that differ",
                    got=f"{rows} equal rows, values {float(first.min()):g} to {float(first.max()):g}{tensors}",
                    next="check data.preprocess and the source's column",
                )

    def warnings(self, rows: int) -> list[str]:
        """One line for each input with rows of one single value."""
        return [
            f"input {name}: {count} of {rows} rows hold one single value"
            for name, count in sorted(self.flat.items())
            if count and name not in self.masks
        ]
