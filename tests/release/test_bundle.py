"""Packing: deterministic, self-contained, whole or not at all, and never of parts that do not belong together."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DiskFullError, RecordError, Refused
from pipeline.loading import load_object
from pipeline.records import Engine, Evidence, TensorSpec, Verdict, WarmupPlan
from release import bundle
from release.private_paths import find_private_path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "openvino-cpu"
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


def pack(parts: dict[str, Any], releases: Path, **changes: Any) -> Path:
    return bundle.pack(releases, **{**parts, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_layout_and_manifest(parts: dict[str, Any], tmp_path: Path) -> None:
    packed = pack(parts, tmp_path / "build/release")
    assert packed == tmp_path / "build/release/tiny-0.0.1"
    files = contents(packed)
    target = [f"targets/{TARGET}/{name}" for name in ("engine.json", "evidence.json", "expected.npz", "model.blob", "plan.json")]
    shared = {"README.md", "labels.json", "manifest.json", "manifest.sha256", "preprocess.py", "provenance.json", "warmup/rows.npz"}
    assert set(files) == {*shared, *target}
    manifest = json.loads(files["manifest.json"])
    assert set(manifest["files"]) == set(files) - {"manifest.json", "manifest.sha256"}
    for path, entry in manifest["files"].items():
        assert entry == {"bytes": len(files[path]), "sha256": hashlib.sha256(files[path]).hexdigest()}
    assert manifest["signature"] == "none"
    assert manifest["preprocess"] == "preprocess.py:prepare"
    assert manifest["left_out"] == {}
    assert manifest["roles"] == {role: entry.merkle_root for role, entry in parts["roles"].roles.items()}
    assert manifest["targets"][0]["verdict"] == "PASS"
    assert json.loads(files["labels.json"]) == ["cat", "dog", "eel"]
    assert files["preprocess.py"] == parts["preprocess"][0].read_bytes()
    assert subprocess.run(["sha256sum", "-c", "manifest.sha256"], cwd=packed, capture_output=True).returncode == 0
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == [".packing", "release"]
    assert list((tmp_path / "build/.packing").iterdir()) == []
    assert list((tmp_path / "build/release").iterdir()) == [packed]


def test_the_readme_tells_a_host_what_to_do(parts: dict[str, Any], tmp_path: Path) -> None:
    text = (pack(parts, tmp_path / "release") / "README.md").read_text()
    openvino = parts["host_packages"]["openvino"]
    for part in (
        "qwarm.pyz verify tiny-0.0.1",
        f"openvino=={openvino}",
        "fleet.open(",
        "accuracy | PASS | 0.001",
        "cpu_model",
    ):
        assert part in text


def test_equal_parts_give_equal_bytes(parts: dict[str, Any], tmp_path: Path) -> None:
    first = pack(parts, tmp_path / "a")
    other = {**parts, "provenance": dict(reversed(parts["provenance"].items())), "host_packages": dict(reversed(parts["host_packages"].items()))}
    assert contents(first) == contents(pack(other, tmp_path / "b"))


def test_a_new_bundle_takes_the_place_of_the_old(parts: dict[str, Any], tmp_path: Path) -> None:
    packed = pack(parts, tmp_path / "release")
    (packed / "left-over").write_text("x")
    before = contents(packed)["manifest.json"]
    packed = pack(parts, tmp_path / "release", provenance={"code": "changed"})
    assert not (packed / "left-over").exists()
    assert contents(packed)["manifest.json"] != before
    assert pack(parts, tmp_path / "release", version="0.0.2").name == "tiny-0.0.2"
    assert sorted(path.name for path in (tmp_path / "release").iterdir()) == ["tiny-0.0.1", "tiny-0.0.2"]


def copied_warm(parts: dict[str, Any], folder: Path) -> Path:
    return Path(shutil.copytree(parts["warm"][TARGET], folder))


def other_engine(parts: dict[str, Any], folder: Path, **changes: Any) -> Path:
    """The engine's folder with another record."""
    shutil.copytree(parts["engines"][TARGET], folder)
    dataclasses.replace(Engine.load(folder / "engine.json"), **changes).save(folder / "engine.json")
    return folder


def evidence_of(parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    [evidence] = parts["evidences"]
    return {"evidences": [dataclasses.replace(evidence, **changes)]}


def plan_of_another_engine(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    warm = copied_warm(parts, folder)
    dataclasses.replace(WarmupPlan.load(warm / "plan.json"), engine_sha256="0" * 64).save(warm / "plan.json")
    return {"warm": {TARGET: warm}}


def other_rows(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    warm = copied_warm(parts, folder)
    np.savez(warm / "rows.npz", image=np.zeros((5, 1, 8, 8), np.float32))
    return {"warm": {TARGET: warm}}


def too_few_outputs(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    warm = copied_warm(parts, folder)
    np.savez(warm / "expected.npz", logits=np.zeros((4, 3), np.float32))
    return {"warm": {TARGET: warm}}


def other_outputs(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    warm = copied_warm(parts, folder)
    np.savez(warm / "expected.npz", scores=np.zeros((5, 3), np.float32))
    return {"warm": {TARGET: warm}}


def changed_blob(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    engine = other_engine(parts, folder)
    (engine / "model.blob").write_bytes((engine / "model.blob").read_bytes() + b"\0")
    return {"engines": {TARGET: engine}}


def changed_preprocess(parts: dict[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    (folder / "preprocess.py").write_bytes(parts["preprocess"][0].read_bytes() + b"\n")
    return {"preprocess": (folder / "preprocess.py", "prepare")}


REFUSED: dict[str, tuple[Callable[[dict[str, Any], Path], dict[str, Any]], str]] = {
    "nothing-to-ship": (lambda parts, _: evidence_of(parts, required=False, ships=False, verdict=Verdict.UNDECIDED, reason="few rows"), "few rows"),
    "no-evidence": (lambda *_: {"evidences": []}, "No target"),
    "a-verdict-refuses": (lambda parts, _: evidence_of(parts, ships=False, refuses=True, verdict=Verdict.FAIL, reason="drop 0.03"), "drop 0.03"),
    "plan-of-another-engine": (plan_of_another_engine, "engine_sha256"),
    "other-rows": (other_rows, "rows_sha256"),
    "too-few-outputs": (too_few_outputs, "expected.npz: rows"),
    "other-outputs": (other_outputs, "expected.npz: names"),
    "evidence-of-another-engine": (lambda parts, _: evidence_of(parts, bound_to={"engine_sha256": "0" * 64}), "bound_to.engine_sha256"),
    "evidence-of-nothing": (lambda parts, _: evidence_of(parts, bound_to={}), "bound_to.engine_sha256"),
    "changed-blob": (changed_blob, "model.blob"),
    "changed-preprocess": (changed_preprocess, "preprocess.py"),
    "float-engine": (lambda parts, folder: {"engines": {TARGET: other_engine(parts, folder, precision="float32")}}, "precision"),
    "engine-of-another-target": (lambda parts, folder: {"engines": {TARGET: other_engine(parts, folder, target="x")}}, "target"),
    "engine-of-another-model": (
        lambda parts, folder: {"engines": {TARGET: other_engine(parts, folder, inputs=(TensorSpec("x", "float32", ("batch", 1)),))}},
        "inputs",
    ),
    "private-path": (lambda *_: {"provenance": {"data": f"{Path.cwd()}/build/data"}}, str(Path.cwd())),
    "private-path-in-evidence": (lambda parts, _: evidence_of(parts, machine={"python": f"{ROOT}/.venv/bin/python"}), str(ROOT)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_release_leaves_the_previous_one_as_it_was(parts: dict[str, Any], tmp_path: Path, name: str) -> None:
    packed = pack(parts, tmp_path / "build/release")
    before = contents(tmp_path / "build")
    change, part = REFUSED[name]
    changes = change(parts, tmp_path / "changed")
    with pytest.raises(Refused) as caught:
        pack(parts, tmp_path / "build/release", **changes)
    assert part in str(caught.value)
    assert caught.value.exit_code == 3
    assert contents(tmp_path / "build") == before
    assert packed.is_dir()
    with pytest.raises(Refused):
        pack(parts, tmp_path / "fresh/release", **changes)
    assert not (tmp_path / "fresh").exists()


def test_a_target_that_is_not_required_is_left_out_and_said_so(parts: dict[str, Any], tmp_path: Path) -> None:
    [evidence] = parts["evidences"]
    other: Evidence = dataclasses.replace(
        evidence, target="onnxruntime-cpu", required=False, ships=False, verdict=Verdict.FAIL, reason="slower than FP32"
    )
    packed = pack(parts, tmp_path / "release", evidences=[evidence, other])
    manifest = json.loads((packed / "manifest.json").read_text())
    assert manifest["left_out"]["onnxruntime-cpu"] == "slower than FP32"
    assert "onnxruntime-cpu: slower than FP32" in (packed / "README.md").read_text()
    assert [target["target"] for target in manifest["targets"]] == [TARGET]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import torch\n\ndef prepare(raw): ...\n", "torch (line 1)"),
        ("def prepare(raw):\n    from PIL import Image\n", "PIL (line 2)"),
        ("from .near import x\n\ndef prepare(raw): ...\n", ".near"),
        ("import numpy as np, json\n\ndef other(raw): ...\n", "top-level prepare"),
    ],
)
def test_preprocessing_that_no_host_can_run(parts: dict[str, Any], tmp_path: Path, source: str, part: str) -> None:
    path = tmp_path / "preprocess.py"
    path.write_text(source)
    roles = dataclasses.replace(parts["roles"], preprocess_sha256=hashlib.sha256(source.encode()).hexdigest())
    with pytest.raises(ConfigError) as caught:
        pack(parts, tmp_path / "release", preprocess=(path, "prepare"), roles=roles)
    assert part in str(caught.value)


@pytest.mark.parametrize("changes", [{"name": "../x"}, {"name": ""}, {"version": "1/2"}, {"version": ".."}, {"name": "a b"}])
def test_names_that_are_no_folder(parts: dict[str, Any], tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        pack(parts, tmp_path / "release", **changes)


def test_missing_and_torn_parts_are_named(parts: dict[str, Any], tmp_path: Path) -> None:
    for name in ("plan.json", "rows.npz", "expected.npz"):
        warm = copied_warm(parts, tmp_path / f"missing-{name}")
        (warm / name).unlink()
        with pytest.raises(RecordError, match=name.replace(".", r"\.")):
            pack(parts, tmp_path / "release", warm={TARGET: warm})
        (warm / name).write_bytes(b"PK\x03\x04 torn")
        with pytest.raises(RecordError, match=name.replace(".", r"\.")):
            pack(parts, tmp_path / "release", warm={TARGET: warm})
    engine = other_engine(parts, tmp_path / "engine")
    (engine / "model.blob").unlink()
    with pytest.raises(RecordError, match=r"model\.blob"):
        pack(parts, tmp_path / "release", engines={TARGET: engine})
    assert not (tmp_path / "release").exists()


def test_a_full_disk_leaves_the_previous_bundle(parts: dict[str, Any], tmp_path: Path) -> None:
    """A real limit of the operating system on the size of files; the interpreter ignores its signal and sees EFBIG."""
    packed = pack(parts, tmp_path / "release")
    before = contents(tmp_path / "release")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(DiskFullError):
            pack(parts, tmp_path / "release", provenance={"code": "larger"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path / "release") == before
    assert list((tmp_path / ".packing").iterdir()) == []
    assert packed.is_dir()


def test_private_paths(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    home = str(tmp_path)
    assert find_private_path(f'{{"a": "{home}/x/y.npz"}}'.encode(), [home]) == f"{home}/x"
    assert find_private_path(b"\x00\x12" + f"{home}".encode() + b"\x00", [home]) == home
    assert find_private_path(f"{home}2/x".encode(), [home]) is None
    assert find_private_path(b"/root/Conv /root/Relu", ["/root"]) is None
    (tmp_path / "data.npz").touch()
    assert find_private_path(f'{{"data": "{home}/data.npz"}}'.encode(), []) == f"{home}/data.npz"
    assert find_private_path(f'{{"data": "{home}/none.npz"}}'.encode(), []) is None
    assert find_private_path(b"#!/usr/bin/env python3\nGET /v2/health/ready", []) is None
    existing = next(entry.name for entry in Path("/usr").iterdir() if entry.name.isalnum())
    assert find_private_path(f"/usr/Conv /usr/{existing}/x".encode(), ["/usr"]) == f"/usr/{existing}"
