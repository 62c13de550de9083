"""What a measurement is bound to, by digest, and whether evidence from another machine belongs to this release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config import Config
from pipeline.digests import sha256_code, sha256_file, sha256_json
from pipeline.errors import Refused
from pipeline.loading import source_file
from pipeline.records import Evidence, ExportedModel, Platform, Roles

MEASURING = (
    "pipeline", "engines", "warmup", "calibration/agree.py", "calibration/exposing.py", "calibration/hops.py", "calibration/parity.py",
    "calibration/runtime.py", "release/drift.py", "release/drift_details.py",
    "release/known_metrics.py", "release/metric.py", "release/paired.py", "release/slice_drift.py", "stages/agreement.py",
    "stages/validate.py",
)  # fmt: skip
"""The code that takes a measurement: each is a dependency of `validate@T`, so that a change there measures again."""
MEANINGS = {
    "model_sha256": "the exported model",
    "validation_root": "the validation rows",
    "preprocess_sha256": "the preprocessing",
    "metric_sha256": "the metric",
    "parameters_sha256": "the parameters",
    "code_sha256": "the code that measures",
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
        "code_sha256": sha256_code(Path(__file__).resolve().parents[1], MEASURING),
        "platform_key": platform.key,
        "machine_id": platform.machine_id,
    }
    if (metric := source_file(config.gates.metric)) is not None:
        bound["metric_sha256"] = sha256_file(metric)
    return bound


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
