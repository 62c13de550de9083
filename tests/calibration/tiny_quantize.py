"""ONNX text to a file with its export record, ranges and a quantized folder: no torch in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx

from calibration.ranges import collect
from calibration.rounding.methods import Calibration, Methods
from calibration.runtime import session
from pipeline.digests import sha256_file
from pipeline.records import AxisRange, ExportedModel, QuantizedModel, Ranges, TensorSpec
from pipeline.side_files import MAX_INSIDE, save_model
from pipeline.tensors import Batch

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
EVERY = Methods()
BATCH = AxisRange(1, 4, 8)


def model_of(text: str, weights: dict[str, tuple[int, ...]], seed: int = 0) -> onnx.ModelProto:
    """Random weights, and a bias `_b` to each `_w` that the text names, of values that differ much from channel to channel."""
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    random = np.random.default_rng(seed)
    for name, shape in weights.items():
        spread = np.exp(random.normal(0, 1, (shape[0], *[1] * (len(shape) - 1))))
        value = random.standard_normal(shape) * spread / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
        if (bias := f"{name[:-1]}b") in text and name.endswith("_w"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(0, 0.3, shape[0]).astype(np.float32), bias))
    return model


def run(model: onnx.ModelProto, batch: Batch, *wanted: str) -> list[np.ndarray]:
    """The tensors `wanted` of the graph as it is written."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    have = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted if name not in have)
    found: list[np.ndarray] = session(copy.SerializeToString(), optimize=False).run(list(wanted), dict(batch))
    return found


def calibration_of(rows: Batch, size: int = 16, methods: Methods = EVERY) -> Calibration:
    """All rows, `size` at a time."""
    count = len(next(iter(rows.values())))

    def batches() -> Iterable[Batch]:
        return ({name: array[start : start + size] for name, array in rows.items()} for start in range(0, count, size))

    return Calibration(batches, [str(row) for row in range(count)], methods)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A float model on disk with what a quantizer asks for."""

    path: Path
    exported: ExportedModel
    ranges: Ranges
    rows: Batch

    def quantized(self, quantize: Callable[..., QuantizedModel], folder: Path, search: Batch, methods: Methods | None = EVERY) -> QuantizedModel:
        """`quantize` on it, fitted unless `methods` is None."""
        fitting = None if methods is None else calibration_of(self.rows, methods=methods)
        return quantize(self.path, self.exported, self.ranges, folder, search, calibration=fitting, classes=False)


def prepared(
    folder: Path, model: onnx.ModelProto, rows: Batch, method: str = "max", batch: AxisRange = BATCH, limit: int = MAX_INSIDE
) -> Prepared:  # fmt: skip
    """Write `folder`/model.onnx, weights beyond `limit` beside it, and collect its ranges on `rows`; the first axis of every input is the batch."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    save_model(model, path, limit)
    specs = {}
    for side, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        specs[side] = tuple(
            TensorSpec(
                value.name,
                str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))),
                ("n", *(axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim[1:])),
            )
            for value in values
        )
    exported = ExportedModel(sha256_file(path), "c", "f", "e", 20, specs["inputs"], specs["outputs"], {"n": batch}, (), 1, {})
    count = len(next(iter(rows.values())))
    batches = ({name: array[start : start + 16] for name, array in rows.items()} for start in range(0, count, 16))
    ranges = collect(
        path,
        exported,
        batches,
        [str(row) for row in range(count)],
        calibration_root="r",
        preprocess_sha256="p",
        min_rows=1,
        batch_rows=16,
        method=method,
    )
    return Prepared(path, exported, ranges, rows)
