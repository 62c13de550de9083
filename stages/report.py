"""Stage `report`: report.md and metrics.json from the evidence, whatever the verdict."""

from __future__ import annotations

from pipeline.config import load_config
from pipeline.files import replacing_folder, write_json, write_text
from pipeline.records import Choice, Evidence, ExportedModel, LeakCost, QuantizedModel, Roles
from release import report
from stages import paths


def evidences() -> list[Evidence]:
    """The evidence of every target in params.yaml, in its order: an old target's file is not read."""
    config = load_config(paths.PARAMS)
    return [Evidence.load(paths.evidence(target), next=f"run `dvc repro gate@{target}`") for target in config.targets]


def run() -> str:
    config = load_config(paths.PARAMS)
    found = evidences()
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    quantized = [QuantizedModel.load(paths.CHOSEN / scheme / "quantized.json") for scheme in config.quantize.schemes]
    choices = [Choice.load(paths.CHOSEN / scheme / "choice.json") for scheme in config.quantize.schemes]
    roles = Roles.load(paths.ROLES / "roles.json", next="run `dvc repro roles`")
    cost = LeakCost.load(paths.COST, next="run `dvc repro cost`")
    text = report.markdown(config.release.name, config.release.version, found, exported, quantized, roles, cost, choices)
    with replacing_folder(paths.REPORT) as folder:
        write_text(folder / "report.md", text)
        write_json(folder / "metrics.json", report.metrics(found))
    return f"{paths.REPORT}/report.md: " + ", ".join(f"{evidence.target} {evidence.verdict.name}" for evidence in found)
