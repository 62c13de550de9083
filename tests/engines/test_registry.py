from __future__ import annotations

import subprocess
import sys

import pytest

import engines
from pipeline.errors import TargetError


def test_targets_are_found_and_an_unknown_one_names_them():
    assert "openvino-cpu" in engines.targets()
    with pytest.raises(TargetError, match="openvino-cpu"):
        engines.backend("openvino-gpu")


def test_two_files_that_claim_one_target_are_an_error(tmp_path, monkeypatch):
    (tmp_path / "twin.py").write_text('TARGETS = ("openvino-cpu",)\n')
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    engines.backend.cache_clear()
    try:
        with pytest.raises(TargetError, match=r"engines\.ov and engines\.twin"):
            engines.backend("openvino-cpu")
    finally:
        engines.backend.cache_clear()
        sys.modules.pop("engines.twin", None)


def test_importing_engines_loads_no_runtime():
    runtimes = ("openvino", "onnx", "torch", "onnxruntime", "tensorrt_rtx")
    code = f"import sys, engines; engines.targets(); print([name for name in {runtimes} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
