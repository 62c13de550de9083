"""`qwarm stage summary`: the table that `make repro` ends with, printed from the evidence; no stage of dvc.yaml."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.errors import RecordError
from pipeline.records import ReleaseManifest
from release import summary
from stages import paths
from stages.evidence import evidences


def run() -> str:
    config = load_config(paths.PARAMS)
    try:
        found = evidences()
    except RecordError as error:
        return f"no evidence yet ({error.where} is missing): the run stopped before the gates"
    summary.show(found)
    folder = paths.RELEASE / f"{config.release.name}-{config.release.version}"
    if not folder.is_dir():
        return f"nothing is released at {folder}; read {paths.REPORT}/report.html"
    signature = ReleaseManifest.load(folder / "manifest.json", next="run `dvc repro`").signature
    by = "signed by a development key" if "development" in signature else "not signed" if signature == "none" else "signed"
    return f"{folder}, {by}"
