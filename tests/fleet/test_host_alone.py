"""A serving host as it is meant to be: a copied bundle, its public key, qwarm.pyz, Python, numpy, OpenVINO, cryptography; no repository."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import openvino
import pytest
from serving import ROOT, Running

from release import pyz

SITE = Path(str(openvino.__file__)).parents[1]
PACKAGES = ("numpy", "numpy.libs", "openvino", "openvino.libs", "cryptography", "cffi", "_cffi_backend")
"""What `pip install numpy openvino cryptography` needs of site-packages."""


@pytest.fixture(scope="module")
def folder(bundle: Path, public_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle, the key, qwarm.pyz and an environment whose site-packages link to what its README names alone."""
    place = tmp_path_factory.mktemp("host")
    shutil.copytree(bundle, place / "tiny-0.0.1")
    shutil.copy(public_key, place / "development.pub")
    pyz.write(place / "qwarm.pyz", ROOT)
    venv.create(place / "env", with_pip=False, symlinks=True)
    site = place / "env/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for path in SITE.iterdir():
        if re.split(r"-|\.cpython", path.name)[0] in PACKAGES:
            (site / path.name).symlink_to(path)
    return place


def test_verify_warm_serve_ready(folder: Path, tmp_path: Path) -> None:
    program = [str(folder / "env/bin/python"), str(folder / "qwarm.pyz")]
    lacking = subprocess.run([program[0], "-c", "import onnx"], capture_output=True, text=True)
    assert "No module named 'onnx'" in lacking.stderr
    server = Running(folder / "tiny-0.0.1", tmp_path / "state", key=folder / "development.pub", program=program, cwd=tmp_path)
    try:
        verified = server.command("verify", str(folder / "tiny-0.0.1"), "--key", str(folder / "development.pub"))
        assert verified.returncode == 0, verified.stderr
        assert "by development.pub" in verified.stdout
        assert server.command("verify", str(folder / "tiny-0.0.1")).returncode == 3
        told = server.wait_ready()
        assert told["timings_ms"]["ready"] > 0
        rows, recorded = (np.load(folder / "tiny-0.0.1" / name) for name in ("warmup/rows.npz", "targets/openvino-cpu/expected.npz"))
        tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": rows["image"][:1].tolist()}
        status, answer, _ = server.call("POST", "/v2/models/tiny/infer", {"inputs": [tensor]})
        assert status == 200
        assert np.array_equal(np.array(answer["outputs"][0]["data"], np.float32), recorded["logits"][0])
        assert server.ready()
        assert server.stop() == 0
        assert not server.ready()
    finally:
        server.kill()


def test_warm_measures_in_fresh_processes(folder: Path, tmp_path: Path) -> None:
    command = [
        str(folder / "env/bin/python"),
        str(folder / "qwarm.pyz"),
        "warm",
        str(folder / "tiny-0.0.1"),
        "--key",
        str(folder / "development.pub"),
        "--json",
        "--runs",
        "2",
        "--requests",
        "20",
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    assert figures["target"] == "openvino-cpu"
    assert [trial["variant"] for trial in figures["trials"]] == ["warm", "cold", "cold", "warm"]
    for name in ("first_request_ms", "cold_first_request_ms", "steady_p50_ms", "ready_ms"):
        assert figures[name] > 0
    assert all(len(trial["requests_ms"]) == 20 for trial in figures["trials"])
    assert "4 of 4 fresh processes" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_warm_refuses_what_verify_refuses(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder / "tiny-0.0.1", tmp_path / "broken"))
    (broken / "labels.json").write_text("[]")
    program = [str(folder / "env/bin/python"), str(folder / "qwarm.pyz"), "warm"]
    run = subprocess.run([*program, str(broken)], capture_output=True, text=True)
    assert run.returncode == 3
    assert "labels.json" in run.stderr
    run = subprocess.run(
        [str(folder / "env/bin/python"), str(folder / "qwarm.pyz"), "warm", str(folder / "tiny-0.0.1")], capture_output=True, text=True
    )
    assert run.returncode == 3
    assert "integrity only, origin unknown" in run.stderr
    assert "Traceback" not in run.stderr
