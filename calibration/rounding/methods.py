"""Which methods round a model's weights, and on which rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from pipeline.tensors import Batch


@dataclasses.dataclass(frozen=True)
class Methods:
    """Switches. What each does, its source and its cost stand in the function it names; its gain in `benchmarks/quantization.py`.

    `equalization`: `equalize.equalized`. `adaptation`: `target.adapted`. `rounding`: "compensated" (`solve.error_compensated`, then
    `solve.descended`) or "nearest". `bias_correction`: `moments.Moments.bias`.
    """

    equalization: bool = True
    adaptation: bool = True
    rounding: str = "compensated"
    bias_correction: bool = True

    @property
    def any(self) -> bool:
        """Whether one of them is on."""
        return self.equalization or self.adaptation or self.bias_correction or self.rounding != "nearest"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What fits weights: `rows()` gives the same `count` calibration rows each time, in batches `{input: (n, ...)}`."""

    rows: Callable[[], Iterable[Batch]]
    count: int
    methods: Methods = Methods()
