"""Stage `warm@TARGET`: find the warm-up plan in fresh processes, and record each warm-up row's output."""

from __future__ import annotations

from functools import partial
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
from warmup.find import find_iterations
from warmup.plan import ladder_plan
from warmup.runner import record


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    if reason := not_measured(target, paths.WARM / target / "not_measured.json"):
        write_json(paths.WARM / f"{target}.json", {"not_warmed": reason})
        return f"{target}: not warmed, {reason}"
    rows, _ = role_arrays(config, "warmup")
    folder = paths.ENGINES / target / "int8"
    ladder = partial(
        ladder_plan,
        batches=config.warmup.batches,
        concurrency=config.warmup.concurrency,
        shapes=config.warmup.shapes,
        max_seconds=config.warmup.max_seconds,
        retries=config.warmup.retries,
        max_rss_mb=config.warmup.max_rss_mb,
        preprocess_sha256=role_manifest(config, "warmup").preprocess_sha256,
    )
    with replacing_folder(paths.WARM / target) as out:
        save_arrays(out / "rows.npz", rows)
        with engines.open_engine(folder) as session:
            engine = session.engine
            save_arrays(out / "expected.npz", record(session, rows, config.warmup.shapes))
        iterations, found_by = config.warmup.iterations, "params.yaml"
        if iterations == "auto":
            with bar(f"warm@{target}: find the shortest plan in fresh processes") as report:
                iterations, found_by = find_iterations(folder, out / "rows.npz", partial(ladder, engine, rows), progress=report)
        plan = ladder(engine, rows, iterations=iterations, found_by=found_by)
        plan.save(out / "plan.json")
    write_json(paths.WARM / f"{target}.json", {"plan_sha256": plan.digest(), "iterations": iterations, "found_by": found_by})
    return f"{target}: {len(plan.steps)} steps of {iterations} iterations ({found_by})"


def save_arrays(path: Path, arrays: Batch) -> None:
    """Named arrays as an .npz that loads without pickle."""
    np.savez(path, allow_pickle=False, **dict(arrays))
