"""What a model's rows may see of their neighbours: nothing, but for a code that float sums in another order move by one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibration.dynamic import follow_batch
from calibration.onnx_model import axis_ranges, describe
from pipeline.errors import ModelError
from pipeline.tensors import AxisRange

WIDTH = 64


def leaking(share: float, *, rounds: bool) -> onnx.ModelProto:
    """y = x + `share` of the batch's mean, behind Q/DQ with a step of 0.01 or not."""
    stored = {"share": np.float32(share), "scale": np.float32(0.01), "zero": np.int8(0)}
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Mul", ["mean", "share"], ["part"]),
        helper.make_node("Add", ["x", "part"], ["sum" if rounds else "y"]),
    ]
    if rounds:
        nodes += [
            helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["codes"]),
            helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"]),
        ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def follow(model: onnx.ModelProto) -> float:
    """The largest relative difference of a row alone and in a batch."""
    found = describe(model)
    rows = np.tile(np.linspace(-1, 1, WIDTH, dtype=np.float32), (4, 1))
    rows[0, :2] = 0.005  # between two codes
    rows[1:] += 0.5
    parity = follow_batch(model, found, axis_ranges(found, {}, batch=AxisRange(1, 2, 4)), {"x": rows})
    return max(figure.max_relative for figure in parity)


def test_a_code_that_moves_by_one_is_no_neighbour_seen() -> None:
    assert 1e-3 < follow(leaking(1e-4, rounds=True)) < 0.02


def test_the_same_in_a_float_graph_is_far_below_its_bound() -> None:
    assert follow(leaking(1e-4, rounds=False)) < 1e-3


@pytest.mark.parametrize("rounds", [True, False])
def test_a_row_that_sees_its_neighbours_is_refused(rounds: bool) -> None:
    with pytest.raises(ModelError, match="one row alone"):
        follow(leaking(0.5, rounds=rounds))
