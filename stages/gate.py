"""Stage `gate@TARGET`: verdicts from the measured records. Writes them whatever they are; only `release` refuses."""

from __future__ import annotations

import dataclasses

from pipeline.config import load_config
from pipeline.files import read_json, write_text
from pipeline.records import Evidence, NotMeasured, Platform, Roles, Trial, Validation
from release import gates, plots, waivers
from release.bindings import judging
from release.firewall_check import firewall_check
from release.runners import by_this_runner
from stages import paths


def run(target: str) -> str:
    evidence, trials = judged(target)
    evidence = by_this_runner(evidence)
    evidence.save(paths.evidence(target))
    write_text(paths.PLOTS / f"{target}.csv", plots.latency_csv(trials))
    return f"{target}: {evidence.verdict.name}; {evidence.reason}"


def judged(target: str) -> tuple[Evidence, tuple[Trial, ...]]:
    """The verdict on what `validate` measured, or on why it did not, and the trials it rests on."""
    config = load_config(paths.PARAMS)
    path, next = paths.VALIDATE / f"{target}.json", f"run `dvc repro validate@{target}`"
    schema = read_json(path, next).get("schema")
    machine = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`").machine_fields
    required = config.targets[target].required
    if schema == NotMeasured.SCHEMA:
        absent = NotMeasured.load(path)
        return gates.not_measured(target, absent.why, required=required, machine=machine, measured_at=absent.noticed_at), ()
    validation = Validation.load(path, next=next)
    evidence = gates.judge_target(
        validation,
        config.gates,
        required=required,
        undecided=config.release.undecided,
        machine=machine,
        measured_at=validation.coldstart.measured_at,
        also=(firewall_check(Roles.load(paths.ROLES / "roles.json", next="run `dvc repro roles`")),),
        waive=lambda checks: waivers.apply(checks, target, config.release, waivers.today()),
    )
    return dataclasses.replace(evidence, bound_to={**evidence.bound_to, **judging()}), validation.coldstart.trials
