"""`qwarm compatibility` of real bundles and of a project's evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engines
from cli.main import run
from pipeline.errors import ConfigError
from pipeline.loading import load_object
from pipeline.platforms import package_version
from release import bundle

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)


def test_what_was_tried_is_told_once_from_bundle_and_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = make_parts(tmp_path / "parts")
    packed = bundle.pack(tmp_path / "release", **parts)
    project = tmp_path / "project"
    [evidence] = parts["evidences"]
    evidence.save(project / "evidence/openvino-cpu.json")
    engines.platform_here("openvino-cpu").save(project / "platforms/openvino-cpu.json")
    assert run(["compatibility", str(packed), str(project), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["target"], row["verdict"], row["measured"]) == ("openvino-cpu", "PASS", "2026-11-30")
    assert f"openvino {package_version('openvino')}" in row["libraries"]
    assert run(["compatibility", str(packed)]) == 0
    assert capsys.readouterr().out.startswith("| target | device |")
    with pytest.raises(ConfigError, match="neither manifest.json nor evidence"):
        run(["compatibility", str(tmp_path / "parts")])
