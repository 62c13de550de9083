"""`dvc repro` that is killed while it trains under fake quantization goes on, the next time, behind the last epoch that it saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from cli.init import init

EPOCHS = 12


def test_a_killed_repro_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    init(str(folder), "arrays")
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["quantize"] |= {"qat": "always", "training": {"epochs": EPOCHS, "patience": EPOCHS, "batch_rows": 32}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    environment = {**os.environ, "QWARM_CACHE": str(tmp_path / "cache"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "dvc", "repro", "qat"]
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as killed:
        while not list((tmp_path / "cache").rglob("epoch-*.safetensors")):
            assert killed.poll() is None, killed.stdout.read().decode() if killed.stdout else ""
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    assert not (folder / "build/qat").exists()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((folder / "build/qat/training.json").read_text())
    assert 1 <= record["resumed_after"] < EPOCHS
    assert f"went on after epoch {record['resumed_after']} of a run that had been stopped" in done.stdout
    assert [epoch["epoch"] for epoch in record["epochs"]] == list(range(1, len(record["epochs"]) + 1))
    assert not list((tmp_path / "cache").rglob("epoch-*.safetensors"))
