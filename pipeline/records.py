"""The nouns that flow between stages. All frozen and strict; units are in the field names; digests are hex sha256."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from pipeline.data_records import ROLES, Anomaly, Claim, Finding, LeakCost, Role, Roles, RowSource, Shift
from pipeline.strict import Record
from pipeline.tensors import AxisRange, TensorSpec
from pipeline.verdicts import Check, Interval, Verdict

SHOWN = 3
"""Names that one line gives."""


@dataclasses.dataclass(frozen=True)
class Platform(Record):
    """One target's machine. `key` changes when an engine is invalid, `machine_id` when a measurement is.

    `unavailable` says why no engine of the target can be built here, `unrunnable` why none can be run, or null.
    """

    SCHEMA: ClassVar[str] = "qwarm.platform/1"
    target: str
    key: str
    key_fields: dict[str, str]
    machine_id: str
    machine_fields: dict[str, str]
    provenance: dict[str, str]
    unavailable: str | None
    unrunnable: str | None = None


@dataclasses.dataclass(frozen=True)
class Parity(Record):
    """One output compared over one hop at one point of the shape range. Infinite SQNR (equal outputs) is null."""

    hop: str
    sizes: dict[str, int]
    output: str
    max_absolute: float
    max_relative: float
    sqnr_db: float | None


@dataclasses.dataclass(frozen=True)
class Parting(Record):
    """The first node at which two runs of a network part: `sqnr_db` of its tensor, `before_db` of the worst that it reads (null: equal)."""

    node: str
    operator: str
    tensor: str
    sqnr_db: float
    before_db: float | None


@dataclasses.dataclass(frozen=True)
class Agreement(Record):
    """One Q/DQ model in two runtimes on the same rows: SQNR of the first against the second by output, null where they are equal.

    Below `bound_db` they do not agree, and `parted_at` says where they part, as far as that can be seen from outside.
    """

    SCHEMA: ClassVar[str] = "qwarm.agreement/1"
    onnx_sha256: str
    first: str
    second: str
    rows: int
    sqnr_db_by_output: dict[str, float | None]
    bound_db: float
    agrees: bool
    parted_at: Parting | None


@dataclasses.dataclass(frozen=True)
class Attribution(Record):
    """A network on its way from torch to an engine, run at every station on the same rows.

    `hops`: each station against the one before it. `whole`: the last against the first. `blamed`: the hop that added most error power, null when none
    added any; `parted_at`: the node in it where the two graphs part, where both can be looked into.
    """

    SCHEMA: ClassVar[str] = "qwarm.attribution/1"
    rows: int
    hops: tuple[Parity, ...]
    whole: tuple[Parity, ...]
    blamed: str | None
    parted_at: Parting | None


@dataclasses.dataclass(frozen=True)
class File(Record):
    """A file by size and content."""

    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class ExportedModel(Record):
    """The float ONNX model and how far it is from torch, hop by hop.

    `onnx_sha256` is of the model file, which holds the sha256 of its side file, if there is one; `files` lists both. `fallback` says why the
    graph does not come from torch.export, null where it does.
    """

    SCHEMA: ClassVar[str] = "qwarm.exported/2"
    onnx_sha256: str
    checkpoint_sha256: str
    factory: str
    exporter: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: dict[str, AxisRange]
    parity: tuple[Parity, ...]
    macs: int
    """Multiply-accumulates of one row (named axes other than the batch at `opt`)."""
    operators: dict[str, int]
    fallback: str | None = None
    files: dict[str, File] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TensorRange(Record):
    """The range that a method chose for a tensor over the calibration rows, and how far it follows from either half of them.

    `low` and `high` suit a grid with a zero point, `symmetric` one without: the magnitude on either side, null for the larger of both.
    `halves_ratio` is the smaller half's magnitude over the larger's, by the same method: 1 is fully converged.
    `seen_low` and `seen_high` are the smallest and the largest value, null where they are `low` and `high`.
    """

    low: float
    high: float
    halves_ratio: float
    symmetric: float | None = None
    seen_low: float | None = None
    seen_high: float | None = None

    @property
    def magnitude(self) -> float:
        """The end of a symmetric grid."""
        return max(abs(self.low), abs(self.high)) if self.symmetric is None else self.symmetric

    @property
    def seen_magnitude(self) -> float:
        """The largest magnitude of any value: what a narrower float type must hold."""
        return max(abs(self.low if self.seen_low is None else self.seen_low), abs(self.high if self.seen_high is None else self.seen_high))


@dataclasses.dataclass(frozen=True)
class OutlierRows(Record):
    """`count` rows, the first few by id, whose values in one tensor reach `magnitude`, where those of every other row end at `others`."""

    tensor: str
    rows: tuple[str, ...]
    count: int
    magnitude: float
    others: float


@dataclasses.dataclass(frozen=True)
class Ranges(Record):
    """Activation ranges, bound by digest to the model, the rows and the preprocessing, and to method, batch size and tools."""

    SCHEMA: ClassVar[str] = "qwarm.ranges/2"
    onnx_sha256: str
    calibration_root: str
    preprocess_sha256: str
    method: str
    parameters: dict[str, float]
    calibration_rows: int
    batch_rows: int
    tools: dict[str, str]
    tensors: dict[str, TensorRange]
    dead: tuple[str, ...]
    outliers: tuple[OutlierRows, ...]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FloatNode(Record):
    """A node that stays in float, and why: one that multiplies, or one of `calibration/float_operators.py`."""

    node: str
    operator: str
    reason: str


@dataclasses.dataclass(frozen=True)
class QuantizedModel(Record):
    """A Q/DQ ONNX model of one scheme."""

    SCHEMA: ClassVar[str] = "qwarm.quantized/1"
    scheme: str
    onnx_sha256: str
    float_sha256: str
    ranges_sha256: str
    quantizer: str
    quantize_linear: int
    dequantize_linear: int
    quantized_nodes: tuple[str, ...]
    float_nodes: tuple[FloatNode, ...]
    search_rows: int
    search_sqnr_db: float | None
    search_agreement: float | None
    zero_channels: dict[str, tuple[int, ...]]
    """By weight, the output channels that are zero throughout: their scale is a safe choice."""
    variant: str = "nearest"
    """Which of `variants` this is: the one of the best SQNR on the search rows."""
    variants: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """SQNR in dB on the search rows by way of rounding, null without limit."""
    equalized_ranges_sha256: str | None = None
    """Of the ranges.json beside the model: those of the float graph with equalized channels that was quantized; null where that was the export."""
    reference_sha256: str | None = None
    """The float model that the search rows' figures are against, where it is another than `float_sha256`: the export, after QAT changed weights."""

    @property
    def left_in_float(self) -> tuple[str, ...]:
        """A line for each reason and operator, with the first nodes that it holds for."""
        groups: dict[tuple[str, str], list[str]] = {}
        for node in self.float_nodes:
            groups.setdefault((node.operator, node.reason), []).append(node.node)
        return tuple(
            f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''} ({operator}): {reason}"
            for (operator, reason), names in groups.items()
        )


@dataclasses.dataclass(frozen=True)
class Epoch(Record):
    """One pass over the training rows: the mean loss, and SQNR on the search rows after it, null without limit."""

    epoch: int
    loss: float
    search_sqnr_db: float | None


@dataclasses.dataclass(frozen=True)
class Training(Record):
    """What `qat` did: `why` it trained, or did not, and then every field behind it is empty.

    `scheme`: whose grid the weights were trained under. SQNRs are under fake quantization against the float model, on the search rows:
    `start_sqnr_db` before anything was changed, `corrected_sqnr_db` with means corrected, and each epoch's; `best_epoch` 0: none was better.
    `bound_to`: digests of all that the training follows from. `layers` saw INT8; `float_layers` could, and did not, and why.
    """

    SCHEMA: ClassVar[str] = "qwarm.training/1"
    ran: bool
    why: str
    scheme: str | None = None
    rows: int = 0
    settings: dict[str, float] = dataclasses.field(default_factory=dict)
    bound_to: dict[str, str] = dataclasses.field(default_factory=dict)
    start_sqnr_db: float | None = None
    corrected_sqnr_db: float | None = None
    epochs: tuple[Epoch, ...] = ()
    best_epoch: int = 0
    layers: tuple[str, ...] = ()
    float_layers: dict[str, str] = dataclasses.field(default_factory=dict)
    checkpoint_sha256: str | None = None
    resumed_after: int | None = None
    device: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Candidate(Record):
    """A Q/DQ model that competes: SQNR against the float model on the search rows, null without limit, and layers left in float."""

    onnx_sha256: str
    search_sqnr_db: float | None
    float_nodes: int


@dataclasses.dataclass(frozen=True)
class Choice(Record):
    """Which of a scheme's Q/DQ models goes on (`chosen`, a key of `candidates`), and why."""

    SCHEMA: ClassVar[str] = "qwarm.choice/1"
    scheme: str
    chosen: str
    why: str
    candidates: dict[str, Candidate]
    max_drift: float | None


@dataclasses.dataclass(frozen=True)
class CensusLayer(Record):
    """One layer as the runtime really executes it; `macs` for one row. `why` it is not in INT8, empty where it is."""

    name: str
    operator: str
    precision: str
    macs: int
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Census(Record):
    """Which precision really executes: `int8_share` is the INT8 part of all multiply-accumulates, 0 to 1.

    `conversions` counts the layers that only change a type or a layout, by the runtime's name of their kind.
    """

    layers: tuple[CensusLayer, ...]
    int8_share: float
    conversions: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Engine(Record):
    """One built engine: a folder with `engine.json` (this) and the files it lists."""

    SCHEMA: ClassVar[str] = "qwarm.engine/2"
    target: str
    precision: str
    model_sha256: str
    platform_key: str
    key_fields: dict[str, str]
    recipe: dict[str, Any]
    recipe_sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: dict[str, AxisRange]
    files: dict[str, File]
    census: Census | None
    """Null where nothing here can say what the engine executes in: a plan for a GPU that this machine lacks."""


@dataclasses.dataclass(frozen=True)
class WarmupStep(Record):
    """Run rows `rows` (indices into the warm-up arrays) at `sizes` in each of `threads` threads, `iterations` times."""

    sizes: dict[str, int]
    rows: tuple[int, ...]
    threads: int
    iterations: int


@dataclasses.dataclass(frozen=True)
class WarmupPlan(Record):
    """What makes an engine hot: ordered steps, environment, deadline. Bound to the engine and the rows.

    A step at which the runtime fails is tried `retries` times more; `max_rss_mb`: resident memory (10^6 bytes) that the process may reach.
    """

    SCHEMA: ClassVar[str] = "qwarm.plan/1"
    target: str
    engine_sha256: str
    rows_sha256: str
    preprocess_sha256: str
    steps: tuple[WarmupStep, ...]
    concurrency: int
    environment: dict[str, str]
    max_seconds: float
    found_by: str
    retries: int = 1
    max_rss_mb: float | None = None


@dataclasses.dataclass(frozen=True)
class WarmupResult(Record):
    """How long each step of a plan took in this process, in order, and the whole; `retried` says which step failed first, and how."""

    seconds_by_step: tuple[float, ...]
    total_seconds: float
    retried: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Trial(Record):
    """One fresh process. `requests_ms` are its requests in order, the first included; `control_ms` the control workload's.

    `phases_ms` are cumulative from process start: interpreter, imports, load, warm, ready.
    """

    variant: str
    phases_ms: dict[str, float]
    requests_ms: tuple[float, ...]
    control_ms: tuple[float, ...]
    peak_rss_mb: float
    busy_elsewhere: float = 0.0
    """Part of all processors' time that went to other processes while this one measured, 0 to 1."""


@dataclasses.dataclass(frozen=True)
class ColdStartReport(Record):
    """Interleaved trials of the variants `cold` (no plan), `warm` (plan) and `float` (FP32 with the plan)."""

    SCHEMA: ClassVar[str] = "qwarm.coldstart/1"
    target: str
    machine_id: str
    plan_sha256: str
    measured_at: str
    trials: tuple[Trial, ...]


@dataclasses.dataclass(frozen=True)
class SliceDrift(Record):
    """The validation rows that have one `value` of `of` ("class", or a column of `gates.slices`): shares that are right, rows lost and gained."""

    of: str
    value: str
    rows: int
    reference_value: float
    engine_value: float
    lost: int
    gained: int
    agreement: float | None


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
    `slices` need a metric that is right or wrong for each row; `channel_sqnr_db` is by place along axis 1 of the first output.
    `worst` are the rows that moved most, those that were lost first. `batch_sqnr_db`: by batch size, the engine's answers against its own in the
    largest batch, null where they are equal.
    """

    SCHEMA: ClassVar[str] = "qwarm.drift/2"
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
class Validation(Record):
    """What `validate@target` measured of one engine on one machine: accuracy, latency, a second runtime's answers, and which hop lost what."""

    SCHEMA: ClassVar[str] = "qwarm.validation/2"
    target: str
    bound_to: dict[str, str]
    drift: DriftReport
    coldstart: ColdStartReport
    census: Census | None
    engine_bytes: int
    agreement: Agreement
    attribution: Attribution


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


@dataclasses.dataclass(frozen=True)
class Evidence(Record):
    """One target's verdict with everything it rests on: what `release` reads.

    `refuses` says that the whole release is refused because of it; a target that neither ships nor refuses is left out.
    """

    SCHEMA: ClassVar[str] = "qwarm.evidence/2"
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


@dataclasses.dataclass(frozen=True)
class ReleasedTarget(Record):
    """A target inside a bundle."""

    target: str
    folder: str
    verdict: Verdict
    platform_key: str
    key_fields: dict[str, str]
    engine_sha256: str
    plan_sha256: str
    evidence_sha256: str
    checks: tuple[Check, ...]
    figures: dict[str, float]


@dataclasses.dataclass(frozen=True)
class ReleaseManifest(Record):
    """Everything in a bundle: every file's size and sha256, what it was made from, and what was proven."""

    SCHEMA: ClassVar[str] = "qwarm.manifest/1"
    name: str
    version: str
    signature: str
    """"none", or the kind of signature beside the manifest."""
    files: dict[str, File]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: dict[str, AxisRange]
    preprocess: str
    """File and function, for example "preprocess.py:prepare"."""
    targets: tuple[ReleasedTarget, ...]
    left_out: dict[str, str]
    roles: dict[str, str]
    """Merkle root of each data role."""
    provenance: dict[str, Any]
    """Code-tree digest, upstream lock entries, tool versions, parameters."""


__all__ = [
    "ROLES",
    "Agreement",
    "Anomaly",
    "Attribution",
    "AxisRange",
    "Candidate",
    "Census",
    "CensusLayer",
    "Check",
    "Choice",
    "Claim",
    "ColdStartReport",
    "Details",
    "DriftReport",
    "Engine",
    "Epoch",
    "Evidence",
    "ExportedModel",
    "File",
    "Finding",
    "FloatNode",
    "Interval",
    "LatencyBand",
    "LeakCost",
    "NotMeasured",
    "OutlierRows",
    "Parity",
    "Parting",
    "Platform",
    "QuantizedModel",
    "Ranges",
    "ReleaseManifest",
    "ReleasedTarget",
    "Role",
    "Roles",
    "RowSource",
    "Shift",
    "SliceDrift",
    "TensorRange",
    "TensorSpec",
    "Training",
    "Trial",
    "Validation",
    "Verdict",
    "WarmupPlan",
    "WarmupResult",
    "WarmupStep",
    "WorstRow",
]  # fmt: skip
