"""What `report`, `release` and the summary read: the evidence of each target."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.records import Evidence
from stages import paths


def evidences() -> list[Evidence]:
    """The evidence of every target in params.yaml, in its order: an old target's file is not read."""
    config = load_config(paths.PARAMS)
    return [Evidence.load(paths.evidence(target), next=f"run `dvc repro gate@{target}`") for target in config.targets]
