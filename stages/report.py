"""Stage `report`: report.html, report.md and metrics.json from the evidence, whatever the verdict."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Sequence

from calibration.rows import rows_of
from pipeline.config import Config, load_config
from pipeline.errors import QwarmError
from pipeline.files import read_json, replacing_folder, write_json, write_text
from pipeline.platforms import package_version
from pipeline.records import Choice, Evidence, ExportedModel, LeakCost, Platform, QuantizedModel, Roles
from release import page, report
from release.previous import since
from release.provenance import TOOLS, code_sha256
from release.runners import runner_of
from release.thumbnail import shown
from stages import paths
from stages.evidence import evidences
from stages.rows import role_manifest, role_source


def run() -> str:
    config = load_config(paths.PARAMS)
    found = evidences()
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    quantized = [QuantizedModel.load(paths.CHOSEN / scheme / "quantized.json") for scheme in config.quantize.schemes]
    choices = [Choice.load(paths.CHOSEN / scheme / "choice.json") for scheme in config.quantize.schemes]
    roles = Roles.load(paths.ROLES / "roles.json", next="run `dvc repro roles`")
    cost = LeakCost.load(paths.COST, next="run `dvc repro cost`")
    versions = {tool: package_version(tool) for tool in TOOLS}
    name, version = config.release.name, config.release.version
    code = code_sha256()
    keys = {target: Platform.load(paths.platform(target)).key_fields for target in config.targets if paths.platform(target).is_file()}
    html = page.render(
        name=name,
        version=version,
        evidences=found,
        exported=exported,
        quantized=quantized,
        searches={scheme: _gains(scheme) for scheme in config.quantize.schemes},
        roles=roles,
        cost=cost,
        inputs=_inputs(config, found),
        since=since(paths.RELEASE, config, found, roles, {**versions, "qwarm code": code[:16]}),
        made_from={"git revision": _revision(), "qwarm code": code, **versions},
        now=datetime.datetime.now(datetime.UTC),
        key_fields=keys,
        choices=choices,
        signers={evidence.target: runner_of(evidence, config.release.runners) for evidence in found},
    )
    text = report.markdown(name, version, found, exported, quantized, roles, cost, choices, keys)
    with replacing_folder(paths.REPORT) as folder:
        write_text(folder / "report.html", html)
        write_text(folder / "report.md", text)
        write_json(folder / "metrics.json", report.metrics(found))
    return f"{paths.REPORT}/report.html: " + ", ".join(f"{evidence.target} {evidence.verdict.name}" for evidence in found)


def _inputs(config: Config, found: Sequence[Evidence]) -> page.Inputs | str:
    """The validation rows that moved most, read again from their source; or why they cannot be read here."""
    places = {row.place for evidence in found if evidence.details for row in evidence.details.drift.worst}
    if not places:
        return {}
    try:
        rows = enumerate(rows_of(role_source(config, "validation"), role_manifest(config, "validation"), "validation"))
        return {place: shown(row.raw) for place, row in rows if place in places}
    except QwarmError as error:  # another machine has them
        return f"{error.what} ({error.where})"


def _gains(scheme: str) -> dict[str, float]:
    """SQNR in dB that each layer alone in float gains, where a search measured it."""
    path = paths.CHOSEN / scheme / "search.json"
    if not path.is_file():
        return {}
    return {str(entry["name"]): float(entry["gain_db"]) for entry in read_json(path, "run `dvc repro`").get("sensitivities", [])}


def _revision() -> str:
    """The commit, marked where the working tree differs from it."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown (no git here)"
    return done.stdout.strip()
