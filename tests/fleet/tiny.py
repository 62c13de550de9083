"""A fixture, not a release: a tiny convolution as a real OpenVINO engine, with hand-made evidence, packed by the real packer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import engines
from pipeline.digests import sha256_bytes, sha256_file
from pipeline.platforms import fingerprint, package_version
from pipeline.records import AxisRange, Check, Engine, Evidence, ExportedModel, Interval, Role, Roles, RowSource, TensorSpec, Verdict
from release import bundle
from warmup.plan import Maker

TARGET = "openvino-cpu"
INPUTS = (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)
OUTPUTS = (TensorSpec("logits", "float32", ("batch", 3)),)
SHAPES = {"batch": AxisRange(1, 2, 4)}
PREPROCESS = '''"""Picture to tensor."""
import dataclasses

import numpy as np


@dataclasses.dataclass
class Scale:
    top: float = 255.0


def prepare(raw):
    picture = np.asarray(raw["picture"])
    if picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8: got {picture.dtype}")
    return {"image": (picture / Scale().top).astype(np.float32)[np.newaxis]}
'''


def write_model(path: Path) -> None:
    """3x3 convolution of 4 channels, ReLU, mean, linear: `image` (batch, 1, 8, 8) to `logits` (batch, 3)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(7)
    weights = {
        "kernel": random.standard_normal((4, 1, 3, 3)).astype(np.float32),
        "matrix": random.standard_normal((4, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["conv"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def evidence(engine: Engine, plan_sha256: str, **changes: Any) -> Evidence:
    """Hand-made: no gate judged this."""
    check = Check("accuracy", Verdict.PASS, 0.001, Interval(-0.002, 0.004, 0.95), 0.01, "max", "fraction", "fixture | by hand", "")
    facts: dict[str, Any] = {
        "target": TARGET,
        "required": True,
        "verdict": Verdict.PASS,
        "ships": True,
        "reason": "a fixture",
        "checks": (check,),
        "figures": {"drop": 0.001},
        "bound_to": {"engine_sha256": engine.digest(), "plan_sha256": plan_sha256},
        "machine": {"cpu_model": "fixture"},
        "measured_at": "2026-11-30T00:00:00+00:00",
    }
    return Evidence(**{**facts, **changes})


def make_parts(folder: Path) -> dict[str, Any]:
    """Everything `bundle.pack` takes, below `folder`: a real engine, plan, rows and recorded outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    write_model(model)
    backend = engines.backend(TARGET)
    platform = fingerprint(TARGET, backend.platform_key(TARGET), backend.unavailable(TARGET))
    engine_folder, warm_folder = folder / "engines" / TARGET / "int8", folder / "warm" / TARGET
    engine = backend.build(model, engine_folder, target=TARGET, precision="int8", inputs=INPUTS, outputs=OUTPUTS, shapes=SHAPES, platform=platform)
    rows = {"image": np.random.default_rng(1).random((5, 1, 8, 8)).astype(np.float32)}
    with engines.open_engine(engine_folder) as session:
        alone = [session.run({"image": rows["image"][index : index + 1]})["logits"] for index in range(5)]
    warm_folder.mkdir(parents=True)
    np.savez(warm_folder / "rows.npz", **rows)
    np.savez(warm_folder / "expected.npz", logits=np.concatenate(alone))
    preprocess = folder / "preprocess.py"
    preprocess.write_text(PREPROCESS)
    plan = Maker(engine, rows, [1, 4], [1, 2], 60.0, sha256_file(preprocess)).ladder(2, "fixture")
    plan.save(warm_folder / "plan.json")
    role = Role("main", ("0",), (sha256_bytes(b"0"),), sha256_bytes(b"root"), {"a": 1}, sha256_bytes(b"labels"), ())
    sources = {"main": RowSource("fixture", sha256_bytes(b""), 5)}
    roles = Roles(sources, sha256_file(preprocess), 0, ("cat", "dog", "eel"), (), {}, (), {"warmup": role, "validation": role})
    exported = ExportedModel(
        sha256_file(model), sha256_bytes(b""), "fixture", "onnx.helper", 17, INPUTS, OUTPUTS, SHAPES, (), 2316, {"Conv": 1, "MatMul": 1}
    )
    return {
        "name": "tiny",
        "version": "0.0.1",
        "evidences": [evidence(engine, plan.digest())],
        "engines": {TARGET: engine_folder},
        "warm": {TARGET: warm_folder},
        "exported": exported,
        "roles": roles,
        "preprocess": (preprocess, "prepare"),
        "host_packages": {"numpy": package_version("numpy"), "openvino": package_version("openvino")},
        "provenance": {"code": "fixture"},
    }


def pack(parts: dict[str, Any], releases: Path, **changes: Any) -> Path:
    """The real packer on `parts`, some of them changed."""
    return bundle.pack(releases, **{**parts, **changes})
