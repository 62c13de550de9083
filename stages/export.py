"""Stage `export`: torch to ONNX with dynamic axes, compared with torch at several sizes."""

from __future__ import annotations

from pathlib import Path

from calibration.export import export
from pipeline.config import load_config
from pipeline.progress import bar
from stages import paths
from stages.rows import role_arrays


def run() -> str:
    config = load_config(paths.PARAMS)
    rows, _ = role_arrays(config, "warmup")
    with bar("export: torch to ONNX") as report:
        exported = export(config.model, Path(), paths.EXPORT, rows, progress=report)
    worst = max(point.max_absolute for point in exported.parity)
    sizes = sorted({tuple(point.sizes.values()) for point in exported.parity})
    if exported.fallback:
        print(f"warning: TorchScript exported the model, because torch.export could not: {exported.fallback}")
    return f"{exported.macs / 1e6:.1f} million multiply-accumulates a row, opset {exported.opset}; parity within {worst:.2g} at sizes {sizes}"
