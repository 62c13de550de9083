"""The Q/DQ scheme `tensorrt`: symmetric S8 everywhere, placed by nvidia-modelopt as TensorRT fuses it, with our scales."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import calibration
from calibration.float_layers import NONE, without_quantizers
from calibration.graph import mask_nodes
from calibration.qdq import SCHEME_RULES, activation_scale, describe, high_precision, verify
from calibration.rounding.methods import Calibration
from calibration.rounding.reconstruct import Rounded
from calibration.safe_names import hide, restore
from calibration.scheme import Placement
from calibration.variants import Job, Rules, Variant, variants
from calibration.winner import finish
from pipeline.errors import QuantizeError, disk_error
from pipeline.padding import fit
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, QuantizedModel, Ranges
from pipeline.side_files import MAX_INSIDE, save_model
from pipeline.tensors import Batch
from pipeline.weights import folder_of, lean

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
    float_layers: Mapping[str, str] = NONE,
    classes: bool = True,
    reference: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    limit: int = MAX_INSIDE,
) -> QuantizedModel:
    """Write `folder`/model.onnx and quantized.json, whole or not at all: equal inputs give equal bytes. Weights beyond `limit` go to a side file.

    modelopt decides where Q/DQ stand; each activation scale is absmax / 127 of `ranges`, and that is verified on the
    result, with zero points, finiteness and counts. With `calibration` a second variant has weights, as int8 codes, and biases fitted
    on those rows. `float_layers` `{node: reason}` stay in float. `search_rows` `{input: (n, ...)}` then measure each variant against the float
    graph (or that of `reference`), both in ONNX Runtime as written (its optimizer can break valid Q/DQ; what is deployed is judged later, in its
    own runtime), and the better one is written. `classes`: the first output holds class scores, so that agreement means something.
    Raises RangeError for ranges of another model, QuantizeError for everything else.
    """
    job = Job(float_model, exported, ranges, search_rows, calibration, limit, reference)
    return finish(RULES, job, variants(RULES, job, float_layers, progress), folder, classes=classes, progress=progress)


def quantizer(ranges: Ranges) -> str:
    """Tool, version and rules in words."""
    return f"nvidia-modelopt {package_version('nvidia-modelopt')}, {SCHEME_RULES}, {high_precision(ranges)}"


def placed(source: onnx.ModelProto, job: Job, ranges: Ranges, float_layers: Mapping[str, str]) -> onnx.ModelProto:
    """`source` with Q/DQ from `ranges`, weights to the nearest code."""
    return _place(source, job.exported, ranges, job.rows, float_layers, job.limit)


def checked(
    source: onnx.ModelProto, model: onnx.ModelProto, job: Job, ranges: Ranges, rounded: Mapping[str, Rounded], float_layers: Mapping[str, str]
) -> Placement:
    """Where Q/DQ stand; raises QuantizeError for a graph that is not what `qdq.verify` wants."""
    placement = describe(source, model, job.exported, float_layers)
    verify(model, ranges, placement, source if rounded else None, rounded)
    return placement


def sketched(variant: Variant, job: Job, float_layers: Mapping[str, str]) -> onnx.ModelProto:  # noqa: ARG001
    """`variant` with further layers in float: Q/DQ stand in front of operators only, so no placement anew."""
    return without_quantizers(variant.model, variant.source, float_layers)


def rescaled(model: onnx.ModelProto, source: onnx.ModelProto, job: Job, ranges: Ranges, float_layers: Mapping[str, str]) -> onnx.ModelProto:  # noqa: ARG001
    """`model` with the scales that other ranges give its activations: where Q/DQ stand does not depend on them."""
    import onnx

    copy = type(model)()
    copy.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    readers = {name: node for node in copy.graph.node if node.op_type == "DequantizeLinear" for name in node.input[:1]}
    for node in copy.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in ranges.tensors:
            scale = np.float32(activation_scale(ranges.tensors[node.input[0]]))
            for name in {node.input[1], readers[node.output[0]].input[1]}:
                constants[name].CopyFrom(onnx.numpy_helper.from_array(np.array(scale), name))
    return copy


RULES = Rules(SCHEME, int32_bias=False, placed=placed, checked=checked, sketched=sketched, rescaled=rescaled, quantizer=quantizer)


def _place(
    source: onnx.ModelProto, exported: ExportedModel, ranges: Ranges, rows: Batch, float_layers: Collection[str], limit: int
) -> onnx.ModelProto:
    """Run modelopt in a child process on a copy with names that its parsers cannot misread, and give the real names back."""
    import onnx

    hidden, names = hide(source)
    typical = {name: axis.opt for name, axis in exported.shapes.items()}
    batch = {names.tensors[name]: array for name, array in fit(rows, exported.inputs, typical).items()}
    with tempfile.TemporaryDirectory(prefix="qwarm-modelopt-") as workplace:
        work = Path(workplace)
        files = {"model": "in.onnx", "cache": "ranges.cache", "batch": "batch.npz", "output": "out.onnx"}
        job: dict[str, Any] = {key: str(work / name) for key, name in files.items()}
        job["exclude"] = [names.nodes[name] for name in (*mask_nodes(source), *float_layers)]
        scales = {names.tensors[name]: activation_scale(entry) for name, entry in ranges.tensors.items() if name in names.tensors}
        try:
            save_model(hidden, Path(job["model"]), limit)
            job["side_files"] = len(list(work.iterdir())) > 1
            write_cache(Path(job["cache"]), scales)
            np.savez(job["batch"], **batch)  # type: ignore[arg-type]
            (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
        except OSError as error:
            raise disk_error(error, work) from error
        _run_child(work)
        quantized = _tied(restore(onnx.load(job["output"]), names), {tensor.name for tensor in source.graph.initializer})
        folder = folder_of(source)
        return quantized if folder is None else lean(quantized, folder)


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
    if done.returncode == -signal.SIGKILL:
        raise QuantizeError(
            "modelopt was killed, as happens when memory runs out",
            where="scheme tensorrt",
            expected="memory for several copies of the model",
            got="signal 9",
            next="quantize on a machine with more memory, or take `--scheme cpu`, which holds a layer at a time",
        )
    if done.returncode != 0 or not (work / "out.onnx").is_file():
        raise QuantizeError(
            "modelopt could not quantize the model",
            where="scheme tensorrt",
            expected="a Q/DQ model",
            got=f"exit {done.returncode}: " + " | ".join(done.stderr.strip().splitlines()[-5:])[-1500:],
            next="try the export without the operator that is named, or report it with the model",
        )
