"""qwarm.pyz: what a host runs with Python, numpy and one runtime, from any folder, compiled beforehand, equal bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.errors import QwarmError
from release import pyz

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pyz.write(tmp_path_factory.mktemp("pyz") / "qwarm.pyz", ROOT)


def isolated(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter without site-packages, PYTHONPATH or the current folder on its path: the standard library alone."""
    return subprocess.run([sys.executable, "-I", "-S", *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


def test_holds_the_four_packages_without_what_a_host_lacks(archive: Path) -> None:
    names = zipfile.ZipFile(archive).namelist()
    sources = {name for name in names if name.endswith(".py")}
    assert {name.partition("/")[0] for name in sources} == {"__main__.py", "pipeline", "engines", "warmup", "fleet"}
    assert {name + "c" for name in sources} == set(names) - sources
    assert "pipeline/records.py" in sources
    assert not {"pipeline/config.py", "pipeline/data_config.py", "pipeline/section.py", "pipeline/progress.py"} & sources


def test_equal_bytes_whatever_the_process(archive: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "if sys.argv[2] == 'full': import fleet.serve, fleet.trial, engines, numpy.linalg\n"
        "from release import pyz; pyz.write(sys.argv[1], '.')"
    )
    for number, (seed, state) in enumerate((("1", "bare"), ("2", "full"))):
        other = tmp_path / f"{number}.pyz"
        subprocess.run([sys.executable, "-c", code, str(other), state], check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        assert other.read_bytes() == archive.read_bytes()


def test_no_path_of_this_machine(archive: Path) -> None:
    assert str(ROOT).encode() not in archive.read_bytes()


def test_executable_with_a_shebang(archive: Path, tmp_path: Path) -> None:
    assert archive.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert os.access(archive, os.X_OK)
    run = isolated(archive, "--version", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, "qwarm 0.1.0\n"), run.stderr
    assert "verify" in isolated(archive, "--help", cwd=tmp_path).stdout


def test_what_runs_is_the_compiled_code(archive: Path, tmp_path: Path) -> None:
    """With every source made unreadable to a compiler, all still runs: zipimport took the .pyc beside it."""
    spoilt = tmp_path / "spoilt.pyz"
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(spoilt, "w") as after:
        for name in before.namelist():
            after.writestr(name, b"this is not Python (" if name.endswith(".py") else before.read(name))
    run = isolated(spoilt, "ready", "--state", tmp_path / "none", cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    assert "not ready" in run.stdout
    file = isolated("-c", f"import sys; sys.path.insert(0, {str(archive)!r}); import fleet.main as m; print(m.__file__)", cwd=tmp_path)
    assert file.stdout.strip().endswith("main.pyc"), file.stderr


def test_verifies_and_probes_with_the_standard_library_alone(archive: Path, tmp_path: Path) -> None:
    for command, code in ((["ready"], 1), (["status"], 0)):
        run = isolated(archive, *command, "--state", tmp_path / "none", cwd=tmp_path)
        assert run.returncode == code, run.stderr
    assert isolated(archive, "verify", tmp_path / "nothing", cwd=tmp_path).returncode == 2
    (tmp_path / "empty").mkdir()
    run = isolated(archive, "verify", tmp_path / "empty", cwd=tmp_path)
    assert run.returncode == 3
    assert "manifest.json" in run.stderr
    assert "Traceback" not in run.stderr


def test_every_module_imports_with_numpy_alone(archive: Path, tmp_path: Path) -> None:
    import numpy as np

    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (found := Path(np.__file__).parents[1] / name).exists():
            (site / name).symlink_to(found)
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in pyz.sources(ROOT) if name != "__main__.py"]
    code = f"import sys, importlib; sys.path[:0] = [{str(archive)!r}, {str(site)!r}]\nfor name in {modules!r}: importlib.import_module(name)"
    run = isolated("-c", code, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_a_missing_package_leaves_the_old_file(archive: Path, tmp_path: Path) -> None:
    old = tmp_path / "qwarm.pyz"
    old.write_bytes(b"old")
    with pytest.raises(QwarmError, match=r"pipeline/__init__\.py"):
        pyz.write(old, tmp_path)
    assert old.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [old]
    assert archive.exists()
