"""`qwarm init`: each starter is whole and valid, or there is nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cli import init as command
from cli.init import init, kinds, release_name
from cli.main import main
from pipeline.config import SourceConfig, load_config
from pipeline.errors import USAGE, ConfigError
from pipeline.loading import load_object
from release.host_preprocess import HOST_MODULES
from release.provenance import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("arrays", "classification", "text")


@pytest.fixture(scope="module", params=KINDS)
def starter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("starters") / f"My {request.param}!"
    init(folder, request.param)
    return folder


def test_the_kinds_are_these() -> None:
    assert kinds() == sorted(KINDS)


def test_a_starter_is_a_git_and_dvc_repository_with_everything_staged(starter: Path) -> None:
    staged = subprocess.run(["git", "diff", "--cached", "--name-only"], cwd=starter, capture_output=True, text=True, check=True).stdout.split()
    there = sorted(path.relative_to(starter).as_posix() for path in starter.rglob("*") if path.is_file() and ".git/" not in f"{path}/")
    assert sorted(staged) == there
    wanted = {".dvc/config", ".dvcignore", ".gitignore", ".github/workflows/release.yml", ".gitlab-ci.yml", "README.md", "requirements.txt"}
    assert wanted | {"model.py", "preprocess.py", "data.py", "params.yaml", "dvc.yaml"} <= set(there)
    assert not list(starter.parent.glob(".*.tmp"))
    left = [path for path in there if any(word in (starter / path).read_text() for word in ("@NAME@", "@KIND@", "@VERSION@", "@METRIC"))]
    assert left == []
    assert len((starter / "README.md").read_text().splitlines()) <= 14


def test_params_are_valid_and_name_what_is_there(starter: Path) -> None:
    config = load_config(starter / "params.yaml")
    assert config.release.name == f"my-{starter.name.split()[1].rstrip('!')}"
    for reference in (config.model.factory, config.model.train, config.data.write, config.data.preprocess):
        assert reference is not None
        assert callable(load_object(reference, starter))
    if config.data.labels:
        assert len(load_object(config.data.labels, starter)) > 1
    else:
        assert callable(load_object(config.gates.metric, starter))
    for file in ("data.py", "model.py", "preprocess.py", "params.yaml"):
        assert "EDIT" in (starter / file).read_text()
    for ci in (".github/workflows/release.yml", ".gitlab-ci.yml"):
        assert "dvc repro" in yaml.safe_dump(yaml.safe_load((starter / ci).read_text()))


def test_every_parameter_of_the_graph_stands_in_params(starter: Path) -> None:
    """DVC refuses a stage whose parameter is absent, a default notwithstanding."""
    params = yaml.safe_load((starter / "params.yaml").read_text())
    for name, entry in entries(starter / "dvc.yaml").items():
        for item in entry.get("params", []):
            place = params
            for part in item.split(".") if isinstance(item, str) and "$" not in item else []:
                assert part in place, f"{name}: {item}"
                place = place[part]


def test_preprocessing_imports_only_what_a_host_has(starter: Path) -> None:
    tree = ast.parse((starter / "preprocess.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= HOST_MODULES


def test_dvc_reads_the_graph(starter: Path) -> None:
    """DVC's own parser, with `foreach` expanded: one stage a target and a scheme."""
    listed = subprocess.run([sys.executable, "-m", "dvc", "stage", "list", "--name-only"], cwd=starter, capture_output=True, text=True, check=True)
    names = listed.stdout.split()
    assert {"tool", "platform@openvino-cpu", "quantize@tensorrt", "validate@openvino-cpu", "release"} <= set(names)


def entries(path: Path) -> dict[str, dict[str, Any]]:
    stages = yaml.safe_load(path.read_text(encoding="utf-8"))["stages"]
    return {name: entry.get("do", entry) for name, entry in stages.items()}


def parameters(entry: dict[str, Any]) -> list[str]:
    listed = [
        item if isinstance(item, str) else {file: keys for file, keys in item.items() if file != "qwarm.json"} for item in entry.get("params", [])
    ]
    return [str(item) for item in listed if item]


def test_the_starters_graph_is_this_repositorys(starter: Path) -> None:
    """Same stages, commands, results, parameters and data edges; only code differs: files here, digests of qwarm there."""
    ours, theirs = entries(ROOT / "dvc.yaml"), entries(starter / "dvc.yaml")
    assert list(theirs) == ["tool", *ours]

    def shared(entry: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps({key: entry.get(key) for key in ("cmd", "outs", "metrics", "plots", "always_changed")})
        edges = [dep for dep in entry.get("deps", []) if dep.startswith(("build", "evidence"))]
        return json.loads(json.dumps([text, edges, parameters(entry)]).replace("digits.parquet", "rows.parquet"))

    for name, entry in ours.items():
        assert shared(theirs[name]) == shared(entry), name
    users = {dep for entry in theirs.values() for dep in entry.get("deps", []) if not dep.startswith(("build", "evidence"))}
    assert users == {path.name for path in starter.glob("*.py")}


PART_OF = {"pipeline", "calibration", "engines", "warmup", "release", "fleet", "stages"}


def test_a_stage_depends_on_each_part_of_qwarm_that_it_runs_but_training_on_none(starter: Path) -> None:
    ours, theirs = entries(ROOT / "dvc.yaml"), entries(starter / "dvc.yaml")
    for name, entry in ours.items():
        keys = [key for item in theirs[name].get("params", []) if isinstance(item, dict) for key in item.get("qwarm.json", [])]
        listed = {key.removeprefix("code.") for key in keys}
        if name in {"platform", "data", "model"}:
            assert not listed, name
            continue
        runs = {dep.partition("/")[0] for dep in entry.get("deps", [])} & PART_OF
        assert listed == runs, name


def test_the_tool_stage_writes_a_digest_a_part_and_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.tool import run

    monkeypatch.chdir(tmp_path)
    run()
    written = json.loads((tmp_path / "qwarm.json").read_text())
    assert set(written["code"]) == set(PACKAGES) - {"cli"}
    before = (tmp_path / "qwarm.json").stat().st_mtime_ns
    run()
    assert (tmp_path / "qwarm.json").stat().st_mtime_ns == before


def test_pictures_in_a_folder_a_class_become_the_source(tmp_path: Path) -> None:
    """What a user edits first in the classification starter: `FOLDER`, laid out as ImageNet is."""
    from PIL import Image

    from calibration.sources import open_source

    folder = tmp_path / "project"
    init(folder, "classification")
    for index, name in enumerate(("circle", "cross", "square")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("L", (40, 30), 60 * index).save(tmp_path / "pictures" / name / "one.jpg")
    edited = f"FOLDER = Path({str(tmp_path / 'pictures')!r})"
    (folder / "data.py").write_text((folder / "data.py").read_text().replace("FOLDER: Path | None = None", edited))
    load_object("data.py:write", folder)(tmp_path / "rows.parquet")
    config = load_config(folder / "params.yaml")
    rows = list(open_source(config.data, SourceConfig(kind="parquet", path=str(tmp_path / "rows.parquet")), folder).rows())
    assert [row.label for row in rows] == [0, 1, 2]
    prepared = load_object("preprocess.py:prepare", folder)(rows[1].raw)["image"]
    assert prepared.shape == (3, 32, 32)
    assert np.allclose(prepared, (60 / 255 - 0.5) / 0.25, atol=0.05)


def test_a_used_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"(?s)not empty.*mine.txt") as caught:
        init(tmp_path, "text")
    assert caught.value.exit_code == USAGE
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="got: *a file"):
        init(tmp_path / "mine.txt", "text")


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    init(tmp_path / "new", "arrays")
    assert (tmp_path / "new" / "metric.py").is_file()


def test_an_unknown_kind_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="arrays or classification or text"):
        init(tmp_path / "new", "video")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_left_when_git_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    folder = tmp_path / "parent" / "new"
    if there:
        folder.mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").write_text("#!/bin/sh\necho no room >&2\nexit 128\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ConfigError, match="no room"):
        init(folder, "text")
    assert folder.exists() == there
    assert [path for path in folder.parent.iterdir() if path != folder] == []
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="git is missing"):
        init(folder, "text")


def test_the_command_says_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["qwarm", "init", "mine", "--kind", "text", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    made = json.loads(capsys.readouterr().out)
    assert made["next"][:2] == ["cd mine", "dvc repro"]
    monkeypatch.setattr(sys, "argv", ["qwarm", "init", "mine", "--kind", "text"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == USAGE
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "name"), [("My Model", "my-model"), ("über", "ber"), ("...", "model"), ("a_b-1", "a_b-1"), ("x" * 80, "x" * 64)])
def test_a_folders_name_becomes_a_release_name(folder: str, name: str) -> None:
    assert release_name(folder) == name


def test_packaging_ships_the_starters() -> None:
    import tomllib

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data["cli"] == ["starters/**/*"]
    hidden = [path for path in command.STARTERS.rglob("*") if path.name.startswith(".")]
    assert hidden == []  # setuptools' patterns leave out names that begin with a dot
