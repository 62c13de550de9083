"""`qwarm build` and `qwarm cache` as a person meets them, on a tiny model and without a pipeline."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

import engines
from cli.build import build_file
from engines.caches import Store
from pipeline.records import AxisRange

ROOT = Path(__file__).resolve().parents[2]
HERE = [target for target in engines.targets() if not engines.backend(target).unavailable(target)]


@pytest.fixture(scope="module")
def tiny() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_onnx", ROOT / "tests/engines/tiny_onnx.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def qwarm(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "QWARM_CACHE": str(tmp_path / "cache")}
    return subprocess.run([sys.executable, "-m", "cli.main", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def answer(tmp_path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = qwarm(tmp_path, *arguments, "--json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("target", HERE)
def test_an_engine_is_built_once_and_then_copied(tiny: ModuleType, tmp_path: Path, target: str) -> None:
    model, store = tiny.conv_net(tmp_path / "int8.onnx", scheme=engines.backend(target).SCHEMES[target][0]), Store(tmp_path / "store", 1 << 30)
    built = build_file(model, target, tmp_path / "one", batch=AxisRange(1, 4, 8), store=store, twice=True)
    assert (built["cache"], built["precision"]) == ("miss", "int8")
    if built["not_run"] is None:
        assert built["int8_share"] >= 0.9
        assert all(value is None or value > 60 for value in built["rebuild"]["sqnr_db_by_output"].values())
    assert (built["rebuild"]["rows"] > 0) == (built["not_run"] is None)
    again = build_file(model, target, tmp_path / "two", batch=AxisRange(1, 4, 8), store=store)
    assert (again["cache"], again["files"]) == ("hit", built["files"])
    with_side_files = tmp_path / "side.onnx"
    onnx.save(onnx.load(model), with_side_files, save_as_external_data=True, size_threshold=0)
    assert build_file(with_side_files, target, tmp_path / "three", batch=AxisRange(1, 4, 8), store=store)["files"].keys() == built["files"].keys()


def test_what_the_store_found_is_told(tiny: ModuleType, tmp_path: Path) -> None:
    model = str(tiny.conv_net(tmp_path / "float.onnx", scheme=None))
    assert answer(tmp_path, "build", model, "--target", HERE[0], "--out", "one")["precision"] == "float32"
    told = qwarm(tmp_path, "build", model, "--target", HERE[0], "--out", "one", "--batch", "1,2,4", "--twice").stdout
    assert "cache: stale; shapes.batch: built for " in told
    assert "built again: " in told
    assert len(answer(tmp_path, "cache", "ls")["entries"]) == 2
    assert answer(tmp_path, "build", model, "--target", HERE[0], "--out", "two", "--no-cache")["cache"] == "miss"


def test_a_damaged_entry_is_named_and_pruned(tiny: ModuleType, tmp_path: Path) -> None:
    model = tiny.conv_net(tmp_path / "float.onnx", scheme=None)
    assert answer(tmp_path, "build", str(model), "--target", HERE[0], "--out", "one")["precision"] == "float32"
    assert answer(tmp_path, "cache", "verify")["entries"][0]["fault"] is None
    (entry,) = (tmp_path / "cache/engines/engine").iterdir()
    victim = next(path for path in entry.iterdir() if path.name not in {"entry.json", "engine.json"})
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    done = qwarm(tmp_path, "cache", "verify")
    assert done.returncode == 3
    assert victim.name in done.stderr
    assert "qwarm cache prune" in done.stderr
    rebuilt = qwarm(tmp_path, "build", str(model), "--target", HERE[0], "--out", "two")
    assert "cache: corrupt" in rebuilt.stdout
    victim.write_bytes(b"")
    assert len(answer(tmp_path, "cache", "prune")["entries"]) == 1
    assert answer(tmp_path, "cache", "ls")["entries"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("build", "none.onnx", "--target", "openvino-cpu", "--out", "x"), 2, "MODEL none.onnx"),
        (("build", "text.onnx", "--target", "openvino-cpu", "--out", "x"), 1, "cut short"),
        (("build", "text.onnx", "--target", "abacus", "--out", "x"), 2, "correct --target"),
        (("build", "text.onnx", "--target", "openvino-cpu", "--out", "x", "--batch", "8,1"), 2, "MIN,OPT,MAX"),
        (("build", "text.onnx", "--target", "openvino-cpu", "--out", "x", "--batch", "8,4,16"), 2, "in order"),
        (("build", "text.onnx", "--target", "openvino-cpu", "--out", "."), 2, "give another --out"),
        (("build", "text.onnx", "--target", "openvino-cpu", "--out", "x", "--setting", "threads=[1"), 2, "--setting threads"),
        (("build", "text.onnx", "--target", "tensorrt", "--out", "x"), 1, "qwarm doctor"),
        (("cache", "prune", "--max-gb", "-1"), 2, "--max-gb"),
    ],
)
def test_bad_input_is_one_error(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    done = qwarm(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "next:" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("setting", "got"), [("thread=1", "thread"), ("threads=0", "0")])
def test_a_setting_that_does_not_fit_names_the_option(tiny: ModuleType, tmp_path: Path, setting: str, got: str) -> None:
    model = tiny.conv_net(tmp_path / "int8.onnx", scheme=engines.backend(HERE[0]).SCHEMES[HERE[0]][0])
    done = qwarm(tmp_path, "build", str(model), "--target", HERE[0], "--out", "x", "--setting", setting, "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)
    assert (error["where"], error["got"], error["next"]) == (f"--setting {setting.partition('=')[0]}", got, "correct --setting")
    assert "params.yaml" not in done.stderr
