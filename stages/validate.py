"""Stage `validate@TARGET`: accuracy on rows nothing was chosen on, and latency in fresh processes. Judges nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import engines
from pipeline.config import Config, load_config
from pipeline.progress import bar, track
from pipeline.records import ColdStartReport, DriftReport, Engine, Platform, Trial, Validation, WarmupPlan
from release import drift, gates
from release.provenance import code_sha256
from stages import paths
from stages.hardware import not_measured, now
from stages.rows import role_batches, role_manifest
from warmup.coldstart import engine_command, measure
from warmup.plan import ladder_plan, rungs


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    if reason := not_measured(target, paths.VALIDATE / f"{target}.json"):
        return f"{target}: not measured, {reason}"
    platform = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`")
    plan = WarmupPlan.load(paths.WARM / target / "plan.json", next=f"run `dvc repro warm@{target}`")
    report = _accuracy(config, target, max(rungs(plan)))
    roles = role_manifest(config, "validation")
    int8 = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    bound_to = {
        "engine_sha256": int8.digest(),
        "onnx_sha256": int8.model_sha256,
        "plan_sha256": plan.digest(),
        "platform_key": platform.key,
        "machine_id": platform.machine_id,
        "validation_root": roles.roles["validation"].merkle_root,
        "preprocess_sha256": roles.preprocess_sha256,
        "code_sha256": code_sha256(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        commands = _commands(config, target, plan, Path(scratch))
        trials: tuple[Trial, ...] = ()
        wanted = config.gates.trials
        while True:
            with bar(f"validate@{target}: {', '.join(commands)} in fresh processes") as progress:
                trials += measure(commands, wanted, progress=progress)
            measured = Validation(
                target=target,
                bound_to=bound_to,
                drift=report,
                coldstart=ColdStartReport(target, platform.machine_id, plan.digest(), now(), trials),
                census=int8.census,
            )
            done = sum(trial.variant == "warm" for trial in trials)
            wanted = min(config.gates.trials, config.gates.max_trials - done)
            if wanted <= 0 or not gates.needs_more_trials(measured, config.gates):
                break
    measured.save(paths.VALIDATE / f"{target}.json")
    accuracy = f"{report.metric} {report.reference_value:.4f} to {report.engine_value:.4f} on {report.validation_rows} rows"
    return f"{target}: {accuracy}; {done} fresh processes a variant"


def _accuracy(config: Config, target: str, batch_rows: int) -> DriftReport:
    """Run both engines over the validation role, `batch_rows` rows at a time, on the same batches."""
    outputs: dict[str, list[np.ndarray]] = {"int8": [], "float32": []}
    labels: list[np.ndarray] = []
    role = role_manifest(config, "validation").roles["validation"]
    folder = paths.ENGINES / target
    with engines.open_engine(folder / "int8") as int8, engines.open_engine(folder / "float32") as float32:
        batches = role_batches(config, "validation", batch_rows)
        for batch, batch_labels in track(batches, f"validate@{target}: accuracy", -(-len(role.rows) // batch_rows)):
            labels.append(batch_labels)
            for name, session in (("int8", int8), ("float32", float32)):
                outputs[name].append(session.run(batch)[config.model.outputs[0]])
    return drift.measure(
        np.concatenate(outputs["float32"]),
        np.concatenate(outputs["int8"]),
        np.concatenate(labels),
        metric=config.gates.metric,
        validation_root=role.merkle_root,
    )


def _commands(config: Config, target: str, plan: WarmupPlan, scratch: Path) -> dict[str, list[str]]:
    """One command a variant: INT8 without and with the plan, FP32 with the same steps."""
    rows_file = paths.WARM / target / "rows.npz"
    with np.load(rows_file) as stored:
        rows = {name: stored[name] for name in stored.files}
    folder = paths.ENGINES / target
    float_engine = Engine.load(folder / "float32" / "engine.json")
    float_plan = ladder_plan(
        float_engine, rows, batches=config.warmup.batches, concurrency=config.warmup.concurrency,
        iterations=plan.steps[0].iterations, max_seconds=config.warmup.max_seconds, found_by=plan.found_by,
    )  # fmt: skip
    float_plan.save(scratch / "plan.json")
    requests = config.gates.requests
    return {
        "cold": engine_command(folder / "int8", "cold", rows=rows_file, requests=requests),
        "warm": engine_command(folder / "int8", "warm", plan=paths.WARM / target / "plan.json", rows=rows_file, requests=requests),
        "float": engine_command(folder / "float32", "float", plan=scratch / "plan.json", rows=rows_file, requests=requests),
    }
