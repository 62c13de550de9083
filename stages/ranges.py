"""Stage `ranges`: stream the calibration rows through the float model and keep each tensor's range."""

from __future__ import annotations

from pathlib import Path

from calibration.ranges import collect
from pipeline.config import Config, load_config
from pipeline.progress import bar
from pipeline.records import ExportedModel, Ranges
from stages import paths
from stages.rows import role_batches, role_manifest


def run() -> str:
    config = load_config(paths.PARAMS)
    ranges = calibrate(config, paths.EXPORT, "ranges: calibrate")
    ranges.save(paths.RANGES)
    for warning in ranges.warnings:
        print(f"warning: {warning}")
    return f"{len(ranges.tensors)} tensors over {ranges.calibration_rows} rows, method {ranges.method}, {len(ranges.dead)} dead"


def calibrate(config: Config, folder: Path, title: str) -> Ranges:
    """Ranges of the float model that was exported to `folder`, over the calibration rows."""
    exported = ExportedModel.load(folder / "exported.json", next="run `dvc repro export`")
    roles = role_manifest(config, "calibration")
    role = roles.roles["calibration"]
    batches = (batch for batch, _ in role_batches(config, "calibration", config.quantize.batch_rows))
    with bar(title) as report:
        return collect(
            folder / "model.onnx",
            exported,
            batches,
            role.rows,
            calibration_root=role.merkle_root,
            preprocess_sha256=roles.preprocess_sha256,
            min_rows=config.quantize.min_rows,
            batch_rows=config.quantize.batch_rows,
            method=config.quantize.method,
            progress=report,
        )
