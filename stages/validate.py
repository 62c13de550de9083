"""Stage `validate@TARGET`: accuracy on rows nothing was chosen on, a second runtime's and a second build's answers, latency. Judges nothing."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

import engines
from pipeline.arrays import read_arrays
from pipeline.config import Config, load_config
from pipeline.padding import cut
from pipeline.progress import bar, track
from pipeline.records import (
    Agreement,
    Attribution,
    ColdStartReport,
    DriftReport,
    Engine,
    ExportedModel,
    Platform,
    Trial,
    Validation,
    WarmupPlan,
)  # fmt: skip
from pipeline.tensors import Batch
from release import drift, drift_details, gates, known_metrics
from release.bindings import bindings
from stages import agreement, paths
from stages.hardware import not_measured, now
from stages.rows import joined, role_batches, role_columns, role_manifest
from warmup.coldstart import engine_command, measure
from warmup.padding_cost import padding_costs
from warmup.plan import batch_axis, pad_to_plan


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    if reason := not_measured(target, paths.VALIDATE / f"{target}.json"):
        return f"{target}: not measured, {reason}"
    platform = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`")
    plan = WarmupPlan.load(paths.WARM / target / "plan.json", next=f"run `dvc repro warm@{target}`")
    report = _accuracy(config, target, plan)
    roles = role_manifest(config, "validation")
    int8 = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    checked = _first_rows(config, plan, exported)
    agreed, attributed = _second_opinion(config, target, checked, exported)
    again = config.gates.rebuild_agree_db is not None
    rebuilt = agreement.rebuild(target, checked, platform, config.targets[target].settings()) if again else None
    warm_rows = read_arrays(paths.WARM / target / "rows.npz", what="Warm-up rows", next=f"run `dvc repro warm@{target}`")
    with engines.open_engine(paths.ENGINES / target / "int8") as session:
        padding = padding_costs(session, plan, warm_rows)
    bound_to = {**bindings(config, exported, roles, platform), "engine_sha256": int8.digest(), "plan_sha256": plan.digest()}
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
                coldstart=ColdStartReport(target, platform.machine_id, plan.digest(), now(), trials, plan.gains),
                census=int8.census,
                agreement=agreed,
                attribution=attributed,
                rebuild=rebuilt,
                padding=padding,
                engine_bytes=sum(file.bytes for file in int8.files.values()),
            )
            done = sum(trial.variant == "warm" for trial in trials)
            wanted = min(config.gates.trials, config.gates.max_trials - done)
            if wanted <= 0 or not gates.needs_more_trials(measured, config.gates):
                break
    measured.save(paths.VALIDATE / f"{target}.json")
    accuracy = f"{report.metric} {report.reference_value:.4f} to {report.engine_value:.4f} on {report.validation_rows} rows"
    return f"{target}: {accuracy}; {done} fresh processes a variant"


def _accuracy(config: Config, target: str, plan: WarmupPlan) -> DriftReport:
    """Run both engines over the validation role, on the same batches padded as a host pads them; every output is compared."""
    function = known_metrics.function(config.gates.metric)
    specs, ladder = config.model.input_specs(), plan.ladder
    sizes_of_batch = ladder[batch_axis(specs)]
    batch_rows = max(sizes_of_batch)
    outputs: dict[str, list[dict[str, np.ndarray]]] = {"int8": [], "float32": []}
    labels: list[np.ndarray] = []
    by_batch: dict[str, float | None] = {}
    role = role_manifest(config, "validation").roles["validation"]
    folder = paths.ENGINES / target
    with engines.open_engine(folder / "int8") as int8, engines.open_engine(folder / "float32") as float32:
        batches = role_batches(config, "validation", batch_rows)
        for batch, batch_labels in track(batches, f"validate@{target}: accuracy", -(-len(role.rows) // batch_rows)):
            labels += [] if batch_labels is None else [batch_labels]
            padded, sizes = pad_to_plan(batch, specs, ladder)
            by_batch = by_batch or drift_details.by_batch(int8.run, padded, sizes_of_batch)
            for name, session in (("int8", int8), ("float32", float32)):
                outputs[name].append(cut(session.run(padded), session.engine.outputs, sizes))
    report = drift.measure(
        joined(outputs["float32"]),
        joined(outputs["int8"]),
        np.concatenate(labels) if labels else None,
        metric=config.gates.metric,
        function=function,
        classes=config.data.labels is not None,
        validation_root=role.merkle_root,
        class_names=role_manifest(config, "validation").class_names,
        slices=role_columns(config, "validation", config.gates.slices),
    )
    return dataclasses.replace(report, batch_sqnr_db=by_batch)


def _first_rows(config: Config, plan: WarmupPlan, exported: ExportedModel) -> Batch:
    """Some validation rows, padded as a host pads them."""
    batches = role_batches(config, "validation", max(plan.ladder[batch_axis(exported.inputs)]))
    return agreement.first_rows(pad_to_plan(batch, exported.inputs, plan.ladder)[0] for batch, _ in batches)


def _second_opinion(config: Config, target: str, rows: Batch, exported: ExportedModel) -> tuple[Agreement, Attribution]:
    """The same rows in a second runtime and at every station from the float graph to the engine."""
    with bar(f"validate@{target}: {len(next(iter(rows.values())))} rows in two runtimes") as progress:
        progress(0, 2, "agreement")
        agreed = agreement.measure(target, exported, rows, config.gates.runtimes_agree_db)
        progress(1, 2, "which hop loses what")
        attributed = agreement.journey(target, exported, rows)
        progress(2, 2, "")
    return agreed, attributed


def _commands(config: Config, target: str, plan: WarmupPlan, scratch: Path) -> dict[str, list[str]]:
    """One command a variant: INT8 without and with the plan, FP32 with the same steps."""
    rows_file = paths.WARM / target / "rows.npz"
    folder = paths.ENGINES / target
    float_engine = Engine.load(folder / "float32" / "engine.json")
    float_plan = dataclasses.replace(plan, engine_sha256=float_engine.digest())
    float_plan.save(scratch / "plan.json")
    requests = config.gates.requests
    return {
        "cold": engine_command(folder / "int8", "cold", rows=rows_file, requests=requests),
        "warm": engine_command(folder / "int8", "warm", plan=paths.WARM / target / "plan.json", rows=rows_file, requests=requests),
        "float": engine_command(folder / "float32", "float", plan=scratch / "plan.json", rows=rows_file, requests=requests),
    }
