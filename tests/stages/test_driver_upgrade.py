"""What a driver upgrade rebuilds and re-measures, and what it leaves alone: by real `dvc repro` on the entries of dvc.yaml itself.

The GPU, its driver and TensorRT are doubles: a `sitecustomize` reads the GPU from a probe file, and writes for a plan only what it is for. OpenVINO
and TensorRT-RTX are the real ones.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import engines
from pipeline.digests import sha256_file
from pipeline.records import ExportedModel, QuantizedModel

ROOT = Path(__file__).resolve().parents[2]
OPENVINO, RTX, TENSORRT = "openvino-cpu", "tensorrt-rtx", "tensorrt"
DOUBLES = """
import json, os, pathlib
import pipeline.gpus
from pipeline.gpus import Gpu
probe = pathlib.Path(os.environ["PROBE"])
pipeline.gpus.first_gpu = lambda: Gpu(**json.loads(probe.read_text()))
from engines import trt
from engines.building import record, start
from pipeline.files import replacing_folder
real = {name: getattr(trt, name) for name in ("unavailable", "build")}
trt.unavailable = lambda target: None if target == "tensorrt" else real["unavailable"](target)
trt.unrunnable = lambda target: "the GPU is a double"

def build(model, folder, *, target, **given):
    if target != "tensorrt":
        return real["build"](model, folder, target=target, **given)
    settings, progress = given.pop("settings"), given.pop("progress")
    declared = {name: given[name] for name in ("precision", "inputs", "outputs", "platform")}
    file = start(model, target=target, key_here=trt.platform_key(target), **declared)
    with replacing_folder(folder) as work:
        (work / "model.plan").write_text(trt.first_gpu().driver)
        return record(work, file.content, target=target, settings={}, census=None, **given)

trt.build = build
"""
GPU = {"name": "Double L4", "compute_capability": "8.9", "memory_gib": 22, "driver": "570.10.01", "driver_cuda": "12.8"}


class Project:
    """A DVC project whose stages `platform` and `build` are those of this repository; `measure` stands where `validate` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "double").mkdir(parents=True)
        (folder / "double" / "sitecustomize.py").write_text(DOUBLES)
        path = os.pathsep.join([str(folder / "double"), str(ROOT), str(ROOT / "tests/engines")])
        bin_folder = Path(sys.executable).parent
        self.environment = {
            **os.environ, "PYTHONPATH": path, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PROBE": str(folder / "probe.json"),
            "QWARM_CACHE": str(folder / "cache"),
        }  # fmt: skip
        self.probe()
        params = yaml.safe_load((ROOT / "params.yaml").read_text())
        params["targets"] = {OPENVINO: {}, RTX: {"compute_capabilities": ["SM89"]}, TENSORRT: {}}
        (folder / "params.yaml").write_text(yaml.safe_dump(params))
        stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
        kept = {"platform": stages["platform"], "build": stages["build"], "measure": stages["validate"]}
        kept["build"]["do"]["deps"] = [dep for dep in kept["build"]["do"]["deps"] if dep.startswith("build/")]
        measure = kept["measure"]["do"]
        measure["deps"] = [dep for dep in measure["deps"] if dep.startswith("build/engines")]
        measure["params"] = [entry for entry in measure["params"] if isinstance(entry, dict)]
        measure["cmd"], measure["outs"] = "echo measured > measured-${key}", [{"measured-${key}": {"cache": False}}]
        assert measure["params"]
        (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": kept}))
        self._models()
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=folder, env=self.environment, check=True)

    def _models(self) -> None:
        spec = importlib.util.spec_from_file_location("tiny_onnx", ROOT / "tests/engines/tiny_onnx.py")
        assert spec
        assert spec.loader
        tiny = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tiny)
        base = self.folder / "build"
        (base / "export").mkdir(parents=True)
        sha256 = sha256_file(tiny.conv_net(base / "export" / "model.onnx", scheme=None))
        exported = ExportedModel(sha256, "", "", "", 19, tiny.INPUTS, tiny.OUTPUTS, tiny.SHAPES, (), 0, {})
        exported.save(base / "export" / "exported.json")
        for scheme in ("cpu", "tensorrt"):
            (base / "chosen" / scheme).mkdir(parents=True)
            quantized = sha256_file(tiny.conv_net(base / "chosen" / scheme / "model.onnx", scheme=scheme))
            QuantizedModel(scheme, quantized, sha256, "", "", 0, 0, (), (), 0, None, None, {}).save(base / "chosen" / scheme / "quantized.json")

    def probe(self, **changes: Any) -> None:
        (self.folder / "probe.json").write_text(json.dumps(GPU | changes))

    def repro(self) -> set[str]:
        """Stages that ran, those that always do apart."""
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "repro"], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {name for name in re.findall(r"Running stage '([^']+)'", done.stdout) if not name.startswith("platform@")}

    def plan(self) -> str:
        return (self.folder / "build/engines" / TENSORRT / "int8/model.plan").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    for target in (OPENVINO, RTX):
        if reason := engines.backend(target).unavailable(target):
            pytest.skip(reason)
    return Project(tmp_path_factory.mktemp("driver") / "project")


def test_a_driver_upgrade_rebuilds_what_it_invalidates_and_nothing_else(project: Project) -> None:
    every = {f"{stage}@{target}" for stage in ("build", "measure") for target in (OPENVINO, RTX, TENSORRT)}
    assert project.repro() == every
    assert project.plan() == "570.10.01"

    project.probe(driver="580.65.06", driver_cuda="13.0")
    assert project.repro() == {
        f"build@{TENSORRT}",
        f"measure@{TENSORRT}",
        f"measure@{RTX}",
    }  # an RTX plan is built for no driver, and measured on one
    assert project.plan() == "580.65.06"

    project.probe()
    assert project.repro() == {f"measure@{TENSORRT}", f"measure@{RTX}"}  # the former engine comes back from DVC's run-cache
    assert project.plan() == "570.10.01"

    assert project.repro() == set()


def test_a_second_clone_with_the_same_cache_builds_no_engine_again(project: Project, tmp_path: Path) -> None:
    """Without DVC's cache: the store alone says that each was built before, from the same bytes for the same platform."""
    project.probe()
    project.repro()
    before = {path.relative_to(project.folder): path.read_bytes() for path in project.folder.glob("build/engines/**/*") if path.is_file()}
    clone = Project(tmp_path / "clone")
    clone.environment["QWARM_CACHE"] = project.environment["QWARM_CACHE"]
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro"], cwd=clone.folder, env=clone.environment, capture_output=True, text=True, check=True
    ).stdout
    said = [line for line in done.splitlines() if line.startswith("build: ")]
    assert len(said) == 3
    assert all(line.endswith("cache: int8 hit; float32 hit") for line in said), said
    assert {path.relative_to(clone.folder): path.read_bytes() for path in clone.folder.glob("build/engines/**/*") if path.is_file()} == before
