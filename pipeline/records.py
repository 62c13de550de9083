"""The nouns that flow between stages. All frozen and strict; units are in the field names; digests are hex sha256.

An index of `pipeline/*_records.py`. A host needs a third of them, and making a record class takes half a millisecond: each file is imported
when a name of it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.data_records import ROLES, Anomaly, Claim, Finding, LeakCost, Role, Roles, RowSource, Shift
    from pipeline.engine_records import Census, CensusLayer, Engine, File, Platform
    from pipeline.manifest_records import ReleasedTarget, ReleaseManifest
    from pipeline.model_records import (
        Agreement,
        Attribution,
        Candidate,
        Choice,
        Epoch,
        ExportedModel,
        FloatNode,
        OutlierRows,
        Parity,
        Parting,
        QuantizedModel,
        Ranges,
        TensorRange,
        Training,
    )
    from pipeline.release_records import (
        Details,
        DriftReport,
        Evidence,
        LatencyBand,
        NotMeasured,
        PaddingCost,
        Rebuild,
        SliceDrift,
        Validation,
        WorstRow,
    )
    from pipeline.tensors import AxisRange, TensorSpec
    from pipeline.verdicts import Check, Interval, Verdict
    from pipeline.warmup_records import ColdStartReport, CurvePoint, Situation, StepGain, Trial, WarmupPlan, WarmupResult, WarmupStep

FILES = ("tensors", "verdicts", "engine_records", "warmup_records", "manifest_records", "release_records", "model_records", "data_records")
"""In the order they are looked into: what a host needs comes first."""

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
    "CurvePoint",
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
    "PaddingCost",
    "Parity",
    "Parting",
    "Platform",
    "QuantizedModel",
    "Ranges",
    "Rebuild",
    "ReleaseManifest",
    "ReleasedTarget",
    "Role",
    "Roles",
    "RowSource",
    "Shift",
    "Situation",
    "SliceDrift",
    "StepGain",
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        for file in FILES:
            if name in vars(module := importlib.import_module(f"pipeline.{file}")):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
