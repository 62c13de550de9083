"""A target whose engine is built here and cannot be run here: from `warm` to the evidence, without a measurement."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import yaml

import engines
from pipeline.platforms import fingerprint
from pipeline.records import AxisRange, Engine, Evidence, NotMeasured, TensorSpec, Verdict
from release import summary
from stages import gate, paths, platform, validate, warm

ROOT = Path(__file__).resolve().parents[2]
TARGET, WHY = "tensorrt-rtx", "no NVIDIA GPU in this test"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """params.yaml of the example, the platform of a machine that builds and does not run, and an engine's record."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    fingerprint(TARGET, {"tensorrt_rtx": "1"}, None, WHY).save(paths.platform(TARGET))
    inputs, outputs = (TensorSpec("image", "float32", ("batch", 1)),), (TensorSpec("logits", "float32", ("batch", 2)),)
    engine = Engine(TARGET, "int8", "0" * 64, "k", {}, {}, "0" * 64, inputs, outputs, {"batch": AxisRange(1, 1, 1)}, {}, None)
    engine.save(paths.ENGINES / TARGET / "int8" / "engine.json")
    return tmp_path


def test_nothing_is_measured_and_the_evidence_says_why(project: Path) -> None:
    assert WHY in warm.run(TARGET)
    assert [path.name for path in (paths.WARM / TARGET).iterdir()] == ["not_measured.json"]
    assert WHY in validate.run(TARGET)
    record = NotMeasured.load(paths.VALIDATE / f"{TARGET}.json")
    assert record.engine_sha256 == Engine.load(paths.ENGINES / TARGET / "int8" / "engine.json").digest()
    assert "NOT_MEASURED" in gate.run(TARGET)
    evidence = Evidence.load(paths.evidence(TARGET))
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, False)
    assert WHY in evidence.reason
    assert {text for _, text in summary.lines(evidence)} == {"not measured"}
    assert project == Path.cwd()


def test_a_required_target_that_cannot_be_measured_refuses_the_release(project: Path) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["targets"][TARGET]["required"] = True
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    validate.run(TARGET)
    gate.run(TARGET)
    evidence = Evidence.load(paths.evidence(TARGET))
    assert (evidence.verdict, evidence.ships, evidence.refuses) == (Verdict.NOT_MEASURED, False, True)


@pytest.mark.usefixtures("project")
def test_the_platform_of_a_machine_that_ran_the_target_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = engines.backend(TARGET)
    monkeypatch.setattr(backend, "unavailable", lambda _: None)
    monkeypatch.setattr(backend, "unrunnable", lambda _: WHY)
    assert WHY in platform.run(TARGET)  # was not run there either: written anew
    ours = fingerprint(TARGET, backend.platform_key(TARGET), None, WHY)
    assert paths.platform(TARGET).read_text() == ours.to_text()
    theirs = dataclasses.replace(ours, machine_id="f" * 64, unrunnable=None)
    theirs.save(paths.platform(TARGET))
    assert "kept" in platform.run(TARGET)
    assert paths.platform(TARGET).read_text() == theirs.to_text()
