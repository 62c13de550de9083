"""Stage `gate@TARGET`: verdicts from the measured records. Writes them whatever they are; only `release` refuses."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.records import Platform, Validation
from release.gates import judge_target
from stages import paths


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    validation = Validation.load(paths.VALIDATE / f"{target}.json", next=f"run `dvc repro validate@{target}`")
    platform = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`")
    evidence = judge_target(
        validation,
        config.gates,
        required=config.targets[target].required,
        undecided=config.release.undecided,
        machine=platform.machine_fields,
        measured_at=validation.coldstart.measured_at,
    )
    evidence.save(paths.evidence(target))
    return f"{target}: {evidence.verdict.name}; {evidence.reason}"
