"""`qwarm stage summary`: the table that `make repro` ends with, printed from the evidence; no stage of dvc.yaml."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.errors import RecordError
from release import summary
from stages import paths
from stages.report import evidences


def run() -> str:
    config = load_config(paths.PARAMS)
    try:
        found = evidences()
    except RecordError as error:
        return f"no evidence yet ({error.where} is missing): the run stopped before the gates"
    summary.show(found)
    folder = paths.RELEASE / f"{config.release.name}-{config.release.version}"
    return f"{folder}" if folder.is_dir() else f"nothing is released at {folder}; read {paths.REPORT}/report.md"
