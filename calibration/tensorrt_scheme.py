"""The Q/DQ scheme `tensorrt`: symmetric S8 everywhere, placed by nvidia-modelopt as TensorRT fuses it, with our scales."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import calibration
from calibration.graph import mask_nodes
from calibration.qdq import SCHEME_RULES, activation_scale, describe, high_precision, verify
from calibration.rounding.equalize import equalized
from calibration.rounding.methods import Calibration
from calibration.rounding.reconstruct import reconstruct
from calibration.rounding.write import written
from calibration.safe_names import hide, name_nodes, restore
from calibration.scheme import Variant, bound, finish
from pipeline.errors import QuantizeError, disk_error
from pipeline.padding import fit
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, QuantizedModel, Ranges
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import onnx

SCHEME = "tensorrt"
MAX_SECONDS = 3600
LEAST_TIED_BYTES = 64
"""Smaller constants (scales, shapes) may be equal by chance, and cost nothing."""
CACHE_HEADER = "TRT-8501-MinMaxCalibration\n"


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

    modelopt decides where Q/DQ stand; each activation scale is absmax / 127 of `ranges`, and that is verified on the
    result, with zero points, finiteness and counts. With `calibration` a second variant has weights, as int8 codes, and biases fitted
    on those rows. `search_rows` `{input: (n, ...)}` then measure each variant against the float graph, or that of `reference`, both in ONNX
    Runtime exactly as written (its optimizer can break a valid Q/DQ model; what is deployed is judged later, in its own runtime), and the better
    one is written. `classes`: the first output holds class scores, so that agreement means something.
    Raises RangeError for ranges of another model, QuantizeError for everything else.
    """
    import onnx

    bound(float_model, exported, ranges)
    source = onnx.load(float_model)
    name_nodes(source)
    progress(0, 3, "modelopt")
    quantized = _place(source, exported, ranges, search_rows)
    placement = describe(source, quantized, exported)
    verify(quantized, ranges, placement)
    variants = {"nearest": Variant(quantized, placement)}
    if calibration is not None and calibration.methods.any:
        batch, calibration = exported.shapes[str(exported.inputs[0].shape[0])], calibration.without_outliers(ranges)
        equal = equalized(source, exported, ranges, calibration, batch) if calibration.methods.equalization else None
        if equal is not None:
            source, quantized = equal.model, _place(equal.model, exported, equal.ranges, search_rows)
            verify(quantized, equal.ranges, describe(source, quantized, exported))
        rounded = reconstruct(source, quantized, calibration, batch, int32_bias=False, progress=progress)
        fitted = written(source, quantized, rounded)
        placement = describe(source, fitted, exported)
        verify(fitted, equal.ranges if equal else ranges, placement, source, rounded)
        variants["fitted"] = Variant(fitted, placement, equal.ranges if equal else None)
    return finish(
        SCHEME, f"nvidia-modelopt {package_version('nvidia-modelopt')}, {SCHEME_RULES}, {high_precision(ranges)}", variants, float_model,
        exported, ranges, folder, search_rows, classes, progress, reference,
    )  # fmt: skip


def _place(source: onnx.ModelProto, exported: ExportedModel, ranges: Ranges, rows: Batch) -> onnx.ModelProto:
    """Run modelopt in a child process on a copy with names that its parsers cannot misread, and give the real names back."""
    import onnx

    hidden, names = hide(source)
    typical = {name: axis.opt for name, axis in exported.shapes.items()}
    batch = {names.tensors[name]: array for name, array in fit(rows, exported.inputs, typical).items()}
    with tempfile.TemporaryDirectory(prefix="qwarm-modelopt-") as workplace:
        work = Path(workplace)
        files = {"model": "in.onnx", "cache": "ranges.cache", "batch": "batch.npz", "output": "out.onnx"}
        job: dict[str, Any] = {key: str(work / name) for key, name in files.items()}
        job["exclude"] = [names.nodes[name] for name in mask_nodes(source)]
        scales = {names.tensors[name]: activation_scale(entry) for name, entry in ranges.tensors.items() if name in names.tensors}
        try:
            Path(job["model"]).write_bytes(hidden.SerializeToString())
            write_cache(Path(job["cache"]), scales)
            np.savez(job["batch"], **batch)  # type: ignore[arg-type]
            (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
        except OSError as error:
            raise disk_error(error, work) from error
        _run_child(work)
        return _tied(restore(onnx.load(job["output"]), names), {tensor.name for tensor in source.graph.initializer})


def _tied(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Tie weights again that modelopt has copied for each of their readers, under their own name of `names` where they still have it."""
    kept: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    instead: dict[str, str] = {}
    tensors = sorted(model.graph.initializer, key=lambda tensor: (tensor.name not in names, tensor.name))
    for tensor in tensors:
        if len(tensor.raw_data) >= LEAST_TIED_BYTES:
            key = (tensor.data_type, tuple(tensor.dims), bytes(tensor.raw_data))
            instead[tensor.name] = kept.setdefault(key, tensor.name)
    for node in model.graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
    for tensor in tensors:
        if instead.get(tensor.name, tensor.name) != tensor.name:
            model.graph.initializer.remove(tensor)
    return model


def write_cache(path: Path, scales: Mapping[str, float]) -> None:
    """Scales by tensor as a TensorRT calibration cache: `name: hex of the big-endian float32`, one a line under a header."""
    lines = [f"{name}: {struct.pack('!f', scale).hex()}\n" for name, scale in sorted(scales.items())]
    path.write_text(CACHE_HEADER + "".join(lines), encoding="utf-8")


def _run_child(work: Path) -> None:
    home = str(Path(str(calibration.__file__)).resolve().parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, "TMPDIR": str(work)}
    command = [sys.executable, "-m", "calibration.modelopt_child", str(work / "job.json")]
    try:
        done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise QuantizeError("modelopt did not finish", where=" ".join(command[1:]), expected=f"an end within {MAX_SECONDS} s") from error
    if done.returncode != 0 or not (work / "out.onnx").is_file():
        raise QuantizeError(
            "modelopt could not quantize the model",
            where="scheme tensorrt",
            expected="a Q/DQ model",
            got=f"exit {done.returncode}: " + " | ".join(done.stderr.strip().splitlines()[-5:])[-1500:],
            next="try the export without the operator that is named, or report it with the model",
        )
