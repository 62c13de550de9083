"""Which kernel ONNX Runtime really ran for each multiplying node: read from its profiler, under the names that its optimizer gave."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import census as executed
from pipeline.records import Census
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np

INT8_KERNELS = frozenset(
    {"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"}
)
FLOAT_KERNELS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "GemmFloat8", "MatMul", "MatMulNBits",
     "MultiHeadAttention", "NhwcFusedConv", "SparseToDenseMatMul"}
)  # fmt: skip
CONVERTING_KERNELS = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear", "ReorderInput", "ReorderOutput"})
PRECISION_NAMES = {"float": "FP32", "float16": "FP16", "bfloat16": "BF16", "double": "FP64"}
ADDED = (re.compile(r"(_token_\d+|_nchwc|_nhwc|_quant)$"), re.compile(r"/[^/]*$"))
"""What graph optimizations append to a node's name; the second only where the first is not there."""


def take_census(
    opened: Callable[[Any], Any], options: Any, content: bytes, batch: Batch, outputs: list[str], sizes: dict[str, int]
) -> tuple[Census, dict[str, np.ndarray]]:
    """Run the session that `opened(options)` gives once under the runtime's profiler: which kernel ran for each multiplying node of the ONNX model
    `content`, and the outputs `{name: array}`."""
    import onnx

    model = onnx.load_from_string(content)
    with tempfile.TemporaryDirectory(prefix="qwarm-profile-") as scratch:
        options.enable_profiling = True
        options.profile_file_prefix = f"{scratch}/run"
        session = opened(options)
        got = dict(zip(outputs, session.run(outputs, dict(batch)), strict=True))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    names = {node.name for node in model.graph.node} | {output for node in model.graph.node for output in node.output}
    layers, conversions = [], Counter[str]()
    for event in events:
        name, operator = str(event.get("name", "")), str(event.get("args", {}).get("op_name", ""))
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        if operator in CONVERTING_KERNELS:
            conversions[operator] += 1
        if operator in INT8_KERNELS | FLOAT_KERNELS:
            types = [kind for shaped in event["args"]["input_type_shape"] for kind in shaped]
            layers.append(executed.RuntimeLayer(operator, _precision(operator, types), (original(name.removesuffix("_kernel_time"), names),)))
    return executed.take(model, sizes, layers, conversions), got


def _precision(operator: str, types: list[str]) -> str:
    """From the kernel and the type of its first input; an integer kernel that is fed float is not INT8."""
    first = types[0] if types else "unknown"
    if operator in INT8_KERNELS:
        return executed.INT8 if first in {"uint8", "int8"} else first.upper()
    return PRECISION_NAMES.get(first, first.upper())


def original(name: str, known: Collection[str]) -> str:
    """The model's node (or output) that a node of the optimized graph was made from: `conv_token_3` to `conv`; unchanged when there is none."""
    shorter = name
    while shorter not in known:
        cut = next((cut for pattern in ADDED if (cut := pattern.sub("", shorter)) != shorter), None)
        if cut is None:
            return name
        shorter = cut
    return shorter
