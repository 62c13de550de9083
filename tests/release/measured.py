"""Measurements made by hand, as `validate` leaves them, for tests of gates and reports."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config import GatesConfig
from pipeline.records import (
    Agreement,
    Attribution,
    Census,
    CensusLayer,
    Check,
    ColdStartReport,
    DriftReport,
    Evidence,
    PaddingCost,
    Parity,
    Parting,
    Rebuild,
    Trial,
    Validation,
)  # fmt: skip
from release import gates, paired

LIMITS = GatesConfig(max_drop=0.01, first_request_over_p50=1.5, p99_over_p50=1.3, int8_share=0.9, int8_speedup=1.0)
BOUND_TO = {"engine_sha256": "ab" * 32, "machine_id": "cd" * 32}
STEADY = [1.0] * 99


def drift(lost: int = 2, gained: int = 2, rows: int = 2000, right: int = 1950) -> DriftReport:
    after = right - lost + gained
    drop = (lost - gained) / rows
    return DriftReport(
        "top1", rows, "ef" * 32, right / rows, after / rows, lost, gained, drop, None, None, 0.99, 25.0, {"logits": 25.0}, paired.METHOD
    )


def process(variant: str, first: float = 1.0, p50: float = 1.0, slowest: float = 1.0, control: Sequence[float] = STEADY) -> Trial:
    """A process whose first request takes `first` and whose two slowest steady ones `slowest` times its p50 (ms)."""
    requests = [first * p50] + [p50] * 97 + [slowest * p50] * 2
    return Trial(variant, {"interpreter": 20.0, "ready": 300.0}, tuple(requests), tuple(control), 80.0)


def census(share: float = 0.95) -> Census:
    return Census((CensusLayer("conv", "Convolution", "int8", 950), CensusLayer("fc", "MatMul", "f32", 50)), share)


def agreement(decibels: float | None = 27.0, parted_at: Parting | None = None) -> Agreement:
    agrees = decibels is None or decibels >= 20
    return Agreement("34" * 32, "openvino-cpu as deployed", "onnxruntime-cpu as deployed", 64, {"logits": decibels}, 20.0, agrees, parted_at)


def hop(name: str, decibels: float | None) -> Parity:
    return Parity(name, {"rows": 64}, "logits", 0.1, 0.1, decibels)


def rebuilt(decibels: float | None = None, files: tuple[str, ...] = ()) -> Rebuild:
    return Rebuild(64, files, {"logits": decibels}, 1.0)


PADDING = (PaddingCost("batch", 3, 4, 1.2, 1.0, 90.0),)
ATTRIBUTION = Attribution(
    64, (hop("simplified -> qdq", 20.0), hop("qdq -> openvino-cpu", 30.0)), (hop("simplified -> openvino-cpu", 19.5),), "simplified -> qdq",
    Parting("deep", "Conv", "y", 21.0, 35.0),
)  # fmt: skip


def validation(
    trials: int = 15,
    *,
    first: Sequence[float] = (1.1,),
    slowest: Sequence[float] = (1.1,),
    p50: Sequence[float] = (1.0,),
    control: Sequence[Sequence[float]] = (STEADY,),
    rows: DriftReport | None = None,
    share: float = 0.95,
    agreed: Agreement | None = None,
    again: Rebuild | None = None,
) -> Validation:
    """Interleaved rounds of cold, warm and float; each sequence is cycled over the rounds of `warm` (`float` takes 2 ms)."""
    found = []
    for k in range(trials):
        found.append(process("cold", first=9.0))
        found.append(
            process("warm", first[k % len(first)], p50[k % len(p50)], slowest[k % len(slowest)], control[k % len(control)]),
        )
        found.append(process("float", 1.2, 2.0, 1.1))
    report = ColdStartReport("openvino-cpu", "cd" * 32, "12" * 32, "2026-12-01T00:00:00+00:00", tuple(found))
    return Validation(
        "openvino-cpu", BOUND_TO, rows or drift(), report, census(share), 2_500_000, agreed or agreement(), ATTRIBUTION, again or rebuilt(), PADDING
    )


def judged(measured: Validation, limits: GatesConfig = LIMITS, *, required: bool = True, undecided: gates.Undecided = "leave-out") -> Evidence:
    evidence = gates.judge_target(
        measured, limits, required=required, undecided=undecided, machine={"cpu": "x"}, measured_at=measured.coldstart.measured_at
    )
    assert Evidence.from_json(evidence.to_json()) == evidence  # every number is finite and every field survives
    return evidence


def check(evidence: Evidence, name: str) -> Check:
    return next(found for found in evidence.checks if found.name == name)


def slow_first(ratio: float) -> list[float]:
    return [ratio, *[1.0] * 98]


def slow_tail(ratio: float) -> list[float]:
    return [1.0] * 97 + [ratio] * 2
