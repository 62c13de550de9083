"""The command as a person meets it: exit codes, one error, help."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli.stage import names, stage
from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def qwarm(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return subprocess.run([sys.executable, "-m", "cli.main", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_every_command() -> None:
    done = qwarm("--help")
    assert done.returncode == 0
    for command in (
        "doctor",
        "stage",
        "gate",
        "coldstart",
        "lint",
        "compare",
        "quantize",
        "build",
        "cache",
        "verify",
        "warm",
        "serve",
        "ready",
        "status",
    ):
        assert f" {command} " in done.stdout


def test_wrong_usage_is_exit_2() -> None:
    unknown = qwarm("nonsense")
    assert unknown.returncode == 2
    assert "next:     qwarm --help\n" in unknown.stderr
    assert qwarm("gate").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("stage", "bake"), "Unknown stage 'bake'"),
        (("stage", "build"), "needs an item"),
        (("stage", "data", "openvino-cpu"), "takes no item"),
    ],
)
def test_a_wrong_stage_is_one_error(arguments: tuple[str, ...], says: str) -> None:
    done = qwarm(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_stage_that_is_offered_can_be_run() -> None:
    for name in names():
        assert callable(importlib.import_module(f"stages.{name}").run), name


def project(tmp_path: Path, **sections: object) -> Path:
    data = yaml.safe_load((ROOT / "params.yaml").read_text())
    for key, value in sections.items():
        data[key] = value
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(data))
    return tmp_path


ITEM_STAGES = [(name, kind) for name in names() for kind in inspect.signature(importlib.import_module(f"stages.{name}").run).parameters]


@pytest.mark.parametrize(("name", "kind"), ITEM_STAGES)
def test_an_item_that_params_yaml_does_not_have_names_the_nearest(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path))
    item, near = {"target": ("openvino-cpx", "openvino-cpu"), "scheme": ("tensort", "tensorrt")}[kind]
    with pytest.raises(ConfigError, match=rf"(?s)params.yaml has no {kind} '{item}'.*stage {name}.*did you mean '{near}'\?"):
        stage(name, item)
    assert list(tmp_path.iterdir()) == [tmp_path / "params.yaml"]


@pytest.mark.parametrize("name", [name for name, _ in ITEM_STAGES])
def test_a_target_that_no_backend_serves_is_refused_by_every_stage_of_an_item(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path, targets={"openvino-cpu": {}, "onnxruntime-cpx": {}}))
    with pytest.raises(ConfigError, match=r"(?s)Unknown target 'onnxruntime-cpx'.*targets.*did you mean 'onnxruntime-cpu'"):
        stage(name, "openvino-cpu")
    assert list(tmp_path.iterdir()) == [tmp_path / "params.yaml"]


def test_an_unknown_target_is_one_error(tmp_path: Path) -> None:
    done = qwarm("stage", "gate", "openvino-cpu", cwd=project(tmp_path, targets={"openvino-cpx": {}}))
    assert done.returncode == 2
    assert "did you mean 'openvino-cpu'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_record_names_the_stage_to_run(tmp_path: Path) -> None:
    done = qwarm("stage", "gate", "openvino-cpu", cwd=project(tmp_path))
    assert done.returncode == 1
    assert "dvc repro validate@openvino-cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_works_here_and_names_problems(tmp_path: Path) -> None:
    done = qwarm("doctor", "--json")
    found = json.loads(done.stdout)
    assert found["targets"]["openvino-cpu"]["available"] is True
    assert found["machine"]["cores"]
    assert done.returncode == (1 if found["problems"] else 0)
    broken = qwarm("doctor", "--json", cwd=project(tmp_path, targets={"abacus": {"required": True}}))
    assert broken.returncode == 1
    assert any("abacus" in problem for problem in json.loads(broken.stdout)["problems"])


def test_json_errors_are_one_object_on_standard_output(tmp_path: Path) -> None:
    done = qwarm("gate", str(tmp_path / "absent.csv"), "--max-drop", "0.01", "--json")
    assert done.returncode != 0
    assert "absent.csv" in json.loads(done.stdout)["where"]


def test_a_wrong_option_is_one_error_and_with_json_one_object() -> None:
    done = qwarm("firewall", "a", "--nope", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)
    assert "--nope" in error["got"]
    assert error["next"] == "qwarm firewall --help"
    assert "Traceback" not in done.stderr
