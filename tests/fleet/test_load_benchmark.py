"""benchmarks/serve.py on the tiny bundle: every request is accounted for. Its figures are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from serving import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "benchmarks/serve.py", *arguments], capture_output=True, text=True, cwd=ROOT, env=environment)


def test_every_request_is_accounted_for(bundle: Path, public_key: Path, tmp_path: Path) -> None:
    done = run("--bundle", str(bundle), "--key", str(public_key), "--seconds", "0.5", "--pairs", "25", "--json", str(tmp_path / "serve.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "serve.json").read_text())
    loaded, extra = report["load"], report["overhead"]
    assert (loaded["clients"], loaded["errors"], extra["errors"]) == (8, 0, 0)
    assert sum(map(len, loaded["samples_ms"])) == loaded["requests"] > 0
    assert len(extra["samples_ms"]["server"]) == len(extra["samples_ms"]["engine"]) == extra["pairs"] == 25
    assert extra["ratio_interval"][0] <= extra["ratio"] <= extra["ratio_interval"][1]
    assert report["counted"] == {"200": loaded["answered"] + extra["answered"]}
    assert "overhead" in done.stdout


def test_what_it_cannot_measure(bundle: Path, tmp_path: Path) -> None:
    assert run("--bundle", str(tmp_path)).returncode == 3
    assert run("--bundle", str(bundle), "--clients", "65").returncode == 2
