"""What was measured of a target, and what it proves."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.engine_records import Census
from pipeline.model_records import Agreement, Attribution
from pipeline.strict import Record
from pipeline.verdicts import Check, Interval, Verdict
from pipeline.warmup_records import ColdStartReport, StepGain


@dataclasses.dataclass(frozen=True)
class SliceDrift(Record):
    """The validation rows that have one `value` of `of` ("class", or a column of `gates.slices`).

    A metric that is right or wrong for each row: shares that are right, rows `lost` and `gained`. Any other: both null, values in the metric's
    unit, and the drop's interval at 95 % a side (`interval`) and after Bonferroni for the number of slices (`corrected`); `fault` says why one
    is null.
    """

    of: str
    value: str
    rows: int
    reference_value: float | None
    engine_value: float | None
    lost: int | None
    gained: int | None
    agreement: float | None
    interval: Interval | None = None
    corrected: Interval | None = None
    fault: str = ""

    @property
    def name(self) -> str:
        """For example "class 7"."""
        return f"{self.of} {self.value}"

    @property
    def drop(self) -> float | None:
        """The reference's value less the engine's; null where the metric says nothing of these rows."""
        if self.lost is not None and self.gained is not None:
            return (self.lost - self.gained) / self.rows
        return None if self.reference_value is None or self.engine_value is None else self.reference_value - self.engine_value


@dataclasses.dataclass(frozen=True)
class WorstRow(Record):
    """A row whose first output moved most: its place among the validation rows, and what each side answers (null without classes).

    `distance` is the Euclidean norm of the difference over that of the reference's median row.
    """

    place: int
    distance: float
    label: str | None
    reference: str | None
    engine: str | None


@dataclasses.dataclass(frozen=True)
class DriftReport(Record):
    """INT8 engine against the float reference on the same validation rows.

    A metric that is right or wrong for each row: `lost` rows only the reference gets right, `gained` only the engine; `drop` is
    (lost - gained) / rows, values are fractions and the gate computes the exact interval. Any other metric: `lost` and `gained` are null,
    values and `drop` (reference - engine) are in the metric's unit, and `interval` and `reference_interval` hold their bounds.
    `method` says which. `agreement` is null without classes; `sqnr_db` is that of the worst output, null where none differs.
    `kl_divergence`: mean over rows of KL(reference || engine) of the softmax of the first output, in nats; null without classes.
    `channel_sqnr_db` is by place along axis 1 of the first output.
    `worst` are the rows that moved most, those that were lost first. `batch_sqnr_db`: by batch size, the engine's answers against its own in the
    largest batch, null where they are equal.
    """

    SCHEMA: ClassVar[str] = "qwarm.drift/3"
    metric: str
    validation_rows: int
    validation_root: str
    reference_value: float
    engine_value: float
    lost: int | None
    gained: int | None
    drop: float
    interval: Interval | None
    reference_interval: Interval | None
    agreement: float | None
    sqnr_db: float | None
    sqnr_db_by_output: dict[str, float | None]
    method: str
    kl_divergence: float | None = None
    slices: tuple[SliceDrift, ...] = ()
    channel_sqnr_db: tuple[float | None, ...] = ()
    worst: tuple[WorstRow, ...] = ()
    batch_sqnr_db: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rebuild(Record):
    """A second build of one recipe, held to the first on the same rows; none where the target does not run. SQNR is null for an equal output.

    `agreement`: share of rows with the same largest value of the first output.
    """

    rows: int
    differing_files: tuple[str, ...]
    sqnr_db_by_output: dict[str, float | None]
    agreement: float | None


@dataclasses.dataclass(frozen=True)
class PaddingCost(Record):
    """A request of `size` along `axis` that a host pads to the warmed `padded_to`: steady medians, and the first request at its own size, cold."""

    axis: str
    size: int
    padded_to: int
    padded_ms: float
    own_ms: float
    own_first_ms: float


@dataclasses.dataclass(frozen=True)
class Validation(Record):
    """What `validate@target` measured of one engine on one machine.

    Accuracy, latency, a second runtime's answers, which hop lost what, a second build's answers, and what padding costs.
    """

    SCHEMA: ClassVar[str] = "qwarm.validation/3"
    target: str
    bound_to: dict[str, str]
    drift: DriftReport
    coldstart: ColdStartReport
    census: Census | None
    engine_bytes: int
    agreement: Agreement
    attribution: Attribution
    rebuild: Rebuild | None
    """Null where nobody asked for a second build."""
    padding: tuple[PaddingCost, ...]


@dataclasses.dataclass(frozen=True)
class NotMeasured(Record):
    """What `warm@target` and `validate@target` leave where the engine is built and cannot be run."""

    SCHEMA: ClassVar[str] = "qwarm.not-measured/1"
    target: str
    why: str
    engine_sha256: str
    noticed_at: str


@dataclasses.dataclass(frozen=True)
class LatencyBand(Record):
    """The fresh processes of one variant: quantiles over them of each request's time, in order, and of the start's cumulative phases."""

    variant: str
    processes: int
    low_ms: tuple[float, ...]
    """10th percentile."""
    median_ms: tuple[float, ...]
    high_ms: tuple[float, ...]
    """90th percentile."""
    phases_ms: dict[str, float]
    """Medians."""


@dataclasses.dataclass(frozen=True)
class Details(Record):
    """What a report draws of a measured target: it travels with the evidence, so that a target measured elsewhere is drawn too."""

    drift: DriftReport
    census: Census | None
    bands: tuple[LatencyBand, ...]
    padding: tuple[PaddingCost, ...] = ()
    gains: tuple[StepGain, ...] = ()


@dataclasses.dataclass(frozen=True)
class Evidence(Record):
    """One target's verdict with everything it rests on: what `release` reads.

    `refuses` says that the whole release is refused because of it; a target that neither ships nor refuses is left out.
    """

    SCHEMA: ClassVar[str] = "qwarm.evidence/3"
    target: str
    required: bool
    verdict: Verdict
    ships: bool
    reason: str
    checks: tuple[Check, ...]
    figures: dict[str, float]
    bound_to: dict[str, str]
    machine: dict[str, str]
    measured_at: str
    refuses: bool = False
    attribution: Attribution | None = None
    details: Details | None = None
    signature: str = ""
    """Of the runner that measured (release/runners.py); "" for none."""
