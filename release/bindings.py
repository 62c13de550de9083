"""What a measurement is bound to, by digest, and whether evidence from another machine belongs to this release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config import Config
from pipeline.digests import sha256_code, sha256_file, sha256_json
from pipeline.errors import Refused
from pipeline.loading import source_file
from pipeline.records import Evidence, ExportedModel, Platform, Roles

ROOT = Path(__file__).resolve().parents[1]
MEASURING = (
    "pipeline", "engines", "warmup", "calibration/sources", "calibration/content.py", "calibration/decode.py", "calibration/health.py",
    "calibration/prepared.py", "calibration/prove.py", "calibration/rows.py", "calibration/agree.py", "calibration/exposing.py",
    "calibration/hops.py", "calibration/onnx_model.py", "calibration/graph.py", "calibration/parity.py", "calibration/rounding/channels.py",
    "calibration/rounding/split.py", "calibration/runtime.py", "calibration/safe_names.py", "calibration/tied.py", "release/agreement.py",
    "release/bands.py", "release/bindings.py", "release/budgets.py", "release/drift.py", "release/drift_details.py", "release/figures.py",
    "release/gates.py", "release/known_metrics.py", "release/latency_checks.py", "release/metric.py", "release/paired.py", "release/plots.py",
    "release/rebuild_check.py", "release/slice_check.py", "release/slice_drift.py", "release/texts.py", "stages/agreement.py", "stages/validate.py",
    "stages/hardware.py", "stages/rows.py", "stages/paths.py",
)  # fmt: skip
"""The code that takes a measurement: what dvc.yaml lists for `validate@T` (a test holds them equal), so that a change there measures again."""
JUDGING = (
    "pipeline", "warmup/latency.py", "release/agreement.py", "release/bands.py", "release/bindings.py", "release/budgets.py", "release/figures.py",
    "release/firewall_check.py", "release/gates.py", "release/keyless.py", "release/keys.py", "release/latency_checks.py", "release/metric.py",
    "release/paired.py", "release/plots.py", "release/rebuild_check.py", "release/runners.py", "release/signing.py", "release/slice_check.py",
    "release/texts.py", "release/waivers.py", "stages/gate.py", "stages/paths.py",
)  # fmt: skip
"""The code that makes verdicts of it: what dvc.yaml lists for `gate@T` (so too)."""
MEANINGS = {
    "model_sha256": "the exported model",
    "validation_root": "the validation rows",
    "preprocess_sha256": "the preprocessing",
    "metric_sha256": "the metric",
    "parameters_sha256": "the parameters",
    "code_sha256": "the code that measures",
    "judging_sha256": "the code that judges",
    "platform_key": "the platform key",
    "machine_id": "the machine",
}


def bindings(config: Config, exported: ExportedModel, roles: Roles, platform: Platform) -> dict[str, str]:
    """Digests of everything that a measurement of `platform.target` rests on; the engine and the plan come on top.

    The parameters are those that `validate@T` depends on. `roles` needs no other role than `validation`.
    """
    parameters = config.model_dump(
        mode="json",
        include={"gates": True, "warmup": True, "model": {"inputs", "outputs", "shapes"}, "data": {"source", "columns", "preprocess", "labels"}},
    )
    bound = {
        "model_sha256": exported.onnx_sha256,
        "validation_root": roles.roles["validation"].merkle_root,
        "preprocess_sha256": roles.preprocess_sha256,
        "parameters_sha256": sha256_json(parameters),
        "code_sha256": sha256_code(ROOT, MEASURING),
        "platform_key": platform.key,
        "machine_id": platform.machine_id,
    }
    if (metric := source_file(config.gates.metric)) is not None:
        bound["metric_sha256"] = sha256_file(metric)
    return bound


def judging() -> dict[str, str]:
    """The digest of the code that judges, which `gate@T` adds to what the measurement is bound to."""
    return {"judging_sha256": sha256_code(ROOT, JUDGING)}


def belong(evidences: Sequence[Evidence], expected: Mapping[str, Mapping[str, str]]) -> None:
    """Raise Refused naming every digest in which a shipping target's evidence differs from `expected[target]`."""
    faults = []
    for evidence in evidences:
        for name, wanted in expected[evidence.target].items() if evidence.ships else ():
            if (got := evidence.bound_to.get(name, "nothing")) != wanted:
                faults.append((f"evidence/{evidence.target}.json", name, wanted, got))
    if not faults:
        return
    targets = sorted({where.removeprefix("evidence/").removesuffix(".json") for where, *_ in faults})
    raise Refused(
        "Evidence is of something else: " + ", ".join(dict.fromkeys(MEANINGS.get(name, name) for _, name, _, _ in faults)),
        where=", ".join(f"{where}: bound_to.{name}" for where, name, _, _ in faults),
        expected=", ".join(wanted[:16] for _, _, wanted, _ in faults),
        got=", ".join(got[:16] for *_, got in faults),
        next="; ".join(f"run `dvc repro gate@{target}` where {target} runs, push and commit it" for target in targets),
    )
