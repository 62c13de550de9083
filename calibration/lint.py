"""Is a Q/DQ model legal for its scheme, finite, and quantized at all? Read off the graph alone; what really runs in INT8 only a runtime can say.

The rules for `tensorrt` are those of TensorRT's ONNX parser (tried on TensorRT-RTX 1.7, which needs no GPU to parse) and of NVIDIA's "Working
with quantized types": symmetric INT8, constant positive scales, one scale a tensor for activations, float biases. The rules for `cpu` are
those of the INT8 kernels of ONNX Runtime and oneDNN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from calibration.lint_rules import ERROR, WARNING, Finding, of_constants, of_node
from calibration.lint_view import View
from calibration.onnx_model import Described, as_exported
from calibration.quantizable import reasons, refusals
from calibration.safe_names import name_nodes
from calibration.scheme import Placement, count
from pipeline.records import ExportedModel
from pipeline.side_files import light
from pipeline.tensors import AxisRange
from pipeline.weights import HELD, bytes_of, declared

if TYPE_CHECKING:
    import onnx

SCHEMES = ("tensorrt", "cpu")


def lint(model: onnx.ModelProto, scheme: str, found: Described, shapes: Mapping[str, AxisRange]) -> tuple[tuple[Finding, ...], Placement]:
    """Every finding for `scheme`, errors first, each in graph order; and which multiplying nodes stand between Q/DQ.

    `model` has its weights inside; `found` and `shapes` are what `describe` and `axis_ranges` gave for it. Of the Q/DQ of a model that ONNX
    itself calls invalid nothing more is said.
    """
    view = View(model)
    invalid = _valid(model, view)
    findings = invalid or [finding for node in view.nodes for finding in of_node(view, node, scheme)]
    findings += of_constants(view)
    placement = _placement(model, scheme, None if invalid else _as_exported(model, found, shapes))
    if not placement.quantized_nodes:
        findings.append(_nothing(placement))
    what, expected = "A node is quantized by half, so it runs in float", "both factors or none"
    halves = [node for node in placement.float_nodes if node.reason.startswith("only")]
    findings += [Finding("half-quantized", WARNING, f"{node.node} ({node.operator})", (), what, expected, node.reason) for node in halves]
    return tuple(sorted(findings, key=lambda finding: finding.severity != ERROR)), placement


def _valid(model: onnx.ModelProto, view: View) -> list[Finding]:
    import onnx

    try:
        onnx.checker.check_model(declared(model) if bytes_of(model) > HELD else model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        said = " ".join(str(error).split())
        node = next((view.name(node) for node in view.nodes if node.name and f"{node.name}" in said), "graph")
        return [Finding("invalid", ERROR, node, (), "The model is not valid ONNX", "a model that onnx.checker accepts", said[:600])]
    return []


def _as_exported(model: onnx.ModelProto, found: Described, shapes: Mapping[str, AxisRange]) -> ExportedModel | None:
    """What a quantizer would be told of the model; None where it has no rows, because its inputs share no first axis."""
    return as_exported(model, "", found, shapes) if found.batch_axis is not None else None


def _placement(model: onnx.ModelProto, scheme: str, exported: ExportedModel | None) -> Placement:
    """Which multiplying nodes are between Q/DQ, and of the others why the scheme's quantizer would not take them, where that is known."""
    copy = light(model)
    name_nodes(copy)
    known = refusals(copy, scheme, exported) if exported is not None else {}

    def reason(node: onnx.NodeProto, covered: list[bool]) -> str:
        if any(covered):
            return f"only its {'first' if covered[0] else 'second'} factor is dequantized"
        return known.get(node.name, "no DequantizeLinear stands in front of it: it was not quantized")

    return count(copy, reason)


def _nothing(placement: Placement) -> Finding:
    float_nodes = {node.node: f"({node.operator}): {node.reason}" for node in placement.float_nodes}
    got = f"{placement.quantize_linear} QuantizeLinear, {placement.dequantize_linear} DequantizeLinear; " + (
        reasons(float_nodes) or "a model without Conv, ConvTranspose, Gemm or MatMul"
    )
    where = f"{placement.float_nodes[0].node} ({placement.float_nodes[0].operator})" if placement.float_nodes else "graph"
    return Finding(
        "nothing-quantized", ERROR, where, (), "No operator is quantized", "at least one Conv, ConvTranspose, Gemm or MatMul between Q/DQ", got
    )
