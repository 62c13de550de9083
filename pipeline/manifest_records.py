"""The bundle that measured targets go into. A file of its own: a host reads this, and nothing else of what was measured."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from pipeline.engine_records import File
from pipeline.strict import Record
from pipeline.tensors import AxisRange, TensorSpec
from pipeline.verdicts import Check, Verdict


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
