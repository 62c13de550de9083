"""What `report`, `release` and the summary read: the evidence of each target."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.errors import RecordError
from pipeline.records import Evidence
from stages import paths


def evidences() -> list[Evidence]:
    """The evidence of every target in params.yaml, in its order: an old target's file is not read. RecordError for a file of another target."""
    return [_of(target) for target in load_config(paths.PARAMS).targets]


def _of(target: str) -> Evidence:
    again = f"run `dvc repro gate@{target}`"
    found = Evidence.load(paths.evidence(target), next=again)
    if found.target != target:
        raise RecordError("Evidence is of another target", where=str(paths.evidence(target)), expected=target, got=found.target, next=again)
    return found
