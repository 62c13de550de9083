"""What a bundle holds for people and auditors: package list, licences, model card, provenance; and a published version stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, Refused
from pipeline.loading import load_object
from release import additions, bundle, card, sbom, slsa
from release.published import refuse_published

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)
HOST = {name: metadata.version(name) for name in ("numpy", "openvino", "cryptography")}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


def test_the_package_list_holds_what_is_pulled_in_and_is_whole() -> None:
    packages = sbom.closure(HOST)
    names = {package.name for package in packages}
    assert set(HOST) <= names
    assert {"cffi", "openvino-telemetry"} <= names
    document = sbom.cyclonedx("digits", "0.1.0", packages)
    refs = {component["bom-ref"] for component in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
    assert {entry["ref"] for entry in document["dependencies"]} == refs
    assert all(set(entry["dependsOn"]) <= refs for entry in document["dependencies"])
    assert f"pkg:pypi/numpy@{HOST['numpy']}" in refs
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    text = sbom.licences(packages)
    assert all(f"| {package.name} | {package.version} |" in text for package in packages)
    assert sbom.UNKNOWN not in text.split("| numpy |")[1].splitlines()[0]


def test_a_package_of_another_version_is_listed_without_what_it_needs() -> None:
    [package] = sbom.closure({"Open_Vino.X": "1.0"})
    assert (package.name, package.licence, package.needs) == ("open-vino-x", sbom.UNKNOWN, ())
    [package] = sbom.closure({"numpy": "0.0.1"})
    assert package.version == "0.0.1"


def test_the_card_shows_what_was_shown_and_takes_the_owners_words(parts: dict[str, Any]) -> None:
    facts = {"exported": parts["exported"], "roles": parts["roles"], "evidences": parts["evidences"], "left_out": {"tensorrt": "no GPU"}}
    text = card.card("tiny", "0.0.1", owner=None, **facts)
    for part in (card.SAYS_NOTHING, "cat, dog, eel", "| accuracy | PASS | 0.10 %", "- tensorrt: no GPU", "| validation | 1 | main |"):
        assert part in text
    assert "For sorting mail only." in card.card("tiny", "0.0.1", owner="For sorting mail only.\n", **facts)
    with pytest.raises(ConfigError, match=r"(?s)card.*release.card: none.md"):
        additions._owner("none.md")


def test_provenance_names_what_the_bundle_is_made_of(parts: dict[str, Any], tmp_path: Path) -> None:
    made = {"code_sha256": "1" * 64, "lock_entries_sha256": {"export": "2" * 64}, "parameters": {"a": 1}, "versions": {"torch": "2"}}
    packed = bundle.pack(tmp_path, **{**parts, "provenance": made, "additions": {"MODEL_CARD.md": b"x", "triton/config.pbtxt": b"y"}})
    statement = json.loads((packed / "provenance.json").read_text())
    manifest = json.loads((packed / "manifest.json").read_text())
    subjects = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
    assert subjects == {path: entry["sha256"] for path, entry in manifest["files"].items() if path != "provenance.json"}
    assert {"MODEL_CARD.md", "triton/config.pbtxt"} <= set(subjects)
    built = statement["predicate"]["buildDefinition"]
    assert (statement["predicateType"], built["buildType"]) == ("https://slsa.dev/provenance/v1", slsa.BUILD_TYPE)
    assert built["externalParameters"] == {"a": 1}
    named = {entry["name"] for entry in built["resolvedDependencies"]}
    assert named == {"qwarm code", "dvc.lock: export", "float model (ONNX)", "checkpoint", "data role validation", "data role warmup"}
    readme = (packed / "README.md").read_text()
    assert "| targets/openvino-cpu |" in readme
    assert "| triton | 0.000 |" in readme


@pytest.mark.parametrize("path", ["labels.json", "README.md", "provenance.json", "manifest.json", "../out", "/out"])
def test_an_addition_takes_no_other_files_place(parts: dict[str, Any], tmp_path: Path, path: str) -> None:
    with pytest.raises(Refused, match="cannot be added"):
        bundle.pack(tmp_path, **{**parts, "additions": {path: b""}})
    assert list(tmp_path.glob("tiny*")) == []


def test_a_tagged_version_is_not_released_again_from_another_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments], cwd=tmp_path, check=True, capture_output=True)

    refuse_published("tiny", "0.1.0", tmp_path)  # no git yet
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    refuse_published("tiny", "0.1.0", tmp_path)
    git("tag", "-a", "tiny@v0.1.0", "-m", "released")
    refuse_published("tiny", "0.1.0", tmp_path)  # the tagged commit itself
    git("commit", "-q", "--allow-empty", "-m", "two")
    with pytest.raises(Refused, match=r"(?s)already released.*tiny@v0.1.0.*raise release.version"):
        refuse_published("tiny", "0.1.0", tmp_path)
    refuse_published("tiny", "0.1.1", tmp_path)
