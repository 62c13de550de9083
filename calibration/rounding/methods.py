"""Which methods round a model's weights, and on which rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from pipeline.tensors import Batch


@dataclasses.dataclass(frozen=True)
class Methods:
    """Switches. What each does, its source and its cost stand in the function it names; its gain in `benchmarks/quantization.py`.

    `weight_ranges`: "mse" (`solve.mse_scale`) or "max". `rounding`: "compensated" (`target.adapted`, `solve.error_compensated`,
    `solve.descended`) or "nearest". `bias_correction`: `moments.Moments.bias`.
    """

    weight_ranges: str = "mse"
    rounding: str = "compensated"
    bias_correction: bool = True

    @property
    def any(self) -> bool:
        """Whether one of them is on."""
        return self.rounding != "nearest" or self.bias_correction or self.weight_ranges != "max"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What fits weights: `rows()` gives the same `count` calibration rows each time, in batches `{input: (n, ...)}`."""

    rows: Callable[[], Iterable[Batch]]
    count: int
    methods: Methods = Methods()
