"""OpenVINO as an engine imports it: without its converter, which is still there for who asks. In a process of its own, for an import happens once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[2]
FIRST = """
import sys
from engines.ov_import import CONVERTER, openvino_module
openvino = openvino_module()
assert CONVERTER not in sys.modules
print(openvino.convert_model(sys.argv[1]).inputs[0].get_any_name())
import openvino.tools.ovc
assert sys.modules[CONVERTER] is openvino.tools.ovc
"""
LATER = """
import sys
import openvino
own = openvino.convert_model
from engines.ov_import import CONVERTER, openvino_module
assert openvino_module() is openvino and openvino.convert_model is own and sys.modules[CONVERTER] is not None
print("as it was")
"""


def said(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("\n")[-2]


def test_the_converter_is_imported_when_somebody_asks_for_it(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "tiny.onnx")
    assert said(FIRST, str(tmp_path / "tiny.onnx")) == "x"


def test_an_openvino_that_somebody_has_imported_is_left_alone() -> None:
    assert said(LATER) == "as it was"
