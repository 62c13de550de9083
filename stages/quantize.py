"""Stage `quantize@SCHEME`: one Q/DQ model from the ranges, in a process of its own (modelopt patches ONNX Runtime)."""

from __future__ import annotations

from calibration import cpu_scheme, tensorrt_scheme
from calibration.ranges import check_bound
from calibration.rounding.methods import Calibration, Methods
from pipeline.config import Config, load_config
from pipeline.progress import bar
from pipeline.records import ExportedModel, Ranges
from stages import paths
from stages.rows import role_arrays, role_batches, role_manifest

QUANTIZERS = {tensorrt_scheme.SCHEME: tensorrt_scheme.quantize, cpu_scheme.SCHEME: cpu_scheme.quantize}


def methods(config: Config) -> Methods:
    """The switches of params.yaml that say how weights are fitted."""
    return Methods(config.quantize.equalization, config.quantize.adaptation, config.quantize.rounding, config.quantize.bias_correction)


def run(scheme: str) -> str:
    config = load_config(paths.PARAMS)
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    ranges = Ranges.load(paths.RANGES, next="run `dvc repro ranges`")
    roles = role_manifest(config, "calibration")
    check_bound(ranges, exported, roles, method=config.quantize.method, batch_rows=config.quantize.batch_rows)
    rows, _ = role_arrays(config, "search")
    calibration = Calibration(
        rows=lambda: (batch for batch, _ in role_batches(config, "calibration", config.quantize.batch_rows)),
        ids=roles.roles["calibration"].rows,
        methods=methods(config),
    )
    with bar(f"quantize@{scheme}") as report:
        classes = config.data.labels is not None
        quantized = QUANTIZERS[scheme](
            paths.EXPORT / "model.onnx", exported, ranges, paths.QUANTIZED / scheme, rows,
            calibration=calibration, classes=classes, progress=report,
        )  # fmt: skip
    decibels = "without limit" if quantized.search_sqnr_db is None else f"{quantized.search_sqnr_db:.1f} dB"
    left = "; ".join(quantized.left_in_float) or "none"
    rounded = ", ".join(f"{name} {'without limit' if db is None else f'{db:.1f} dB'}" for name, db in quantized.variants.items())
    zero = "".join(f"; {weight} has {len(channels)} all-zero channels" for weight, channels in quantized.zero_channels.items())
    return (
        f"{scheme}: {quantized.quantize_linear} QuantizeLinear, {quantized.dequantize_linear} DequantizeLinear, "
        f"SQNR {decibels} on {quantized.search_rows} search rows (weights {quantized.variant}; {rounded}); left in float: {left}{zero}"
    )
