"""Stage `warm@TARGET`: find the warm-up plan in fresh processes, and record each warm-up row's output."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import engines
from pipeline.config import load_config
from pipeline.files import replacing_folder, write_json
from pipeline.progress import bar
from pipeline.tensors import Batch
from stages import paths
from stages.hardware import not_measured
from stages.rows import role_arrays, role_manifest
from warmup.find import find_plan
from warmup.plan import Maker
from warmup.runner import record


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    if reason := not_measured(target, paths.WARM / target / "not_measured.json"):
        write_json(paths.WARM / f"{target}.json", {"not_warmed": reason})
        return f"{target}: not warmed, {reason}"
    rows, _ = role_arrays(config, "warmup")
    folder = paths.ENGINES / target / "int8"
    settings = config.warmup
    with replacing_folder(paths.WARM / target) as out:
        save_arrays(out / "rows.npz", rows)
        with engines.open_engine(folder) as session:
            engine = session.engine
            save_arrays(out / "expected.npz", record(session, rows, settings.shapes))
        maker = Maker(
            engine, rows, settings.batches, settings.concurrency, settings.max_seconds, role_manifest(config, "warmup").preprocess_sha256,
            settings.shapes, settings.retries, settings.max_rss_mb, settings.max_power_w, settings.max_celsius,
        )  # fmt: skip
        if settings.iterations == "auto":
            with bar(f"warm@{target}: find the shortest plan in fresh processes") as report:
                plan = find_plan(folder, out / "rows.npz", maker, seconds=settings.search_seconds, progress=report)
        else:
            plan = maker.ladder(settings.iterations, "params.yaml")
        plan.save(out / "plan.json")
    runs = sum(step.iterations for step in plan.steps)
    write_json(paths.WARM / f"{target}.json", {"plan_sha256": plan.digest(), "steps": len(plan.steps), "iterations": runs, "found_by": plan.found_by})
    return f"{target}: {len(plan.steps)} steps, {runs} iterations ({plan.found_by})"


def save_arrays(path: Path, arrays: Batch) -> None:
    """Named arrays as an .npz that loads without pickle."""
    np.savez(path, allow_pickle=False, **dict(arrays))
