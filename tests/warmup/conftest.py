"""One real engine, its warm-up rows, and a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engines
from pipeline.loading import load_object
from pipeline.platforms import fingerprint
from pipeline.records import Engine, WarmupPlan
from pipeline.tensors import Batch
from warmup.plan import Maker

ROOT = Path(__file__).resolve().parents[2]
TARGET = "openvino-cpu"


def tiny(name: str) -> Any:
    """A name of tests/engines/tiny_onnx.py."""
    return load_object(f"tests/engines/tiny_onnx.py:{name}", ROOT)


@dataclasses.dataclass(frozen=True)
class Warmable:
    folder: Path
    engine: Engine
    rows: Batch
    rows_file: Path

    def maker(self, **changes: Any) -> Maker:
        made: dict[str, Any] = {"batches": [1, 4, 8], "concurrency": [1, 2], "max_seconds": 60.0, "preprocess_sha256": "0" * 64}
        return Maker(self.engine, self.rows, **{**made, **changes})

    def plan(self, iterations: int = 2, **changes: Any) -> WarmupPlan:
        return self.maker(**changes).ladder(iterations, "a test")


def build(model: Path, folder: Path, precision: str) -> Engine:
    backend = engines.backend(TARGET)
    if reason := backend.unavailable(TARGET):
        pytest.skip(f"{TARGET}: {reason}")
    platform = fingerprint(TARGET, backend.platform_key(TARGET), None)
    declared = {"inputs": tiny("INPUTS"), "outputs": tiny("OUTPUTS"), "shapes": tiny("SHAPES"), "platform": platform}
    return backend.build(model, folder, target=TARGET, precision=precision, **declared)


@pytest.fixture(scope="session")
def warmable(tmp_path_factory: pytest.TempPathFactory) -> Warmable:
    root = tmp_path_factory.mktemp("warmable")
    engine = build(tiny("conv_net")(root / "model.onnx", scheme="tensorrt"), root / "engine", "int8")
    rows = tiny("images")(6)
    np.savez(root / "rows.npz", **rows)
    return Warmable(root / "engine", engine, rows, root / "rows.npz")


@pytest.fixture(scope="session")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Warmable:
    """A float engine whose output for row 3 is infinite."""
    root = tmp_path_factory.mktemp("overflowing")
    engine = build(tiny("exp_net")(root / "model.onnx"), root / "engine", "float32")
    rows = tiny("images")(6)
    rows["image"][3] = 1000.0
    np.savez(root / "rows.npz", **rows)
    return Warmable(root / "engine", engine, rows, root / "rows.npz")
