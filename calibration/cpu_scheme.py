"""The Q/DQ scheme `cpu`: what ONNX Runtime fuses into its INT8 kernels and OpenVINO runs in INT8 as well.

Activations are U8 with a zero point, weights S8, symmetric and per channel, biases int32 at the product of both scales (gemmlowp's scheme:
Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018). Q/DQ stand around every
operator that has such a kernel, placed by ONNX Runtime's own `QDQQuantizer` from our ranges: nothing is calibrated again. On a CPU with AVX2 and
no VNNI the U8S8 kernels add pairs of products in 16 bits and may saturate; the accuracy gate of a machine of that kind is what notices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.cpu_codes import fill, sketch
from calibration.cpu_placement import Plan, place
from calibration.cpu_rules import SAFE_MAGNITUDE, verify
from calibration.float_layers import NONE, added_biases
from calibration.rounding.methods import Calibration
from calibration.rounding.reconstruct import Rounded
from calibration.scheme import Placement, count, zero_channels
from calibration.variants import Job, Rules, Variant, variants
from calibration.winner import finish
from pipeline.errors import QuantizeError
from pipeline.macs import MULTIPLYING
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, QuantizedModel, Ranges
from pipeline.side_files import MAX_INSIDE
from pipeline.tensors import Batch
from pipeline.weights import folder_of, lean, whole

if TYPE_CHECKING:
    import onnx

SCHEME = "cpu"
IN_WORDS = "U8 activations with zero points, S8 weights per channel, int32 biases, Q/DQ around each operator with an INT8 kernel"


def quantize(
    float_model: Path,
    exported: ExportedModel,
    ranges: Ranges,
    folder: Path,
    search_rows: Batch,
    *,
    calibration: Calibration | None = None,
    float_layers: Mapping[str, str] = NONE,
    classes: bool = True,
    reference: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    limit: int = MAX_INSIDE,
) -> QuantizedModel:
    """Write `folder`/model.onnx and quantized.json, whole or not at all: equal inputs give equal bytes. Weights beyond `limit` go to a side file.

    Every scale, zero point, weight code and bias of the result is checked against `ranges` and the float weights. With `calibration` a second
    variant has weights and biases fitted on those rows. `float_layers` `{node: reason}` stay in float. `search_rows` `{input: (n, ...)}` then
    measure each variant against the float graph (or that of `reference`), both in ONNX Runtime exactly as written, and the better is written;
    with `classes` the first output holds class scores, so that agreement means something. Raises RangeError for ranges of another model,
    QuantizeError for everything else, also in a process that has imported modelopt's part for ONNX (it patches ONNX Runtime).
    """
    job = Job(float_model, exported, ranges, search_rows, calibration, limit, reference)
    return finish(RULES, job, variants(RULES, job, float_layers, progress), folder, classes=classes, progress=progress)


def quantizer(ranges: Ranges) -> str:  # noqa: ARG001
    """Tool, version and rules in words."""
    return f"onnxruntime {package_version('onnxruntime-gpu')} QDQQuantizer, {IN_WORDS}"


def placed(source: onnx.ModelProto, job: Job, ranges: Ranges, float_layers: Mapping[str, str]) -> onnx.ModelProto:  # noqa: ARG001
    """`source` with Q/DQ from `ranges`, weights to the nearest code."""
    _refuse_modelopt()
    return _quantized(source, ranges, place(source, float_layers))


def checked(
    source: onnx.ModelProto, model: onnx.ModelProto, job: Job, ranges: Ranges, rounded: Mapping[str, Rounded], float_layers: Mapping[str, str]  # noqa: ARG001
) -> Placement:  # fmt: skip
    """Where Q/DQ stand; raises QuantizeError for a graph that is not what `cpu_rules.verify` wants."""
    verify(source, model, ranges, rounded)
    refused = place(source, float_layers).refused
    return count(model, lambda node, _: refused.get(node.name, "it stands in no pattern that the scheme quantizes"))


def sketched(variant: Variant, job: Job, float_layers: Mapping[str, str]) -> onnx.ModelProto:  # noqa: ARG001
    """`variant` with other layers in float: placed with one scale a weight, which is quick, then given the variant's own constants."""
    plan = place(variant.source, float_layers)
    weights = {node.input[1] for node in variant.source.graph.node if node.name in plan.nodes and node.op_type in MULTIPLYING}
    constants = {tensor.name for tensor in variant.source.graph.initializer}
    model = _quantized(variant.source, variant.ranges, dataclasses.replace(plan, by_tensor=frozenset(weights & constants)))
    floats = added_biases(variant.source, float_layers)
    own = {tensor.name: tensor for tensor in variant.model.graph.initializer if tensor.name not in floats}
    nodes = {node.name: node for node in variant.model.graph.node if node.op_type == "DequantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in own:
            tensor.CopyFrom(own[tensor.name])
    for node in model.graph.node:
        if node.name in nodes:
            node.CopyFrom(nodes[node.name])
    return model


def rescaled(model: onnx.ModelProto, source: onnx.ModelProto, job: Job, ranges: Ranges, float_layers: Mapping[str, str]) -> onnx.ModelProto:  # noqa: ARG001
    """Placed anew: zero points and biases follow from the ranges as well."""
    return placed(source, job, ranges, float_layers)


RULES = Rules(SCHEME, int32_bias=True, placed=placed, checked=checked, sketched=sketched, rescaled=rescaled, quantizer=quantizer)


def _refuse_modelopt() -> None:
    if "modelopt.onnx" in sys.modules:
        raise QuantizeError(
            "This process has imported modelopt.onnx, which patches ONNX Runtime's quantizer",
            where="scheme cpu",
            expected="a process of its own",
            got="modelopt.onnx in sys.modules",
            next="run `dvc repro quantize@cpu`",
        )


def _quantized(source: onnx.ModelProto, ranges: Ranges, plan: Plan) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    if not plan.nodes:
        raise QuantizeError(
            "No operator was quantized",
            where=f"scheme {SCHEME}",
            expected="at least one Conv, Gemm or MatMul",
            got="; ".join(f"{name}: {reason}" for name, reason in list(plan.refused.items())[:5]) or "a model without such an operator",
            next="release this model in float",
        )
    chosen = set(plan.nodes)
    operators = sorted({node.op_type for node in source.graph.node if node.name in chosen})
    limits = {name: TensorData(lowest=np.float32(entry.low), highest=np.float32(entry.high)) for name, entry in ranges.tensors.items()}
    options = {"OpTypesToExcludeOutputQuantization": ["MatMul"], "TensorQuantOverrides": _overrides(source, plan)}
    folder = folder_of(source)
    given, instead = (whole(source), frozenset[str]()) if folder is None else sketch(source, chosen)
    with _quiet(logging.getLogger()):
        quantizer = QDQQuantizer(given, True, False, QuantType.QInt8, QuantType.QUInt8, limits, list(plan.nodes), [], operators, options)
        model = ONNXModel(quantizer.quantize_model())
    _free_outputs(source, model.model)
    model.topological_sort()
    del model.model.graph.value_info[:]
    if folder is None:
        return model.model
    fill(model.model, source, instead)
    return lean(model.model, folder)


def _overrides(source: onnx.ModelProto, plan: Plan) -> dict[str, list[dict[str, object]]]:
    """One scale for the weights in `by_tensor`; for an all-zero channel one that leaves its bias a fine grid (ONNX Runtime would take 1.0)."""
    overrides: dict[str, list[dict[str, object]]] = {name: [{"symmetric": True}] for name in plan.by_tensor}
    for name, (axis, size, channels) in zero_channels(source, plan.nodes).items():
        if name not in overrides:
            entries: list[dict[str, object]] = [{"axis": axis} if index == 0 else {} for index in range(size)]
            for channel in channels:
                entries[channel] |= {"rmin": -SAFE_MAGNITUDE, "rmax": SAFE_MAGNITUDE}
            overrides[name] = entries
    return overrides


def _free_outputs(source: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Drop the Q/DQ between a Gemm and a graph output: the kernel can write float, and 8-bit logits would cost decibels for nothing."""
    graph = model.graph
    direct = {name for node in source.graph.node if node.op_type == "Gemm" for name in node.output}
    producers = {name: node for node in graph.node for name in node.output}
    used = {name for node in graph.node for name in node.input}
    for value in graph.output:
        dequantize = producers[value.name]
        if value.name not in direct or value.name in used or dequantize.op_type != "DequantizeLinear":
            continue
        quantize_node = producers[dequantize.input[0]]
        producers[quantize_node.input[0]].output[0] = value.name
        graph.node.remove(dequantize)
        graph.node.remove(quantize_node)
    kept = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in kept]:
        graph.initializer.remove(tensor)


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Hold back a logger's lines below ERROR: the quantizer writes advice to the root logger."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
