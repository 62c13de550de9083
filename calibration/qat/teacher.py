"""What the student must answer: the float model's own outputs, and how far it is from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pipeline.decibels import sqnr_db
from pipeline.errors import ModelError
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import torch

Run = Callable[[Batch], "dict[str, torch.Tensor]"]
KEPT_BYTES = 2**28
"""Outputs of the float model are kept, instead of computed again each epoch, up to this size."""


def batches(rows: Batch, size: int, least: int) -> Iterator[tuple[np.ndarray, int]]:
    """Indices of `size` rows at a time in order, and how many of them count; the last ones are filled up to `least` with the last row."""
    total = len(next(iter(rows.values())))
    for start in range(0, total, size):
        count = min(size, total - start)
        yield np.minimum(np.arange(start, start + max(count, least)), total - 1), count


def outputs(run: Run, rows: Batch, size: AxisRange) -> dict[str, np.ndarray]:
    """Every floating-point output for all rows, (N, ...)."""
    import torch

    parts: dict[str, list[np.ndarray]] = {}
    with torch.no_grad():
        for index, count in batches(rows, size.max, size.min):
            for name, tensor in run(take(rows, index)).items():
                if tensor.is_floating_point():
                    parts.setdefault(name, []).append(tensor[:count].float().cpu().numpy())
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def take(rows: Batch, index: np.ndarray) -> dict[str, np.ndarray]:
    """Those rows."""
    return {name: array[index] for name, array in rows.items()}


def worst_db(wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> float | None:
    """SQNR in dB of the worst output, None where none differs: what `search` is judged by."""
    return min((db for name in wanted if (db := sqnr_db(wanted[name], got[name])) is not None), default=None)


def decibels(value: float | None) -> float:
    """To compare by: None is without limit."""
    return math.inf if value is None else value


class Teacher:
    """The float model on the rows that are trained on; `powers` are the mean squares of its outputs."""

    def __init__(self, run: Run, rows: Batch, size: AxisRange, powers: Mapping[str, float]) -> None:
        self.run, self.rows, self.powers = run, rows, {name: power for name, power in powers.items() if power > 0}
        index, count = next(batches(rows, size.max, size.min))
        first, again = (outputs(run, take(rows, index[:count]), size) for _ in range(2))
        if not self.powers:
            raise ModelError(
                "No output can be learned from", where="model.outputs", expected="a floating-point output that is not zero", got=", ".join(first)
            )
        if differing := [name for name in first if not np.array_equal(first[name], again[name], equal_nan=True)]:
            raise ModelError(
                "The model answers the same rows in two ways",
                where=f"outputs {', '.join(differing)}",
                expected="evaluation mode without chance",
                got="an operator in training mode",
                next="give functional.dropout and the like `training=self.training`",
            )
        row_bytes = sum(array[0].nbytes for array in first.values())
        self.kept = outputs(run, rows, size) if row_bytes * len(next(iter(rows.values()))) <= KEPT_BYTES else None

    def __call__(self, index: np.ndarray) -> dict[str, torch.Tensor]:
        """Outputs for those rows."""
        import torch

        if self.kept is not None:
            return {name: torch.from_numpy(array[index]) for name, array in self.kept.items()}
        with torch.no_grad():
            return self.run(take(self.rows, index))

    def loss(self, got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Error power over the teacher's power, summed over outputs: 0.01 is 20 dB for one output.

        Labels play no part: the task's own loss would pull the model away from the float model that it is held to.
        """
        terms = [(got[name] - wanted[name].to(got[name].device)).square().mean() / power for name, power in self.powers.items()]
        return sum(terms[1:], terms[0])
