"""A network on its way to INT8: exported, its ranges, quantized, trained, chosen; and two runs of it compared."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.engine_records import File
from pipeline.strict import Record
from pipeline.tensors import AxisRange, TensorSpec

SHOWN = 3
"""Names that one line gives."""


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
