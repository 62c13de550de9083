"""Which variant is written: each is judged on the search rows against the float graph, and the best one becomes the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.float_layers import NONE
from calibration.float_operators import kept_in_float
from calibration.runtime import run_session, session
from calibration.scheme import zero_channels
from calibration.variants import Job, Progress, Rules, Variant, silent
from pipeline.decibels import sqnr_db
from pipeline.digests import sha256_file
from pipeline.errors import QuantizeError
from pipeline.files import replacing_folder
from pipeline.records import QuantizedModel
from pipeline.side_files import save_model
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

JUDGED_ROWS = 8
"""Rows that run at once, where the model allows it: graphs that run as written hold many activations."""
Judged = tuple[float | None, float | None]
"""SQNR in dB of the worst output (null when all are equal) and top-1 agreement of the first output (null without classes)."""


def finish(
    rules: Rules,
    job: Job,
    variants: Mapping[str, Variant],
    folder: Path,
    *,
    classes: bool,
    also: Mapping[str, str] = NONE,
    progress: Progress = silent,
) -> QuantizedModel:
    """Judge the variants on the search rows and write the best one's `folder`/model.onnx and quantized.json, whole or not at all.

    With the ranges.json of an equalized float graph, if that is what was quantized, and the texts `also` by file name.
    """
    progress(1, 3, "search rows")
    models = {name: variant.model for name, variant in variants.items()}
    judged = judge(job, models, classes=classes)
    best = closest(judged)
    placement, own = variants[best].placement, variants[best].ranges
    equalized = None if own is job.ranges else own
    progress(2, 3, "write")
    with replacing_folder(folder) as temporary:
        record = QuantizedModel(
            scheme=rules.scheme,
            onnx_sha256=save_model(models[best], temporary / "model.onnx", job.limit),
            float_sha256=job.exported.onnx_sha256,
            ranges_sha256=job.ranges.digest(),
            quantizer=rules.quantizer(job.ranges),
            quantize_linear=placement.quantize_linear,
            dequantize_linear=placement.dequantize_linear,
            quantized_nodes=placement.quantized_nodes,
            float_nodes=(*placement.float_nodes, *kept_in_float(models[best])),
            search_rows=len(next(iter(job.rows.values()))),
            search_sqnr_db=judged[best][0],
            search_agreement=judged[best][1],
            zero_channels={name: channels for name, (_, _, channels) in zero_channels(variants[best].source, placement.quantized_nodes).items()},
            variant=best,
            variants={name: db for name, (db, _) in judged.items()},
            equalized_ranges_sha256=None if equalized is None else equalized.digest(),
            reference_sha256=None if job.reference is None else sha256_file(job.reference),
        )
        record.save(temporary / "quantized.json")
        if equalized is not None:
            equalized.save(temporary / "ranges.json")
        for name, text in also.items():
            (temporary / name).write_text(text, encoding="utf-8")
    progress(3, 3, "")
    return record


def closest(judged: Mapping[str, Judged]) -> str:
    """The variant of the best SQNR."""
    return max(judged, key=lambda name: float("inf") if (db := judged[name][0]) is None else db)


def judge(job: Job, models: Mapping[str, onnx.ModelProto], *, classes: bool) -> dict[str, Judged]:
    """Each model by name, Q/DQ against float, both exactly as written in ONNX Runtime: its optimizer can break a valid Q/DQ model."""
    names = [spec.name for spec in job.exported.outputs]
    reference = _outputs(session(job.judge, optimize=False), job.batch, job.rows)
    judged = {}
    for name, content in models.items():
        got = _outputs(session(content, optimize=False), job.batch, job.rows)
        for output, array in got.items():
            if not np.isfinite(array).all():
                raise QuantizeError("The Q/DQ model gives values that are not finite", where=f"output {output}", expected="finite numbers")
        decibels = [db for output in names if (db := sqnr_db(reference[output], got[output])) is not None]
        agreement = float(np.mean(reference[names[0]].argmax(1) == got[names[0]].argmax(1))) if classes else None
        judged[name] = (min(decibels, default=None), agreement)
    return judged


def _outputs(runtime: Any, batch: AxisRange, rows: Batch) -> dict[str, np.ndarray]:
    """Every output for all rows, (rows, values of a row)."""
    total = len(next(iter(rows.values())))
    parts: dict[str, list[np.ndarray]] = {}
    most = min(max(JUDGED_ROWS, batch.min), batch.max)
    for start in range(0, total, most):
        size = min(most, total - start)
        index = np.minimum(np.arange(start, start + max(size, batch.min)), start + size - 1)
        for name, output in run_session(runtime, {name: array[index] for name, array in rows.items()}).items():
            parts.setdefault(name, []).append(output[:size])
    return {name: np.concatenate(pieces).reshape(total, -1) for name, pieces in parts.items()}
