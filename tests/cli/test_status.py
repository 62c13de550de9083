"""`qwarm status` of a project: a real DVC graph, real evidence and a real bundle, from nothing to published; elsewhere it is the host's."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import about_project, run
from pipeline.errors import ConfigError
from pipeline.loading import load_object
from pipeline.records import Check, Evidence, Verdict
from release import bundle, signing

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)
TARGET = "openvino-cpu"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """params.yaml of the example for the tiny bundle and its one target, and a DVC graph of one stage."""
    parameters = yaml.safe_load((ROOT / "params.yaml").read_text())
    parameters["release"] |= {"name": "tiny", "version": "0.0.1"}
    parameters["targets"] = {TARGET: {"required": True}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters))
    (tmp_path / "dvc.yaml").write_text("stages:\n  copy:\n    cmd: cp source copied\n    deps: [source]\n    outs: [copied]\n")
    (tmp_path / "source").write_text("one")
    monkeypatch.chdir(tmp_path)
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"], [sys.executable, "-m", "dvc", "repro", "-q"]):
        subprocess.run(command, check=True, env={**os.environ, "DVC_NO_ANALYTICS": "1"})
    return tmp_path


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["status", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_from_nothing_to_a_bundle_that_can_be_published(project: Path, parts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys)
    assert (found["due"], found["due_unknown"], found["targets"][TARGET]["verdict"], found["next"]) == ({}, "", None, "dvc repro")
    [evidence] = parts["evidences"]
    evidence.save(project / f"evidence/{TARGET}.json")
    found = told(capsys)
    assert (found["targets"][TARGET]["verdict"], found["targets"][TARGET]["open"], found["bundle"]["there"]) == ("PASS", [], False)
    assert "hour" in found["targets"][TARGET]["age"] or "day" in found["targets"][TARGET]["age"]
    key = signing.open_key(project / "development.pem", development=True)
    folder = bundle.pack(project / "build/release", **parts, key=key)
    key.write_public(project / "build/release/development.pub")
    found = told(capsys)
    assert (found["bundle"]["whole"], found["bundle"]["of_this_evidence"]) == (True, True)
    assert "signed" in found["bundle"]["why"]
    assert found["next"].startswith("qwarm publish build/release/tiny-0.0.1")
    (project / "build/release/development.pub").unlink()
    assert run(["status"]) == 0
    text = capsys.readouterr().out
    assert "stages: nothing is due" in text
    assert "is whole, of this evidence; integrity only, origin unknown" in text
    dataclasses.replace(evidence, reason="measured again").save(project / f"evidence/{TARGET}.json")
    found = told(capsys)
    assert (found["bundle"]["of_this_evidence"], found["next"]) == (False, "dvc repro --force --single-item release")
    (folder / "labels.json").write_text("[]")
    assert "labels.json: truncated" in told(capsys)["bundle"]["why"]
    (project / "source").write_text("two")
    found = told(capsys)
    assert (found["due"], found["next"]) == ({"copy": ["source modified"]}, "dvc repro")


def test_a_refusal_says_what_would_decide(project: Path, parts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    check = Check("accuracy_drop", Verdict.UNDECIDED, 0.01, None, 0.01, "max", "fraction", "e", "about 900 validation rows in all")
    [evidence] = parts["evidences"]
    refusing: Evidence = dataclasses.replace(evidence, checks=(check,), verdict=Verdict.UNDECIDED, ships=False, refuses=True)
    refusing.save(project / f"evidence/{TARGET}.json")
    found = told(capsys)
    assert found["targets"][TARGET]["open"][0]["verdict"] == "UNDECIDED"
    assert found["next"] == "read build/report/report.html; what would decide: about 900 validation rows in all"


def test_without_dvc_it_says_what_it_does_not_know(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".dvc").rename(project / "gone")
    found = told(capsys)
    assert found["due"] == {}
    assert found["due_unknown"]
    (project / "params.yaml").write_text("model: 1")
    with pytest.raises(ConfigError):
        run(["status"])


def test_a_bundle_or_a_state_folder_makes_it_the_hosts(project: Path, tmp_path: Path) -> None:
    assert about_project(["status"])
    assert about_project(["status", "--json"])
    assert not about_project(["status", "--state", str(tmp_path)])
    assert not about_project(["status", "build/release/tiny-0.0.1"])
    assert not about_project(["ready"])
    (project / "dvc.yaml").unlink()
    assert not about_project(["status"])
