"""Whether an ONNX model of any origin follows the batch axis that it declares: a name in a file proves nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.agree import BOUND_DB
from calibration.graph import nodes_that_fix
from calibration.onnx_model import Described
from calibration.parity import compare, not_followed
from calibration.runtime import run_session, session
from pipeline.errors import ModelError
from pipeline.padding import fit
from pipeline.records import Parity
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

SAME_ROWS = "one row alone -> the same row in a batch"


def follow_batch(model: onnx.ModelProto, found: Described, shapes: Mapping[str, AxisRange], rows: Batch) -> tuple[Parity, ...]:
    """Run the model as written at batches of the smallest size, one more and the largest: outputs follow, and no row sees its neighbours.

    `rows` `{input: (n, ...)}` are cropped or repeated to each size. Nothing is checked where the batch is static. A graph that rounds to codes is
    held to `BOUND_DB` alone: float sums in another order may move a code by one, which is far more than they move. Raises ModelError naming the axis
    and the suspected nodes, or the output that depends on a row's neighbours.
    """
    axis = found.batch_axis
    if not isinstance(axis, str):
        return ()
    allowed = shapes[axis]
    typical = {name: limits.opt for name, limits in shapes.items()}
    suspects = nodes_that_fix(model, axis)
    runtime = session(model, optimize=False)
    rounds = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    bounds = {"max_relative": math.inf, "min_sqnr_db": BOUND_DB} if rounds else {}
    following = [spec.name for spec in found.outputs if spec.shape[:1] == (axis,)]
    measured: list[Parity] = []
    alone: dict[str, np.ndarray] = {}
    for size in sorted({allowed.min, min(allowed.min + 1, allowed.max), allowed.max}):
        sizes = {**typical, axis: size}
        where = f"the model as written, in ONNX Runtime at {sizes}"
        try:
            outputs = run_session(runtime, fit(rows, found.inputs, sizes))
        except ModelError as error:
            raise not_followed(axis, where, error.got, suspects) from error
        for name in following:
            if outputs[name].shape[:1] != (size,):
                raise not_followed(axis, where, f"output {name} has shape {list(outputs[name].shape)}", suspects)
        if alone:
            measured += compare(SAME_ROWS, sizes, alone, {name: outputs[name][: allowed.min] for name in following}, **bounds)
        else:
            alone = {name: outputs[name] for name in following}
    return tuple(measured)
