"""What `qwarm quantize` says when it is done: one JSON object, and lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.rows import Rows
from pipeline.records import QuantizedModel, Ranges

if TYPE_CHECKING:
    from cli.quantize import Asked

LARGEST_HALF = 65504.0
"""The largest float16."""
SHOWN = 5


def report(path: Path, out: Path, asked: Asked, rows: Rows, ranges: Ranges, record: QuantizedModel, sha256: str) -> dict[str, Any]:
    """What was done, measured and noticed, as `--json` prints it."""
    large = {name: entry.seen_magnitude for name, entry in ranges.tensors.items() if entry.seen_magnitude > LARGEST_HALF}
    return {
        "model": str(path),
        "out": str(out),
        "sha256": sha256,
        "scheme": asked.scheme,
        "method": ranges.method,
        "calibration_rows": len(rows.ids),
        "calibration_root": rows.root,
        "left_out": dict(rows.left_out),
        "quantize_linear": record.quantize_linear,
        "dequantize_linear": record.dequantize_linear,
        "quantized_nodes": list(record.quantized_nodes),
        "float_nodes": [node.to_json() for node in record.float_nodes],
        "left_in_float": list(record.left_in_float),
        "zero_channels": {name: list(channels) for name, channels in record.zero_channels.items()},
        "dead": list(ranges.dead),
        "high_precision": "float32",
        "beyond_float16": large,
        "judged_on": str(asked.search) if asked.search else "calibration rows but outliers",
        "judged_rows": record.search_rows,
        "sqnr_db": record.search_sqnr_db,
        "agreement": record.search_agreement,
        "weights": record.variant,
        "sqnr_db_by_weights": dict(record.variants),
        "warnings": list(ranges.warnings),
    }


def describe(report: Mapping[str, Any]) -> str:
    """The report in lines for a person."""
    decibels = "equal" if report["sqnr_db"] is None else f"{report['sqnr_db']:.1f} dB"
    agreement = "" if report["agreement"] is None else f", agreement {report['agreement']:.4f}"
    lines = [
        f"{report['out']}: scheme {report['scheme']}, {report['quantize_linear']} QuantizeLinear, {report['dequantize_linear']} DequantizeLinear, "
        f"{len(report['quantized_nodes'])} nodes in INT8; ranges by {report['method']} from {report['calibration_rows']} rows",
        f"against the float model: {decibels}{agreement} on {report['judged_rows']} rows ({report['judged_on']}; both as written, in ONNX Runtime)",
    ]
    if len(report["sqnr_db_by_weights"]) > 1:
        each = ", ".join(f"{name} {'equal' if db is None else f'{db:.1f} dB'}" for name, db in report["sqnr_db_by_weights"].items())
        lines.append(f"weights: {report['weights']} ({each})")
    lines += [f"in float: {line}" for line in report["left_in_float"]]
    lines += [f"left out: row {row}, {reason}" for row, reason in report["left_out"].items()]
    lines += [
        f"weight {name}: {len(channels)} channels are zero throughout and have a safe scale" for name, channels in report["zero_channels"].items()
    ]
    if large := report["beyond_float16"]:
        shown = ", ".join(f"{name} ({value:.4g})" for name, value in list(large.items())[:SHOWN])
        lines.append(f"float32 is kept around the INT8 operators: {len(large)} tensors are beyond {LARGEST_HALF:g}, where float16 ends: {shown}")
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    return "\n".join([*lines, f"next: qwarm lint {report['out']} --scheme {report['scheme']}"])
