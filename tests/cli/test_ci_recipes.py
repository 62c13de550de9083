"""The starters' CI files: fit the vendors' schemas, and the tag step does what it says in a real repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli.init import init

GITHUB, GITLAB = ".github/workflows/release.yml", ".gitlab-ci.yml"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ci") / "letters"
    init(folder, "arrays")
    return folder


@pytest.mark.parametrize(("file", "schema"), [(GITHUB, "vendor.github-workflows"), (GITLAB, "vendor.gitlab-ci")])
def test_a_recipe_fits_its_vendors_schema(project: Path, tmp_path: Path, file: str, schema: str) -> None:
    def check(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *(["--data-transform", "gitlab-ci"] * ("gitlab" in schema))]
        return subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)

    done = check(project / file)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((project / file).read_text().replace("timeout-minutes: 60", "timeout-minutes: soon").replace("when: always", "when: [1]"))
    assert check(wrong).returncode == 1


def steps(project: Path) -> list[str]:
    jobs = yaml.safe_load((project / GITHUB).read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_every_shell_step_is_shell(project: Path) -> None:
    gitlab = yaml.safe_load((project / GITLAB).read_text())
    lines = [
        line for name, job in gitlab.items() if name != "stages" for key in ("before_script", "script", "after_script") for line in job.get(key, [])
    ]
    for text in [*steps(project), *lines]:
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"


def test_the_tag_step_registers_the_version_once(project: Path) -> None:
    [tag] = [text for text in steps(project) if "gto register" in text]
    subprocess.run(["git", "init", "-q", "--bare", str(project.parent / "origin.git")], check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "start"]
    for command in (["git", "remote", "add", "origin", str(project.parent / "origin.git")], ["git", "add", "-A"], commit):
        subprocess.run(command, cwd=project, check=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for _ in range(2):  # a second run of the same version tags nothing and is no error
        done = subprocess.run(["bash", "-e", "-c", tag], cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tags = subprocess.check_output(["git", "tag", "--list"], cwd=project.parent / "origin.git", text=True).split()
    assert tags == ["letters@v0.1.0"]
