"""Two clones as two runners through one git origin and one DVC remote; the one that releases has no OpenVINO.

The machine without OpenVINO is made by a `sitecustomize` that hides the package: a double for software that is not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.init import init

ROOT = Path(__file__).resolve().parents[2]
OPENVINO, ONNXRUNTIME = "openvino-cpu", "onnxruntime-cpu"
HIDDEN = """
import importlib.util, sys
sys.modules["openvino"] = None
_find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "openvino" else _find(name, package)
"""


class Runner:
    """One clone with an environment of its own."""

    def __init__(self, folder: Path, origin: Path, hidden: Path | None = None) -> None:
        self.folder = folder
        path = os.pathsep.join(str(part) for part in (hidden, ROOT) if part)
        bin_folder = Path(sys.executable).parent
        self.environment = {**os.environ, "PYTHONPATH": path, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["git", "clone", "-q", str(origin), str(folder)], check=True)
        self("git", "config", "user.name", "runner")
        self("git", "config", "user.email", "runner@example.com")

    def __call__(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        assert done.returncode == 0 or not check, text
        return text

    def publish(self) -> None:
        self("dvc", "push", "-q")
        self("git", "add", "-A")
        self("git", "commit", "-q", "-m", "evidence")
        self("git", "push", "-q", "origin", "HEAD")

    def evidence(self, target: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / "evidence" / f"{target}.json").read_text())
        return data


def shrink(folder: Path) -> None:
    data = folder / "data.py"
    data.write_text(data.read_text().replace("ROWS, CHANNELS, LENGTH, FACTS = 1400", "ROWS, CHANNELS, LENGTH, FACTS = 420"))
    params: dict[str, Any] = yaml.safe_load((folder / "params.yaml").read_text())
    params["data"]["roles"] |= {"train": 200, "calibration": 48, "search": 24, "warmup": 6}
    params["quantize"]["schemes"] = ["tensorrt", "cpu"]
    params["targets"] = {OPENVINO: {"required": True}, ONNXRUNTIME: {"required": True}}
    params["warmup"] |= {"concurrency": [1], "iterations": 1}
    params["gates"] |= {"trials": 5, "max_trials": 5, "requests": 20, "max_drop": 0.2}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is missing")
    base = tmp_path_factory.mktemp("runners")
    project = base / "project"
    init(project, "arrays")
    shrink(project)
    first = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", str(base / "store")], cwd=project, check=True)
    subprocess.run([*first, "add", "-A"], cwd=project, check=True)
    subprocess.run([*first, "commit", "-q", "-m", "start"], cwd=project, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(project), str(base / "origin.git")], check=True)
    (base / "hidden").mkdir()
    (base / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    return base


def test_evidence_travels_and_a_machine_without_the_runtime_releases_both(origin: Path) -> None:
    without = Runner(origin / "without", origin / "origin.git", origin / "hidden")
    assert "openvino is not installed" in without("qwarm", "doctor", check=False)
    without("dvc", "repro", f"gate@{ONNXRUNTIME}")
    without.publish()

    having = Runner(origin / "having", origin / "origin.git")
    having("dvc", "pull", "-q", "--allow-missing")
    text = having("dvc", "repro", "--allow-missing", f"gate@{OPENVINO}")
    assert "Running stage 'model'" not in text  # what the first runner trained came through the remote
    assert f"Running stage 'build@{OPENVINO}'" in text
    having.publish()

    without("git", "pull", "-q")
    without("dvc", "pull", "-q", "--allow-missing")
    refused = without("dvc", "repro", f"build@{OPENVINO}", "--force", "--single-item", check=False)
    assert f"The target {OPENVINO} cannot" in refused
    assert "Traceback" not in refused
    without("git", "checkout", "-q", "dvc.lock")
    without("dvc", "checkout", "-q", "--allow-missing", check=False)
    text = without("dvc", "repro", "--allow-missing")
    assert f"Running stage 'validate@{OPENVINO}'" not in text
    assert without.evidence(OPENVINO) == having.evidence(OPENVINO)
    bundle = next((without.folder / "build" / "release").glob("arrays-*"), None) or next((without.folder / "build" / "release").glob("project-*"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert sorted(target["target"] for target in manifest["targets"]) == [ONNXRUNTIME, OPENVINO]
    packages = manifest["provenance"]["host_packages"]
    built = having.evidence(OPENVINO)["bound_to"]["engine_sha256"], json.loads((having.folder / f"platforms/{OPENVINO}.json").read_text())
    assert packages["openvino"] == built[1]["key_fields"]["openvino"]
    assert next(target for target in manifest["targets"] if target["target"] == OPENVINO)["engine_sha256"] == built[0]

    path = without.folder / "evidence" / f"{OPENVINO}.json"
    kept = path.read_text()
    before = sorted((file.name, file.read_bytes()) for file in bundle.rglob("*") if file.is_file())
    for name, says in (("model_sha256", "the exported model"), ("parameters_sha256", "the parameters"), ("code_sha256", "the code that measures")):
        data = json.loads(kept)
        data["bound_to"][name] = "0" * 64
        path.write_text(json.dumps(data))
        refused = without("qwarm", "stage", "release", check=False)
        assert f"Evidence is of something else: {says}" in refused
        assert f"evidence/{OPENVINO}.json: bound_to.{name}" in refused
    assert sorted((file.name, file.read_bytes()) for file in bundle.rglob("*") if file.is_file()) == before
