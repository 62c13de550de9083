"""What every Q/DQ scheme does around its own placement: bind to the ranges, count, judge on search rows, write."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.float_operators import kept_in_float
from calibration.onnx_model import read_model
from calibration.parity import sqnr_db
from calibration.runtime import run_session, session
from calibration.safe_names import name_nodes
from pipeline.digests import sha256_file
from pipeline.errors import QuantizeError, RangeError
from pipeline.files import replacing_folder
from pipeline.macs import MULTIPLYING, node_key
from pipeline.records import ExportedModel, FloatNode, QuantizedModel, Ranges
from pipeline.side_files import MAX_INSIDE, save_model
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

Progress = Callable[[int, int, str], None]
Reason = Callable[["onnx.NodeProto", list[bool]], str]
"""Why a multiplying node of the Q/DQ graph is in float, given which of its two factors are dequantized."""


JUDGED_ROWS = 8
"""Rows that run at once, where the model allows it: graphs that run as written hold many activations."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to quantize the same float model; `equalized` are the ranges of a float graph with the same answers and other weights."""

    model: onnx.ModelProto
    placement: Placement
    equalized: Ranges | None = None


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where Q/DQ stand: nodes that multiply with both factors dequantized, and those that stay in float."""

    quantize_linear: int
    dequantize_linear: int
    quantized_nodes: tuple[str, ...]
    float_nodes: tuple[FloatNode, ...]


def bound(float_model: Path, exported: ExportedModel, ranges: Ranges) -> None:
    """Raise RangeError unless file, export record and ranges are of one model."""
    found = sha256_file(float_model)
    if found != exported.onnx_sha256 or ranges.onnx_sha256 != exported.onnx_sha256:
        raise RangeError(
            "The ranges were taken on another model",
            where=str(float_model),
            expected=f"ranges and file of model {exported.onnx_sha256}",
            got=f"file {found}, ranges of {ranges.onnx_sha256}",
            next="run `dvc repro ranges`",
        )


def count(quantized: onnx.ModelProto, reason: Reason) -> Placement:
    """Count Q/DQ and sort the multiplying nodes of `quantized` into INT8 and float, with a reason for each of the latter."""
    producers = {name: node.op_type for node in quantized.graph.node for name in node.output}
    operators = Counter(node.op_type for node in quantized.graph.node)
    inside, outside = [], []
    for index, node in enumerate(quantized.graph.node):
        if node.op_type in MULTIPLYING:
            covered = [producers.get(name) == "DequantizeLinear" for name in node.input[:2]]
            if all(covered):
                inside.append(node_key(node, index))
            else:
                outside.append(FloatNode(node_key(node, index), node.op_type, reason(node, covered)))
    return Placement(operators["QuantizeLinear"], operators["DequantizeLinear"], tuple(inside), tuple(outside))


def finish(
    scheme: str,
    quantizer: str,
    variants: Mapping[str, Variant],
    float_model: Path,
    exported: ExportedModel,
    ranges: Ranges,
    folder: Path,
    search_rows: Batch,
    classes: bool,
    progress: Progress,
    limit: int = MAX_INSIDE,
) -> QuantizedModel:
    """Judge the variants on the search rows and write the best one's `folder`/model.onnx and quantized.json, whole or not at all.

    With the ranges.json of an equalized float graph, if that is what was quantized. Weights beyond `limit` bytes go to a side file.
    """
    source = read_model(float_model)
    name_nodes(source)
    progress(1, 3, "search rows")
    models = {name: variant.model for name, variant in variants.items()}
    judged = judge(float_model, models, exported, search_rows, classes)
    best = max(models, key=lambda name: float("inf") if (db := judged[name][0]) is None else db)
    placement, equalized = variants[best].placement, variants[best].equalized
    progress(2, 3, "write")
    with replacing_folder(folder) as temporary:
        record = QuantizedModel(
            scheme=scheme,
            onnx_sha256=save_model(models[best], temporary / "model.onnx", limit),
            float_sha256=exported.onnx_sha256,
            ranges_sha256=ranges.digest(),
            quantizer=quantizer,
            quantize_linear=placement.quantize_linear,
            dequantize_linear=placement.dequantize_linear,
            quantized_nodes=placement.quantized_nodes,
            float_nodes=(*placement.float_nodes, *kept_in_float(models[best])),
            search_rows=len(next(iter(search_rows.values()))),
            search_sqnr_db=judged[best][0],
            search_agreement=judged[best][1],
            zero_channels={name: channels for name, (_, _, channels) in zero_channels(source, placement.quantized_nodes).items()},
            variant=best,
            variants={name: db for name, (db, _) in judged.items()},
            equalized_ranges_sha256=None if equalized is None else equalized.digest(),
        )
        record.save(temporary / "quantized.json")
        if equalized is not None:
            equalized.save(temporary / "ranges.json")
    progress(3, 3, "")
    return record


def judge(
    float_model: Path, variants: Mapping[str, onnx.ModelProto], exported: ExportedModel, rows: Batch, classes: bool
) -> dict[str, tuple[float | None, float | None]]:
    """By variant, SQNR in dB of the worst output (null when all are equal) and, with classes, top-1 agreement of the first output.

    Q/DQ against float, both exactly as written in ONNX Runtime: its optimizer can break a valid Q/DQ model.
    """
    names = [spec.name for spec in exported.outputs]
    batch = exported.shapes[str(exported.inputs[0].shape[0])]
    reference = _outputs(session(float_model, optimize=False), batch, rows)
    judged = {}
    for variant, model in variants.items():
        got = _outputs(session(model, optimize=False), batch, rows)
        for name, array in got.items():
            if not np.isfinite(array).all():
                raise QuantizeError("The Q/DQ model gives values that are not finite", where=f"output {name}", expected="finite numbers")
        decibels = [db for name in names if (db := sqnr_db(reference[name], got[name])) is not None]
        agreement = float(np.mean(reference[names[0]].argmax(1) == got[names[0]].argmax(1))) if classes else None
        judged[variant] = (min(decibels, default=None), agreement)
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


def zero_channels(model: onnx.ModelProto, nodes: Collection[str]) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """`{weight: (channel axis, channels, those that are zero throughout)}` for the weights of the named nodes that have such channels."""
    import onnx

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.name not in nodes or node.op_type not in MULTIPLYING or node.input[1] not in weights:
            continue
        weight, axis = onnx.numpy_helper.to_array(weights[node.input[1]]), channel_axis(node)
        zero = np.flatnonzero(~np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).any(axis=1))
        if len(zero):
            found[node.input[1]] = (axis, weight.shape[axis], tuple(int(index) for index in zero))
    return found


def channel_axis(node: onnx.NodeProto) -> int:
    """Which axis of a multiplying node's weight is its output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 1
    return 1 if node.op_type == "ConvTranspose" else -1


def broken(node: onnx.NodeProto, expected: str, got: str) -> QuantizeError:
    """The refusal of a Q/DQ graph at one of its nodes."""
    return QuantizeError("The Q/DQ model is not what was asked for", where=f"node {node.name} ({node.op_type})", expected=expected, got=got)
