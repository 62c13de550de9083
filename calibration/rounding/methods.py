"""Which methods round a model's weights, and on which rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from pipeline.records import Ranges
from pipeline.tensors import Batch


@dataclasses.dataclass(frozen=True)
class Methods:
    """Switches. What each does, its source and its cost stand in the function it names; its gain in `benchmarks/quantization.py`.

    `splitting`: `split.split`. `equalization`: `equalize.equalized`. `adaptation`: `target.adapted`. `rounding`: "compensated"
    (`solve.error_compensated`, then `solve.descended`) or "nearest". `bias_correction`: `moments.Moments.bias`.
    """

    splitting: bool = True
    equalization: bool = True
    adaptation: bool = True
    rounding: str = "compensated"
    bias_correction: bool = True

    @property
    def any(self) -> bool:
        """Whether one of them is on."""
        return self.splitting or self.equalization or self.adaptation or self.bias_correction or self.rounding != "nearest"


EVERY = Methods()


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What fits weights: `rows()` gives the same calibration rows each time, in batches `{input: (n, ...)}`; `ids` name them in that order.

    Those `left_out` are not used: rows far beyond all others would decide means and moments alone.
    """

    rows: Callable[[], Iterable[Batch]]
    ids: Sequence[str]
    methods: Methods = EVERY
    left_out: frozenset[str] = frozenset()

    def without_outliers(self, ranges: Ranges) -> Calibration:
        """Leave out the rows that `ranges` lists as outliers of a tensor, unless no row would be left."""
        found = frozenset(name for entry in ranges.outliers for name in entry.rows)
        return dataclasses.replace(self, left_out=found) if not found.issuperset(self.ids) else self

    @property
    def count(self) -> int:
        """How many rows `batches` gives."""
        return sum(name not in self.left_out for name in self.ids)

    @property
    def used(self) -> list[str]:
        """Names of the rows that `batches` gives."""
        return [name for name in self.ids if name not in self.left_out]

    def batches(self) -> Iterator[Batch]:
        """The rows that are used."""
        done = 0
        for batch in self.rows():
            size = len(next(iter(batch.values())))
            kept = [place for place in range(size) if self.ids[done + place] not in self.left_out]
            done += size
            if kept:
                yield batch if len(kept) == size else {name: array[kept] for name, array in batch.items()}
