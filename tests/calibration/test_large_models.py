"""Float and Q/DQ models whose weights lie in side files, from one quantizer to an engine: the same as with all in one file."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import model_of, prepared

import engines
from calibration import cpu_scheme, tensorrt_scheme
from calibration.onnx_model import read_model
from engines.once import build_once
from pipeline.errors import Refused
from pipeline.platforms import fingerprint

LIMIT = 1000
"""Lowered from 2 GiB: the tiny model's weights pass it."""
TEXT = """g (float[n, 16, 8, 8] x) => (float[n, 16, 8, 8] y) {
  [one] a = Conv <pads = [1, 1, 1, 1]> (x, one_w, one_b) [relu] b = Relu(a) [two] y = Conv <pads = [1, 1, 1, 1]> (b, two_w, two_b) }"""
ROWS = {"x": np.random.default_rng(2).standard_normal((32, 16, 8, 8)).astype(np.float32)}
SCHEMES = {"cpu": (cpu_scheme.quantize, "onnxruntime-cpu"), "tensorrt": (tensorrt_scheme.quantize, "tensorrt-rtx")}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_side_files_from_the_float_model_to_the_engine_change_nothing(tmp_path: Path, scheme: str) -> None:
    quantize, target = SCHEMES[scheme]
    model = model_of(TEXT, {"one_w": (16, 16, 3, 3), "two_w": (16, 16, 3, 3)})
    whole, parted = prepared(tmp_path / "whole", model, ROWS), prepared(tmp_path / "parted", model, ROWS, limit=LIMIT)
    whole.quantized(quantize, tmp_path / "one", ROWS)
    record = parted.quantized(functools.partial(quantize, limit=LIMIT), tmp_path / "two", ROWS)
    assert sorted(path.name for path in (tmp_path / "two").iterdir() if "ranges" not in path.name) == [
        "model.onnx",
        "model.onnx.data",
        "quantized.json",
    ]
    wanted, got = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in read_model(tmp_path / name / "model.onnx").graph.initializer}
        for name in ("one", "two")
    )
    assert wanted.keys() == got.keys()
    assert all(np.array_equal(wanted[name], got[name]) for name in wanted)
    backend = engines.backend(target)
    if reason := backend.unavailable(target):
        pytest.skip(f"{target}: {reason}")
    ports = {"inputs": parted.exported.inputs, "outputs": parted.exported.outputs, "shapes": parted.exported.shapes}
    platform = fingerprint(target, backend.platform_key(target), None)
    engine = backend.build(tmp_path / "two" / "model.onnx", tmp_path / "engine", target=target, precision="int8", platform=platform, **ports)
    assert engine.model_sha256 == record.onnx_sha256
    plain = build_once(read_model(tmp_path / "one" / "model.onnx"), target, **ports, folder=tmp_path)
    assert engine.census == plain.census
    side = tmp_path / "two" / "model.onnx.data"
    side.write_bytes(bytes(len(side.read_bytes())))
    with pytest.raises(Refused, match="model.onnx.data"):
        backend.build(tmp_path / "two" / "model.onnx", tmp_path / "other", target=target, precision="int8", platform=platform, **ports)


def test_a_swapped_side_file_of_the_float_model_stops_the_quantizer(tmp_path: Path) -> None:
    parted = prepared(tmp_path / "parted", model_of(TEXT, {"one_w": (16, 16, 3, 3), "two_w": (16, 16, 3, 3)}), ROWS, limit=LIMIT)
    side = parted.path.with_name("model.onnx.data")
    side.write_bytes(side.read_bytes()[::-1])
    with pytest.raises(Refused, match="model.onnx.data"):
        parted.quantized(cpu_scheme.quantize, tmp_path / "quantized", ROWS)
    assert not (tmp_path / "quantized").exists()
