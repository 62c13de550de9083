"""Publishing: an OCI layout that another tool's rules hold for, GTO tags and `dvc artifacts get` from a local remote; nothing is overwritten."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from fleet.verify import verify
from pipeline.errors import ConfigError, RecordError, Refused
from pipeline.loading import load_object
from release import bundle, oci

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def packed(parts: dict[str, Any], tmp_path: Path) -> Path:
    return bundle.pack(tmp_path / "release", **parts)


def blob(layout: Path, digest: str) -> bytes:
    content = (layout / "blobs" / digest.replace(":", "/")).read_bytes()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    return content


def test_the_layout_is_what_the_specification_says(packed: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digest = oci.publish(packed, layout)
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    assert (entry["digest"], entry["annotations"]) == (digest, {"org.opencontainers.image.ref.name": "0.0.1"})
    manifest = json.loads(blob(layout, digest))
    assert (manifest["schemaVersion"], manifest["mediaType"], manifest["artifactType"]) == (2, oci.MANIFEST, oci.ARTIFACT)
    assert blob(layout, manifest["config"]["digest"]) == b"{}"
    [layer] = manifest["layers"]
    assert (len(blob(layout, layer["digest"])), len(blob(layout, digest))) == (layer["size"], entry["size"])
    with tarfile.open(fileobj=io.BytesIO(blob(layout, layer["digest"]))) as archive:
        entries = archive.getmembers()
    assert {(member.uid, member.gid, member.mtime, member.mode) for member in entries} == {(0, 0, 0, 0o644)}
    assert sorted(path.name for path in (layout / "blobs/sha256").iterdir()) == sorted(
        each.removeprefix("sha256:") for each in (digest, layer["digest"], manifest["config"]["digest"])
    )


def test_a_bundle_goes_there_and_back(packed: Path, tmp_path: Path) -> None:
    oci.publish(packed, tmp_path / "layout")
    back = oci.fetch(tmp_path / "layout", "0.0.1", tmp_path / "host")
    assert back == tmp_path / "host/tiny-0.0.1"
    assert verify(back, allow_unsigned=True).digest == verify(packed, allow_unsigned=True).digest


def test_equal_bundles_have_equal_digests_and_a_published_version_never_changes(parts: dict[str, Any], packed: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digest = oci.publish(packed, layout)
    again = bundle.pack(tmp_path / "again", **parts)
    assert oci.publish(again, layout) == digest
    other = bundle.pack(tmp_path / "other", **{**parts, "provenance": {"code": "changed"}})
    before = (layout / "index.json").read_bytes()
    with pytest.raises(Refused, match=r"(?s)already published with another content.*0.0.1.*raise release.version"):
        oci.publish(other, layout)
    assert (layout / "index.json").read_bytes() == before
    newer = bundle.pack(tmp_path / "other", **{**parts, "version": "0.0.2"})
    oci.publish(newer, layout)
    assert len(json.loads((layout / "index.json").read_text())["manifests"]) == 2


def test_what_is_wrong_is_refused_by_name(packed: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    with pytest.raises(ConfigError, match="no bundle"):
        oci.publish(tmp_path, layout)
    oci.publish(packed, layout)
    with pytest.raises(ConfigError, match=r"(?s)no such version.*0.0.1.*9.9.9"):
        oci.fetch(layout, "9.9.9", tmp_path / "host")
    largest = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"x")
    with pytest.raises(Refused, match=largest.name):
        oci.fetch(layout, "0.0.1", tmp_path / "host")
    assert not (tmp_path / "host").exists()
    (layout / "index.json").write_text("[]")
    with pytest.raises(RecordError, match="index.json"):
        oci.publish(packed, layout)
    (packed / "link").symlink_to("labels.json")
    with pytest.raises(Refused, match="link"):
        oci.publish(packed, tmp_path / "layout2")


@pytest.mark.parametrize(
    ("title", "member"), [("../out", "../out/x"), ("/{tmp}/out", "/{tmp}/out/x"), ("", "/{tmp}/out/x"), ("a", "a/../../out/x"), ("a", "b/x")]
)
def test_a_layer_that_reaches_out_of_its_folder_is_refused(packed: Path, tmp_path: Path, title: str, member: str) -> None:
    layout = tmp_path / "layout"
    oci.publish(packed, layout)
    title, member = (text.replace("/{tmp}", str(tmp_path)) for text in (title, member))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))

    def stored(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (layout / "blobs/sha256" / digest).write_bytes(content)
        return f"sha256:{digest}"

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(layout, index["manifests"][0]["digest"]))
    manifest["layers"][0] |= {"digest": stored(made.getvalue()), "annotations": {"org.opencontainers.image.title": title}}
    index["manifests"][0]["digest"] = stored(json.dumps(manifest).encode())
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(Refused, match="holds what it may not"):
        oci.fetch(layout, "0.0.1", tmp_path / "host")
    assert not (tmp_path / "out").exists()


def test_the_command(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", str(packed), str(tmp_path / "layout"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"].startswith("sha256:")
    assert run(["publish", str(tmp_path / "host"), str(tmp_path / "layout"), "--fetch", "0.0.1"]) == 0
    assert "verify it before use" in capsys.readouterr().out


def test_a_gto_tag_names_what_dvc_artifacts_get_brings_from_a_local_remote(packed: Path, tmp_path: Path) -> None:
    project, environment = tmp_path / "project", {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def command(*arguments: str, folder: Path = project) -> str:
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    project.mkdir()
    command("git", "init", "-q")
    command("git", "config", "user.name", "a")
    command("git", "config", "user.email", "a@example.com")
    command("dvc", "init", "-q")
    command("dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    packed.parent.rename(project / "release")
    command("dvc", "add", "-q", "release")
    (project / "dvc.yaml").write_text("artifacts:\n  tiny:\n    path: release\n    type: model\n")
    command("git", "add", "-A")
    command("git", "commit", "-q", "-m", "release")
    command("dvc", "push", "-q")
    command("gto", "register", "tiny", "--version", "v0.0.1")
    assert command("git", "tag", "--list").split() == ["tiny@v0.0.1"]
    command("dvc", "artifacts", "get", str(project), "tiny", "--rev", "v0.0.1", "-o", "fetched", folder=tmp_path)
    assert verify(tmp_path / "fetched/tiny-0.0.1", allow_unsigned=True).manifest.version == "0.0.1"
