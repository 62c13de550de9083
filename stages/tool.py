"""Stage `tool`, of a project made by `qwarm init`: which qwarm runs here, part by part, so that an upgrade re-runs what it touches."""

from __future__ import annotations

from pathlib import Path

from pipeline.digests import sha256_code
from pipeline.files import canonical_json, write_text
from pipeline.platforms import package_version
from release.provenance import PACKAGES
from stages import paths


def run() -> str:
    root = Path(__file__).resolve().parents[1]
    code = {package: sha256_code(root, [package]) for package in PACKAGES if package != "cli"}
    version = package_version("qwarm")
    text = canonical_json({"version": version, "code": code})
    if not paths.TOOL.exists() or paths.TOOL.read_text(encoding="utf-8") != text:
        write_text(paths.TOOL, text)
    return f"qwarm {version}, calibration {code['calibration'][:12]}, engines {code['engines'][:12]}"
