"""`qwarm diff` of real bundles, of git revisions, and of what is neither."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import run
from pipeline.errors import ConfigError, RecordError, Refused
from pipeline.loading import load_object
from release import bundle

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)
Lines = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    parts = make_parts(tmp_path_factory.mktemp("parts"))
    [evidence] = parts["evidences"]
    worse = dataclasses.replace(evidence.checks[0], figure=0.02, interval=dataclasses.replace(evidence.checks[0].interval, low=0.01, high=0.03))
    later = {
        **parts,
        "version": "0.0.2",
        "evidences": [dataclasses.replace(evidence, checks=(worse,))],
        "provenance": {"parameters": {"gates": {"max_drop": 0.05}}},
    }
    folder = tmp_path_factory.mktemp("release")
    return bundle.pack(folder, **{**parts, "provenance": {"parameters": {"gates": {"max_drop": 0.01}}}}), bundle.pack(folder, **later)


@pytest.fixture
def changed(capsys: pytest.CaptureFixture[str]) -> Lines:
    def run_diff(*arguments: object) -> dict[str, dict[str, str]]:
        assert run(["diff", *map(str, arguments), "--json"]) == 0
        return {f"{change['kind']} {change['name']}": change for change in json.loads(capsys.readouterr().out)["changes"]}

    return run_diff


def test_two_bundles(bundles: tuple[Path, Path], changed: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    found = changed(*bundles)
    assert found["figure openvino-cpu accuracy"]["verdict"] == "worse"
    assert (found["parameter gates.max_drop"]["before"], found["parameter gates.max_drop"]["after"]) == ("0.01", "0.05")
    assert changed(bundles[0], bundles[0]) == {}
    assert run(["diff", str(bundles[0]), str(bundles[0])]) == 0
    assert "nothing differs" in capsys.readouterr().out


def test_two_bundles_measured_again_here(bundles: tuple[Path, Path], changed: Lines) -> None:
    found = changed(*bundles, "--measure", "--runs", "1")
    assert {"measured openvino-cpu steady p50", "measured openvino-cpu first request"} <= set(found)
    assert found["measured openvino-cpu steady p50"]["verdict"].endswith("too few processes for a bound")
    assert found["measured openvino-cpu steady p50"]["before"].endswith(" ms")


def test_a_tampered_bundle_is_not_measured(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    import shutil

    broken = Path(shutil.copytree(bundles[0], tmp_path / "broken"))
    (broken / "targets/openvino-cpu/model.blob").write_bytes(b"x")
    with pytest.raises(Refused, match="model.blob"):
        run(["diff", str(bundles[0]), str(broken), "--measure", "--runs", "1"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits: the second has other parameters and another evidence."""
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments], check=True, capture_output=True)

    evidence = load_object("tests/release/test_page.py:evidences", ROOT)()[0]
    Path("evidence").mkdir()
    git("init", "-q")
    for drop, machine in ((0.01, "a"), (0.02, "a")):
        Path("params.yaml").write_text(yaml.safe_dump({"gates": {"max_drop": drop}, "targets": {evidence.target: {}}}))
        Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"roles": {"outs": [{"path": "build/roles/roles.json", "md5": f"{drop}"}]}}}))
        checks = tuple(dataclasses.replace(check, figure=drop) if check.name == "accuracy_drop" else check for check in evidence.checks)
        dataclasses.replace(evidence, checks=checks, bound_to={"machine_id": machine}).save(f"evidence/{evidence.target}.json")
        git("add", "-A")
        git("commit", "-q", "-m", "x")
    return tmp_path


def test_two_revisions_and_the_working_tree(project: Path, changed: Lines) -> None:
    found = changed("HEAD~1", "HEAD")
    assert set(found) == {"figure openvino-cpu accuracy_drop", "parameter gates.max_drop", "data build/roles/roles.json"}
    assert changed("HEAD", ".") == {}
    (project / "params.yaml").write_text("targets: {}\n")
    assert "target openvino-cpu" in changed("HEAD", ".")


def test_what_is_neither_is_refused(project: Path, bundles: tuple[Path, Path]) -> None:
    for name in ("no-such-revision", "HEAD~9"):
        with pytest.raises(ConfigError, match="nothing to compare"):
            run(["diff", "HEAD", name])
    with pytest.raises(ConfigError, match="Only bundles can be measured"):
        run(["diff", "HEAD", str(bundles[0]), "--measure"])
    (project / "evidence/openvino-cpu.json").write_text('{"schema": "qwarm.evidence/1"}')
    with pytest.raises(RecordError, match="qwarm.evidence/1"):
        run(["diff", "HEAD", "."])
