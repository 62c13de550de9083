"""The Q/DQ scheme `cpu`: what ONNX Runtime fuses into its INT8 kernels and OpenVINO runs in INT8 as well.

Activations are U8 with a zero point, weights S8, symmetric and per channel, biases int32 at the product of both scales (gemmlowp's scheme:
Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018). Q/DQ stand around every
operator that has such a kernel, placed by ONNX Runtime's own `QDQQuantizer` from our ranges: nothing is calibrated again. On a CPU with AVX2 and
no VNNI the U8S8 kernels add pairs of products in 16 bits and may saturate; the accuracy gate of a machine of that kind is what notices.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.cpu_placement import Plan, place
from calibration.cpu_rules import SAFE_MAGNITUDE, verify
from calibration.rounding.equalize import equalized
from calibration.rounding.methods import Calibration
from calibration.rounding.reconstruct import reconstruct
from calibration.rounding.write import written
from calibration.safe_names import name_nodes
from calibration.scheme import Variant, bound, count, finish, zero_channels
from pipeline.errors import QuantizeError
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, QuantizedModel, Ranges
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import onnx

SCHEME = "cpu"
RULES = "U8 activations with zero points, S8 weights per channel, int32 biases, Q/DQ around each operator with an INT8 kernel"


def quantize(
    float_model: Path,
    exported: ExportedModel,
    ranges: Ranges,
    folder: Path,
    search_rows: Batch,
    *,
    calibration: Calibration | None = None,
    classes: bool = True,
    reference: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> QuantizedModel:
    """Write `folder`/model.onnx and quantized.json, whole or not at all: equal inputs give equal bytes.

    Every scale, zero point, weight code and bias of the result is checked against `ranges` and the float weights. With `calibration` a second
    variant has weights and biases fitted on those rows. `search_rows` `{input: (n, ...)}` then measure each variant against the float graph, or
    that of `reference`, both in ONNX Runtime exactly as written, and the better one is written; with `classes` the first output holds class
    scores, so that agreement means something. Raises RangeError for ranges of another model, QuantizeError for everything else, also in a process
    that has imported modelopt's part for ONNX (it patches ONNX Runtime).
    """
    import onnx

    _refuse_modelopt()
    bound(float_model, exported, ranges)
    source = onnx.load(float_model)
    name_nodes(source)
    progress(0, 3, "Q/DQ")
    plan = place(source)
    quantized = _quantized(source, ranges, plan)
    verify(source, quantized, ranges)

    def counted(model: onnx.ModelProto, own: Ranges | None = None) -> Variant:
        placement = count(model, lambda node, _: plan.refused.get(node.name, "it stands in no pattern that the scheme quantizes"))
        return Variant(model, placement, own)

    variants = {"nearest": counted(quantized)}
    if calibration is not None and calibration.methods.any:
        batch, calibration = exported.shapes[str(exported.inputs[0].shape[0])], calibration.without_outliers(ranges)
        equal = equalized(source, exported, ranges, calibration, batch) if calibration.methods.equalization else None
        if equal is not None:
            source, quantized = equal.model, _quantized(equal.model, equal.ranges, plan)
            verify(source, quantized, equal.ranges)
        rounded = reconstruct(source, quantized, calibration, batch, int32_bias=True, progress=progress)
        fitted = written(source, quantized, rounded)
        verify(source, fitted, equal.ranges if equal else ranges, rounded)
        variants["fitted"] = counted(fitted, equal.ranges if equal else None)
    return finish(
        SCHEME, f"onnxruntime {package_version('onnxruntime-gpu')} QDQQuantizer, {RULES}", variants, float_model, exported, ranges,
        folder, search_rows, classes, progress, reference,
    )  # fmt: skip


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
    copy = type(source)()
    copy.CopyFrom(source)
    chosen = set(plan.nodes)
    operators = sorted({node.op_type for node in source.graph.node if node.name in chosen})
    limits = {name: TensorData(lowest=np.float32(entry.low), highest=np.float32(entry.high)) for name, entry in ranges.tensors.items()}
    options = {"OpTypesToExcludeOutputQuantization": ["MatMul"], "TensorQuantOverrides": _overrides(source, plan)}
    with _quiet(logging.getLogger()):
        quantizer = QDQQuantizer(copy, True, False, QuantType.QInt8, QuantType.QUInt8, limits, list(plan.nodes), [], operators, options)
        model = ONNXModel(quantizer.quantize_model())
    _free_outputs(source, model.model)
    model.topological_sort()
    del model.model.graph.value_info[:]
    return model.model


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
