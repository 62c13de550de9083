"""A signed bundle of one engine and its plan, as the stage `release` packs it. Evidence and roles are made by hand: no gate judged it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import engines
from pipeline.arrays import read_arrays
from pipeline.digests import sha256_bytes, sha256_file
from pipeline.platforms import package_version
from pipeline.records import Check, Engine, Evidence, ExportedModel, Interval, Role, Roles, RowSource, Verdict, WarmupPlan
from release import bundle, signing
from warmup.runner import record

PREPROCESS = "def prepare(row):\n    return row\n"
PREPROCESS_SHA256 = sha256_bytes(PREPROCESS.encode())
CLASSES = ("a", "b", "c")


def pack(engine_folder: Path, plan: Path, rows: Path, model: Path, folder: Path) -> tuple[Path, Path]:
    """The bundle, and the public key that signed it, both in `folder`. The plan must be bound to `PREPROCESS_SHA256`."""
    warm = folder / "warm"
    warm.mkdir(parents=True, exist_ok=True)
    (folder / "preprocess.py").write_text(PREPROCESS, encoding="utf-8")
    (warm / "plan.json").write_bytes(plan.read_bytes())
    (warm / "rows.npz").write_bytes(rows.read_bytes())
    with engines.open_engine(engine_folder) as session:
        engine = session.engine
        np.savez(warm / "expected.npz", allow_pickle=False, **record(session, read_arrays(rows, what="Rows")))
    key = signing.open_key(folder / "development.pem", development=True)
    packed = bundle.pack(
        folder / "release", name="benchmark", version="0", evidences=[_evidence(engine, WarmupPlan.load(plan))],
        engines={engine.target: engine_folder}, warm={engine.target: warm}, exported=_exported(engine, model), roles=_roles(),
        preprocess=(folder / "preprocess.py", "prepare"), host_packages={"numpy": package_version("numpy")}, provenance={}, key=key,
    )  # fmt: skip
    return packed, key.write_public(folder / "development.pub")


def _evidence(engine: Engine, plan: WarmupPlan) -> Evidence:
    check = Check("accuracy", Verdict.PASS, 0.0, Interval(0.0, 0.0, 0.95), 0.01, "max", "fraction", "by hand", "")
    return Evidence(
        engine.target, True, Verdict.PASS, True, "by hand", (check,), {}, {"engine_sha256": engine.digest(), "plan_sha256": plan.digest()},
        {}, "2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def _exported(engine: Engine, model: Path) -> ExportedModel:
    return ExportedModel(sha256_file(model), sha256_bytes(b""), "by hand", "by hand", 17, engine.inputs, engine.outputs, engine.shapes, (), 0, {})


def _roles() -> Roles:
    role = Role("main", ("0",), (sha256_bytes(b"0"),), sha256_bytes(b"root"), {"a": 1}, sha256_bytes(b"labels"), ())
    sources = {"main": RowSource("by hand", sha256_bytes(b""), 1)}
    return Roles(sources, PREPROCESS_SHA256, 0, CLASSES, (), {}, (), {"warmup": role, "validation": role})
