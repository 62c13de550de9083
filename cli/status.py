"""`qwarm status` in a project: which stages are due, what the evidence says and how old it is, whether the bundle is of it, and what comes next."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from typing import Any

from fleet.verify import INTEGRITY_ONLY, verify
from pipeline.config import Config, load_config
from pipeline.errors import QwarmError, RecordError
from pipeline.records import Evidence, Verdict
from release.page import age
from stages import paths

ALWAYS = "always changed"
"""What DVC says of a stage that runs each time, whatever else it says."""


def examine(now: datetime.datetime) -> dict[str, Any]:
    """The state of the project in the current folder. Raises ConfigError for a params.yaml that does not fit."""
    config = load_config(paths.PARAMS)
    due, unknown = due_stages()
    evidences: dict[str, Evidence] = {}
    targets: dict[str, Any] = {}
    for target, settings in config.targets.items():
        try:
            evidences[target] = Evidence.load(paths.evidence(target), next=f"run `dvc repro gate@{target}`")
        except RecordError as error:
            targets[target] = {"required": settings.required, "verdict": None, "why": f"{error.what}: {error.got or error.where}", "open": []}
        else:
            targets[target] = _target(evidences[target], now)
    bundle = _bundle(config, evidences)
    found = {"name": config.release.name, "version": config.release.version, "due": due, "due_unknown": unknown, "targets": targets, "bundle": bundle}
    return {**found, "next": next_command(found)}


def due_stages() -> tuple[dict[str, list[str]], str]:
    """Stages that `dvc repro` would run for a reason, with it; and why that is not known, else ""."""
    command = [sys.executable, "-m", "dvc", "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        changed: dict[str, list[Any]] = json.loads(done.stdout)
    except ValueError:
        return {}, (done.stderr.strip().splitlines() or ["dvc status said nothing"])[-1]
    reasons = {stage: [text for entry in entries for text in _reasons(entry)] for stage, entries in changed.items()}
    return {stage: texts for stage, texts in reasons.items() if texts}, ""


def _reasons(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [] if entry == ALWAYS else [entry]
    return [f"{path} {state}" for changes in entry.values() for path, state in changes.items()]


def _target(evidence: Evidence, now: datetime.datetime) -> dict[str, Any]:
    return {
        "required": evidence.required,
        "verdict": evidence.verdict.name,
        "ships": evidence.ships,
        "refuses": evidence.refuses,
        "why": evidence.reason,
        "measured_at": evidence.measured_at,
        "age": age(now - datetime.datetime.fromisoformat(evidence.measured_at)),
        "open": [
            {"check": check.name, "verdict": check.verdict.name, "waived": check.waived, "excused": check.excused, "decide": check.decide}
            for check in evidence.checks
            if check.verdict is not Verdict.PASS
        ],
    }


def _bundle(config: Config, evidences: dict[str, Evidence]) -> dict[str, Any]:
    """Is it there, whole, and made from this evidence? Its signature is checked where the development key's public half lies beside it."""
    folder = paths.RELEASE / f"{config.release.name}-{config.release.version}"
    if not folder.is_dir():
        return {"folder": str(folder), "there": False}
    key = paths.DEVELOPMENT_PUBLIC_KEY if config.release.sign and config.release.sign.development and paths.DEVELOPMENT_PUBLIC_KEY.is_file() else None
    try:
        verified = verify(folder, key, allow_unsigned=key is None)
    except QwarmError as error:
        return {"folder": str(folder), "there": True, "whole": False, "why": f"{error.what}: {error.got}", "of_this_evidence": False}
    packed = {target.target: target.evidence_sha256 for target in verified.manifest.targets}
    shipping = {target: evidence.digest() for target, evidence in evidences.items() if evidence.ships}
    return {"folder": str(folder), "there": True, "whole": True, "why": verified.origin, "of_this_evidence": packed == shipping}


def next_command(found: dict[str, Any]) -> str:
    """The one thing to do next."""
    bundle, targets = found["bundle"], found["targets"]
    if found["due"] or not all(state["verdict"] for state in targets.values()):
        return "dvc repro"
    if any(state["refuses"] for state in targets.values()) or not any(state["ships"] for state in targets.values()):
        decide = next((check["decide"] for state in targets.values() for check in state["open"] if check["decide"]), "")
        return "read build/report/report.html" + (f"; what would decide: {decide}" if decide else "")
    if not bundle["there"] or not bundle["of_this_evidence"]:
        return "dvc repro --force --single-item release"
    return f"qwarm publish {bundle['folder']} LAYOUT, or gto register {found['name']} --version v{found['version']}"


def describe(found: dict[str, Any]) -> str:
    """The state in lines for a person."""
    lines = [f"{found['name']} {found['version']}"]
    if found["due_unknown"]:
        lines.append(f"stages: not known ({found['due_unknown']})")
    else:
        lines.append(f"stages: {len(found['due'])} due" if found["due"] else "stages: nothing is due")
    lines += [f"  {stage}: {', '.join(reasons[:3])}{' ...' if len(reasons) > 3 else ''}" for stage, reasons in found["due"].items()]
    for target, state in found["targets"].items():
        lines.append(f"{target}{' (required)' if state['required'] else ''}: {state['verdict'] or 'no evidence'}: {state['why']}")
        if state["verdict"] not in (None, Verdict.NOT_MEASURED.name):
            lines.append(f"  measured {state['measured_at']}, {state['age']}")
        for check in state["open"]:
            note = " (excused)" if check["excused"] else " (waived)" if check["waived"] else ""
            lines.append(f"  {check['check']}: {check['verdict']}{note}" + (f"; would decide: {check['decide']}" if check["decide"] else ""))
    bundle = found["bundle"]
    if not bundle["there"]:
        lines.append(f"bundle: none at {bundle['folder']}")
    elif not bundle["whole"]:
        lines.append(f"bundle: {bundle['folder']} does not verify: {bundle['why']}")
    else:
        of = "of this evidence" if bundle["of_this_evidence"] else "of other evidence than the one that is here"
        how = f"{bundle['why']}; `qwarm verify {bundle['folder']} --key PUB` says more" if bundle["why"] == INTEGRITY_ONLY else bundle["why"]
        lines.append(f"bundle: {bundle['folder']} is whole, {of}; {how}")
    return "\n".join([*lines, f"next: {found['next']}"])


def status(json_output: bool) -> int:
    """Print the state. Exit code 0 whatever it is: `dvc repro` and `release` are what refuses."""
    found = examine(datetime.datetime.now(datetime.UTC))
    print(json.dumps(found, sort_keys=True) if json_output else describe(found))
    return 0
