"""Stage `cost`: calibrate once on calibration rows and once on rows that judge, and say how far such a leak would flatter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from calibration import leak_cost
from calibration.ranges import collect
from calibration.rounding.methods import Calibration
from calibration.runtime import run_session, session
from pipeline.config import Config, load_config
from pipeline.digests import merkle_root
from pipeline.progress import bar, track
from pipeline.records import ExportedModel, LeakCost
from pipeline.tensors import Batch
from stages import paths
from stages.rows import joined, role_arrays, role_batches, role_manifest
from stages.schemes import QUANTIZERS, float_layers, methods, range_method


def run() -> str:
    cost = measure(load_config(paths.PARAMS))
    cost.save(paths.COST)
    return cost.sentence


def measure(config: Config) -> LeakCost:
    """The cost of a leak of as many validation rows as there are calibration rows, at most half of them. Nothing is chosen by it."""
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    scheme = "cpu" if "cpu" in config.quantize.schemes else config.quantize.schemes[0]
    method = range_method(scheme)
    ours, judging = (role_manifest(config, role).roles[role] for role in ("calibration", "validation"))
    count = min(len(ours.rows), len(judging.rows) // 2)
    chosen = {leak_cost.CLEAN: ("calibration", sorted(ours.digests)[:count]), leak_cost.LEAKED: ("validation", sorted(judging.digests)[:count])}
    was_leaked = np.isin(judging.digests, chosen[leak_cost.LEAKED][1])
    models = {"float": paths.EXPORT / "model.onnx"}
    with tempfile.TemporaryDirectory(prefix="qwarm-cost-") as scratch:
        for name, (role, digests) in chosen.items():
            models[name] = _calibrate(config, exported, scheme, method, role, set(digests), Path(scratch) / name)
        outputs = {name: _outputs(config, model, name, len(judging.rows)) for name, model in models.items()}
    return leak_cost.measure(
        outputs["float"], outputs[leak_cost.CLEAN], outputs[leak_cost.LEAKED], was_leaked,
        classes=config.data.labels is not None, scheme=scheme, method=method, calibration_rows=count,
        preprocess_sha256=role_manifest(config, "validation").preprocess_sha256,
        calibration_root=merkle_root(chosen[leak_cost.CLEAN][1]), leaked_root=merkle_root(chosen[leak_cost.LEAKED][1]),
    )  # fmt: skip


def _calibrate(config: Config, exported: ExportedModel, scheme: str, method: str, role: str, digests: set[str], folder: Path) -> Path:
    """Ranges and the Q/DQ model from the rows of `role` with these digests; the path of the model."""
    manifest = role_manifest(config, role)
    rows = [row for row, digest in zip(manifest.roles[role].rows, manifest.roles[role].digests, strict=True) if digest in digests]
    with bar(f"cost: calibrate on {len(rows)} {role} rows") as report:
        ranges = collect(
            paths.EXPORT / "model.onnx",
            exported,
            _batches(config, role, digests),
            rows,
            calibration_root=merkle_root(digests),
            preprocess_sha256=manifest.preprocess_sha256,
            min_rows=1,
            batch_rows=config.quantize.batch_rows,
            method=method,
            progress=report,
        )
    search, _ = role_arrays(config, "search")
    with bar(f"cost: quantize after {role} rows") as report:
        QUANTIZERS[scheme](
            paths.EXPORT / "model.onnx", exported, ranges, folder, search,
            calibration=Calibration(lambda: _batches(config, role, digests), rows, methods(config)), float_layers=float_layers(config, paths.EXPORT),
            classes=config.data.labels is not None, progress=report,
        )  # fmt: skip
    return folder / "model.onnx"


def _batches(config: Config, role: str, digests: set[str]) -> Iterator[Batch]:
    """The batches of a role, without the rows that have other digests."""
    manifest = role_manifest(config, role).roles[role]
    wanted = np.isin(manifest.digests, sorted(digests))
    done = 0
    for batch, _ in role_batches(config, role, config.quantize.batch_rows):
        size = len(next(iter(batch.values())))
        kept = wanted[done : done + size]
        done += size
        if kept.any():
            yield {name: array[kept] for name, array in batch.items()}


def _outputs(config: Config, model: Path, name: str, rows: int) -> dict[str, np.ndarray]:
    """Every output of a model over the validation role, the graph run as written."""
    runtime = session(model, optimize=False)
    batch_rows = min(config.model.shapes[config.model.batch_axis].max, config.quantize.batch_rows)
    batches = (batch for batch, _ in role_batches(config, "validation", batch_rows))
    return joined([run_session(runtime, batch) for batch in track(batches, f"cost: judge {name}", -(-rows // batch_rows))])
