"""Every attribute that our code uses on an object of TensorRT exists in the real bindings of 10.13, 10.16 and 11.4, and of TensorRT-RTX.

The bindings are the published wheels, loaded over stub libraries that a C compiler makes here (doubles for TensorRT itself, which needs a GPU); they
are fetched once with pip. What is used is read from the source of `engines/trt*.py`, where a variable's name says what it holds.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engines import trt
from pipeline.caches import cache_folder

ROOT = Path(__file__).resolve().parents[2]
WHEELS = {
    "10.13": ("tensorrt-cu12-bindings", "10.13.3.9.post1"),
    "10.16": ("tensorrt-cu13-bindings", "10.16.1.11"),
    "11.4": ("tensorrt-cu13-bindings", "11.4.0.106"),
}
CLASSES = {
    "builder": "Builder", "network": "INetworkDefinition", "parser": "OnnxParser", "config": "IBuilderConfig", "profile": "IOptimizationProfile",
    "timing": "ITimingCache", "problem": "ParserError", "registry": "IPluginRegistry", "runtime": "Runtime", "cuda_engine": "ICudaEngine",
    "context": "IExecutionContext", "inspector": "EngineInspector", "runtime_config": "IRuntimeConfig", "runtime_cache": "IRuntimeCache",
}  # fmt: skip
"""What a variable (or an attribute of that name, with or without an underscore) holds, in `engines/trt*.py`."""
RTX_ONLY = {
    ("IBuilderConfig", "num_compute_capabilities"), ("IBuilderConfig", "set_compute_capability"), ("", "ComputeCapability"),
    ("ComputeCapability", "__members__"), ("", "DynamicShapesKernelSpecializationStrategy"), ("DynamicShapesKernelSpecializationStrategy", "EAGER"),
    ("IRuntimeConfig", "dynamic_shapes_kernel_specialization_strategy"), ("IRuntimeConfig", "create_runtime_cache"),
    ("IRuntimeConfig", "set_runtime_cache"), ("IRuntimeCache", "deserialize"), ("IRuntimeCache", "serialize"), ("IRuntimeCache", "reset"),
}  # fmt: skip
NAMED = {("HardwareCompatibilityLevel", name) for name in ("NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY")}
"""Members that are looked up by a name from params.yaml."""
STUB = "".join(
    f"void *{name}(void) {{ return 0; }}\n"
    for name in (
        "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL", "createNvOnnxParserRefitter_INTERNAL",
        "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry", "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
    )
)  # fmt: skip
DUMP = """
import importlib, json, sys
library = importlib.import_module(sys.argv[1])
print(json.dumps({"": dir(library)} | {name: dir(getattr(library, name)) for name in dir(library)}))
"""


def used() -> set[tuple[str, str]]:
    """(class, attribute), class "" for the library itself; `flags.X` and the like are members of the enum that the variable was set to."""
    found: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "engines").glob("trt*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        aliases = {
            node.targets[0].id: node.value.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _name(getattr(node.value, "value", None)) == "library"
            and isinstance(node.value, ast.Attribute)
        }  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            holder = _name(node.value)
            if holder == "library":
                found.add(("", node.attr))
            elif isinstance(node.value, ast.Attribute) and _name(node.value.value) == "library":
                found.add((node.value.attr, node.attr))
            elif holder in aliases:
                found.add((aliases[holder], node.attr))
            elif holder in CLASSES:
                found.add((CLASSES[holder], node.attr))
    return found


def _name(node: ast.AST | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr.lstrip("_") if isinstance(node, ast.Attribute) else ""


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stub libraries")
    folder = tmp_path_factory.mktemp("stubs")
    for major in (10, 11):
        for library in ("nvinfer", "nvonnxparser", "nvinfer_plugin"):
            target = folder / f"lib{library}.so.{major}"
            subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), "-xc", "-"], input=STUB, text=True, check=True)
    return folder


def wheel(name: str, version: str) -> Path:
    """The unpacked wheel, fetched once; the test is skipped where no package registry has it for this Python."""
    folder = cache_folder("wheels") / f"{name}-{version}"
    if not folder.is_dir():
        fetched = folder.with_name(f".{folder.name}.{os.getpid()}")
        options = ["-q", "--no-deps", "--timeout", "20", "--retries", "1"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(fetched), f"{name}=={version}"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            pytest.skip(f"pip finds no {name} {version} for this machine: {ran.stderr.strip()[-200:]}")
        with zipfile.ZipFile(next(fetched.glob("*.whl"))) as archive:
            archive.extractall(fetched / "site")
        (fetched / "site").rename(folder)
        shutil.rmtree(fetched)
    return folder


def attributes(module: str, path: Path, stubs: Path | None = None) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(path), "LD_LIBRARY_PATH": str(stubs or "")}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", DUMP, module], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, list[str]] = json.loads(ran.stdout)
    return found


def missing(wanted: set[tuple[str, str]], found: dict[str, list[str]]) -> list[str]:
    return sorted(f"{kind}.{name}".lstrip(".") for kind, name in wanted if name not in found.get(kind, ()))


@pytest.mark.parametrize("version", WHEELS)
def test_all_that_is_used_exists_in_tensorrt(version: str, stubs: Path) -> None:
    found = attributes("tensorrt_bindings", wheel(*WHEELS[version]), stubs)
    assert missing((used() | NAMED) - RTX_ONLY, found) == []
    assert ("EXPLICIT_BATCH" in found["NetworkDefinitionCreationFlag"]) == version.startswith("10.")  # what create_network turns on


def test_all_that_is_used_exists_in_tensorrt_rtx() -> None:
    if reason := trt.unavailable(trt.RTX):
        pytest.skip(reason)
    assert missing(used() | NAMED, attributes("tensorrt_rtx", ROOT)) == []


def test_what_the_code_uses_is_seen() -> None:
    """The reading itself: the parts of the API that only hardware would exercise are among what is held to the bindings."""
    seen = used()
    assert {
        ("ICudaEngine", "create_engine_inspector"), ("IExecutionContext", "execute_async_v3"), ("IExecutionContext", "infer_shapes"),
        ("IBuilderConfig", "set_timing_cache"), ("ITimingCache", "combine"), ("BuilderFlag", "ERROR_ON_TIMING_CACHE_MISS"), ("", "IProgressMonitor"),
        ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"), ("IPluginRegistry", "load_library"), ("DeviceType", "DLA"),
    } <= seen  # fmt: skip
    assert seen >= RTX_ONLY
    assert missing({("Builder", "no_such_method")}, {"Builder": ["create_network"]}) == ["Builder.no_such_method"]
