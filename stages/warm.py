"""Stage `warm@TARGET`: find the warm-up plan in fresh processes, and record each warm-up row's output."""

from __future__ import annotations

import numpy as np

import engines
from pipeline.config import load_config
from pipeline.files import replacing_folder
from pipeline.progress import bar
from stages import paths
from stages.rows import role_arrays
from warmup.find import find_iterations
from warmup.plan import ladder_plan


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    rows, _ = role_arrays(config, "warmup")
    folder = paths.ENGINES / target / "int8"
    settings = {"batches": config.warmup.batches, "concurrency": config.warmup.concurrency, "max_seconds": config.warmup.max_seconds}
    with replacing_folder(paths.WARM / target) as out:
        np.savez(out / "rows.npz", **rows)
        with engines.open_engine(folder) as session:
            engine = session.engine
            alone = [session.run({name: array[index : index + 1] for name, array in rows.items()}) for index in range(len(next(iter(rows.values()))))]
        np.savez(out / "expected.npz", **{name: np.concatenate([outputs[name] for outputs in alone]) for name in alone[0]})
        if config.warmup.iterations == "auto":
            with bar(f"warm@{target}: find the shortest plan in fresh processes") as report:
                iterations, found_by = find_iterations(folder, out / "rows.npz", engine, rows, progress=report, **settings)
        else:
            iterations, found_by = config.warmup.iterations, "params.yaml"
        plan = ladder_plan(engine, rows, iterations=iterations, found_by=found_by, **settings)
        plan.save(out / "plan.json")
    return f"{target}: {len(plan.steps)} steps of {iterations} iterations ({found_by})"
