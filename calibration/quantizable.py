"""Which multiplying nodes of a float model a scheme is sure to leave in float, told before anything is calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from calibration.cpu_placement import place
from calibration.qdq import LEAST_DIMENSION, describe
from pipeline.errors import QuantizeError
from pipeline.macs import MULTIPLYING
from pipeline.records import ExportedModel

if TYPE_CHECKING:
    import onnx

PRODUCTS = frozenset({"Gemm", "MatMul"})
SURE = ("vector product", f"below {LEAST_DIMENSION}")
"""What modelopt decides by size alone; for convolutions its placement looks at the pattern around them, which only a run of it tells."""


def refusals(model: onnx.ModelProto, scheme: str, exported: ExportedModel) -> dict[str, str]:
    """`{node: reason}` for what `scheme` never quantizes. Node names must be unique (`safe_names.name_nodes`)."""
    if scheme == "cpu":
        return place(model).refused
    left = describe(model, model, exported).float_nodes
    return {node.node: node.reason for node in left if node.operator in PRODUCTS and any(part in node.reason for part in SURE)}


def refuse_unquantizable(model: onnx.ModelProto, scheme: str, exported: ExportedModel) -> None:
    """Raise QuantizeError where the model has nothing to quantize, or the scheme is sure to leave all of it in float, saying why for each node."""
    multiplying = [node for node in model.graph.node if node.op_type in MULTIPLYING]
    refused = refusals(model, scheme, exported)
    if multiplying and any(node.name not in refused for node in multiplying):
        return
    raise QuantizeError(
        "No operator can be quantized",
        where=f"scheme {scheme}",
        expected=f"at least one {', '.join(MULTIPLYING)} with an INT8 kernel",
        got=reasons({node.name: f"({node.op_type}) {refused[node.name]}" for node in multiplying}) or "a model without such an operator",
        next=way_out(scheme),
    )


def reasons(by_node: Mapping[str, str], shown: int = 5) -> str:
    """`node: reason` for the first few."""
    more = f"; and {len(by_node) - shown} more" if len(by_node) > shown else ""
    return "; ".join(f"{name} {reason}" for name, reason in list(by_node.items())[:shown]) + more


def way_out(scheme: str) -> str:
    """What to do with a model of which `scheme` quantizes nothing."""
    other = "cpu" if scheme == "tensorrt" else "tensorrt"
    return f"release this model in float, try `--scheme {other}`, or export it with a dynamic batch and a larger typical size"
