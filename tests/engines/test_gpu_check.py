"""`make gpu-check` before the day that a GPU is there: its network builds for TensorRT-RTX, and the script runs to its table on a CPU target."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import engines
from cli.build import build_file
from pipeline.records import AxisRange

ROOT = Path(__file__).resolve().parents[2]
RTX = "tensorrt-rtx"


@pytest.mark.parametrize("precision", ["int8", "float16", "float32"])
def test_the_network_is_one_that_tensorrt_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    if reason := engines.backend(RTX).unavailable(RTX):
        pytest.skip(reason)
    monkeypatch.syspath_prepend(str(ROOT))
    networks = importlib.import_module("benchmarks.networks")
    stages = tuple((width // 8, 1) for width, _ in networks.STAGES)
    model = networks.resnet50(tmp_path / "model.onnx", precision, side=64, stages=stages)
    settings = {"compute_capabilities": ["SM89"]}
    report = build_file(model, RTX, tmp_path / "engine", batch=AxisRange(1, 1, 8), settings=settings, store=None)
    assert report["precision"] == ("int8" if precision == "int8" else "float32")


def test_the_script_builds_runs_counts_and_times(tmp_path: Path) -> None:
    target = next(target for target in ("openvino-cpu", "onnxruntime-cpu") if not engines.backend(target).unrunnable(target))
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(ROOT / "benchmarks/gpu_check.py"), "--small", "--targets", target, "tensorrt", "--json", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(out.read_text())
    assert {row["precision"] for row in found["rows"] if row["target"] == target} == {"int8", "float16", "float32"}
    assert all(row["p50_ms"] > 0 and row["first_ms"] > 0 for row in found["rows"])
    if reason := engines.backend("tensorrt").unrunnable("tensorrt"):
        assert found["absent"]["tensorrt"] == reason
        assert reason in ran.stdout


def test_without_any_target_it_says_what_is_missing() -> None:
    absent = [target for target in engines.targets() if engines.backend(target).unrunnable(target)]
    if not absent:
        pytest.skip("every target runs here")
    ran = subprocess.run([sys.executable, str(ROOT / "benchmarks/gpu_check.py"), "--targets", *absent], capture_output=True, text=True, check=False)
    assert ran.returncode == 4
    assert all(f"{target}: not here, " in ran.stdout for target in absent)
