"""Stage `ranges`: stream the calibration rows through the float model and keep each tensor's range, by each method that may be taken."""

from __future__ import annotations

from pathlib import Path

from calibration.ranges import collect_each
from pipeline.config import Config, load_config
from pipeline.files import replacing_folder
from pipeline.progress import bar
from pipeline.records import ExportedModel, Ranges
from stages import paths
from stages.rows import role_batches, role_manifest


def run() -> str:
    config = load_config(paths.PARAMS)
    found = calibrate(config, paths.EXPORT, "ranges: calibrate")
    with replacing_folder(paths.RANGES) as folder:
        save(found, folder)
    for method, ranges in found.items():
        for warning in ranges.warnings:
            print(f"warning: {method}: {warning}")
    first = next(iter(found.values()))
    return f"{len(first.tensors)} tensors over {first.calibration_rows} rows, method {', '.join(found)}, {len(first.dead)} dead"


def save(found: dict[str, Ranges], folder: Path) -> None:
    """One record a method, by its name."""
    for method, ranges in found.items():
        ranges.save(folder / f"{method}.json")


def calibrate(config: Config, folder: Path, title: str) -> dict[str, Ranges]:
    """By method, the ranges of the float model that was exported to `folder`, over the calibration rows."""
    exported = ExportedModel.load(folder / "exported.json", next="run `dvc repro export`")
    roles = role_manifest(config, "calibration")
    role = roles.roles["calibration"]
    batches = (batch for batch, _ in role_batches(config, "calibration", config.quantize.batch_rows))
    with bar(title) as report:
        return collect_each(
            folder / "model.onnx",
            exported,
            batches,
            role.rows,
            calibration_root=role.merkle_root,
            preprocess_sha256=roles.preprocess_sha256,
            min_rows=config.quantize.min_rows,
            batch_rows=config.quantize.batch_rows,
            methods=config.quantize.methods,
            progress=report,
        )
