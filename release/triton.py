"""Triton model repositories: one whose Python backend opens this bundle, and one for each of Triton's own backends that can run an engine of it.

https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html. A server loads every model of a
repository, so that each backend has one of its own: `tritonserver --model-repository=BUNDLE/triton/python`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import ConfigError
from pipeline.records import AxisRange, ExportedModel, TensorSpec, WarmupPlan
from pipeline.tensors import Batch
from release import pbtxt
from release.pbtxt import Name
from warmup.plan import batch_axis

MODEL = Path(__file__).with_name("triton_model.py.in")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
TYPES = {
    "float32": "TYPE_FP32", "int32": "TYPE_INT32", "int64": "TYPE_INT64", "uint8": "TYPE_UINT8", "int8": "TYPE_INT8", "bool": "TYPE_BOOL",
}  # fmt: skip
BACKENDS = {
    "onnxruntime-cpu": ("onnxruntime", "onnxruntime", "model.onnx"),
    "openvino-cpu": ("openvino", "openvino", "model.onnx"),
    "tensorrt": ("tensorrt", "tensorrt", "model.plan"),
}
"""By target: the repository's folder, Triton's backend, and what that backend reads. Triton has none for TensorRT-RTX."""


def python_repository(name: str, exported: ExportedModel, plan: WarmupPlan, rows: Batch) -> dict[str, bytes | Path]:
    """Files of the repository whose model opens the bundle: it verifies, loads and warms before Triton calls it ready.

    `rows` are the plan's, `{input: (N, ...)}`. Raises ConfigError for a name that Triton cannot take.
    """
    files, warmup = _warmup(name, exported, plan, rows)
    config = _config(name, "python", exported, kind="KIND_CPU", count=1, warmup=warmup)
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.py": MODEL.read_bytes(), **files}


def native_repository(
    name: str, target: str, exported: ExportedModel, plan: WarmupPlan, rows: Batch, content: Mapping[str, Path]
) -> dict[str, bytes | Path]:
    """Files of the repository for Triton's own backend of `target`; `content`: the model's files by name, the first of which the backend opens.

    Triton warms it with `model_warmup` alone: the same rows and sizes, not the plan's threads and iterations.
    """
    _, backend, file = BACKENDS[target]
    files, warmup = _warmup(name, exported, plan, rows)
    kind = "KIND_GPU" if backend == "tensorrt" else "KIND_CPU"
    config = _config(name, backend, exported, kind=kind, count=plan.concurrency, warmup=warmup)
    names = list(content)
    placed: dict[str, bytes | Path] = {f"{name}/1/{file if each == names[0] else each}": content[each] for each in names}
    return {f"{name}/config.pbtxt": config, **placed, **files}


def _config(name: str, backend: str, exported: ExportedModel, *, kind: str, count: int, warmup: list[dict[str, object]]) -> bytes:
    if not NAME.fullmatch(name) or ".." in name:
        raise ConfigError("Triton cannot have this model name", where="release.name", expected=NAME.pattern, got=repr(name))
    return pbtxt.text(
        {
            "name": name,
            "backend": backend,
            "max_batch_size": exported.shapes[batch_axis(exported.inputs)].max,
            "input": [_tensor(spec) for spec in exported.inputs],
            "output": [_tensor(spec) for spec in exported.outputs],
            "version_policy": {"specific": {"versions": [1]}},
            "instance_group": [{"kind": Name(kind), "count": count}],
            "dynamic_batching": {"max_queue_delay_microseconds": 0} if backend != "python" else None,
            "model_warmup": warmup,
        }
    ).encode()


def _tensor(spec: TensorSpec) -> dict[str, object]:
    """Without the batch axis, which `max_batch_size` stands for; a named axis is -1."""
    return {"name": spec.name, "data_type": Name(TYPES[spec.dtype]), "dims": [axis if isinstance(axis, int) else -1 for axis in spec.shape[1:]]}


def _warmup(name: str, exported: ExportedModel, plan: WarmupPlan, rows: Batch) -> tuple[dict[str, bytes | Path], list[dict[str, object]]]:
    """One sample a warmed batch size, with the first real row; Triton repeats a file's row over the batch."""
    files: dict[str, bytes | Path] = {}
    axis = batch_axis(exported.inputs)
    first: dict[str, np.ndarray] = {}
    for spec in exported.inputs:
        first[spec.name] = _fitted(rows[spec.name][0], spec, exported.shapes)
        files[f"{name}/warmup/{spec.name}"] = np.ascontiguousarray(first[spec.name]).tobytes()
    samples: list[dict[str, object]] = []
    for size in plan.ladder[axis]:
        inputs = [
            {
                "key": spec.name,
                "value": {"data_type": Name(TYPES[spec.dtype]), "dims": list(first[spec.name].shape), "input_data_file": spec.name},
            }
            for spec in exported.inputs
        ]
        samples.append({"name": f"{axis} {size}", "batch_size": size, "inputs": inputs})
    return files, samples


def _fitted(row: np.ndarray, spec: TensorSpec, shapes: Mapping[str, AxisRange]) -> np.ndarray:
    """The row with its named axes at their usual size, padded or cut at the end; without a pad value as it is."""
    if spec.pad is None:
        return row
    sizes = [axis if isinstance(axis, int) else shapes[axis].opt for axis in spec.shape[1:]]
    cut = row[tuple(slice(0, size) for size in sizes)]
    missing = [(0, size - have) for size, have in zip(sizes, cut.shape, strict=True)]
    return np.pad(cut, missing, constant_values=row.dtype.type(spec.pad))
