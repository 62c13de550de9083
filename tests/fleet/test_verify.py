"""Whatever is done to a bundle, `verify` refuses it by the name of the file, before anything is deserialized."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.main import main
from fleet.manifest import path_fault
from fleet.verify import verify
from pipeline.errors import ConfigError, Refused

BLOB = "targets/openvino-cpu/model.blob"
Copy = Callable[[], Path]


def reseal(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the manifest and make manifest.sha256 agree: what someone who can write the folder would do."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    write_manifest(bundle, json.dumps(manifest).encode())


def write_manifest(bundle: Path, content: bytes) -> None:
    (bundle / "manifest.json").write_bytes(content)
    (bundle / "manifest.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  manifest.json\n")


def refusal(bundle: Path, key: Path | None = None) -> str:
    """Why `verify` refuses; without a key, as a host that takes unsigned bundles."""
    with pytest.raises(Refused) as caught:
        verify(bundle, key, allow_unsigned=key is None)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_intact(bundle: Path) -> None:
    verified = verify(bundle, allow_unsigned=True)
    assert verified.digest == hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    assert verified.origin == "integrity only, origin unknown"
    assert (verified.manifest.name, verified.manifest.version) == ("tiny", "0.0.1")
    listed = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    listed -= {"manifest.json", "manifest.sha256", "signature.sigstore.json"}
    assert set(verified.manifest.files) == listed


def test_one_flipped_byte_in_every_file(copy: Copy, public_key: Path) -> None:
    broken = copy()
    names = sorted(path.relative_to(broken).as_posix() for path in broken.rglob("*") if path.is_file())
    assert BLOB in names
    assert len(names) == 13
    for name in names:
        path = broken / name
        original = path.read_bytes()
        for position in {0, len(original) // 2, len(original) - 1}:
            changed = bytearray(original)
            changed[position] ^= 1
            path.write_bytes(changed)
            assert name in refusal(broken, public_key), f"byte {position} of {name}"
            if name != "signature.sigstore.json":
                assert name in refusal(broken), f"byte {position} of {name}"
        path.write_bytes(original)
    verify(broken, public_key)


def test_every_problem_is_named_at_once(copy: Copy) -> None:
    broken = copy()
    (broken / "labels.json").write_text("[]")
    (broken / BLOB).write_bytes((broken / BLOB).read_bytes()[:-1])
    (broken / "warmup/rows.npz").unlink()
    (broken / "extra.txt").write_text("")
    message = refusal(broken)
    for part in ("labels.json: truncated", f"{BLOB}: truncated", "warmup/rows.npz: missing", "extra.txt: extra"):
        assert part in message


def test_longer_and_renamed(copy: Copy) -> None:
    broken = copy()
    with open(broken / "README.md", "a") as stream:
        stream.write("x")
    (broken / BLOB).rename(broken / "targets/openvino-cpu/other.blob")
    message = refusal(broken)
    assert "README.md: longer" in message
    assert f"{BLOB}: renamed to targets/openvino-cpu/other.blob" in message
    assert "extra" not in message


def test_links_pipes_and_folders(copy: Copy, tmp_path: Path) -> None:
    broken = copy()
    outside = tmp_path / "outside.blob"
    (broken / BLOB).rename(outside)
    (broken / BLOB).symlink_to(outside)
    (broken / "targets/more").mkdir()
    (broken / "labels.json").unlink()
    os.mkfifo(broken / "labels.json")
    message = refusal(broken)
    assert f"{BLOB}: a symbolic link" in message
    assert "targets/more: an extra folder" in message
    assert "labels.json: not a regular file" in message


def test_a_linked_folder_inside(copy: Copy, tmp_path: Path) -> None:
    broken = copy()
    (broken / "warmup").rename(tmp_path / "warmup")
    (broken / "warmup").symlink_to(tmp_path / "warmup")
    assert "warmup: a symbolic link" in refusal(broken)


def test_a_link_to_the_bundle_is_how_fleets_switch(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle)
    assert verify(tmp_path / "current", allow_unsigned=True).folder == bundle.resolve()


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256"])
def test_manifest_pair(copy: Copy, name: str) -> None:
    broken = copy()
    (broken / name).unlink()
    assert name in refusal(broken)
    (broken / name).symlink_to("labels.json")
    assert name in refusal(broken)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 100_000, b'{"schema": "qwarm.manifest/1", "schema": "x"}', b'{"a": NaN}', b"1" * 5000],
    ids=["empty", "torn", "not-utf8", "list", "null", "no-keys", "deep", "twice", "nan", "long"],
)
def test_garbage_manifest(copy: Copy, content: bytes) -> None:
    broken = copy()
    write_manifest(broken, content)
    assert "manifest" in refusal(broken)


def test_manifest_of_a_newer_schema(copy: Copy) -> None:
    broken = copy()
    reseal(broken, lambda manifest: manifest.update(schema="qwarm.manifest/2"))
    assert "qwarm.manifest/2" in refusal(broken)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("../outside", "escapes"),
        ("a/../../outside", "escapes"),
        ("/etc/passwd", "absolute"),
        ("a\\b", "POSIX"),
        ("C:/x", "POSIX"),
        ("a//b", "canonical"),
        ("./a", "canonical"),
        ("", "canonical"),
        ("a\nb", "unprintable"),
        ("manifest.json", "itself"),
        ("signature.sigstore.json", "itself"),
    ],
)
def test_escaping_paths(copy: Copy, path: str, fault: str) -> None:
    assert fault in (path_fault(path) or "")
    broken = copy()
    (broken.parent / "outside").write_bytes(b"")
    empty = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    reseal(broken, lambda manifest: manifest["files"].update({path: empty}))
    assert fault in refusal(broken)


def test_what_a_host_needs_must_be_listed(copy: Copy) -> None:
    broken = copy()
    reseal(broken, lambda manifest: manifest["files"].pop("preprocess.py"))
    (broken / "preprocess.py").unlink()
    assert "preprocess.py" in refusal(broken)


@pytest.mark.parametrize("field", ["engine_sha256", "plan_sha256", "evidence_sha256"])
def test_a_target_must_name_its_own_records(copy: Copy, field: str) -> None:
    broken = copy()
    reseal(broken, lambda manifest: manifest["targets"][0].update({field: "0" * 64}))
    message = refusal(broken)
    assert "do not belong together" in message
    assert f"openvino-cpu, {field}" in message


def test_read_checks_again(copy: Copy) -> None:
    changing = copy()
    verified = verify(changing, allow_unsigned=True)
    (changing / "preprocess.py").write_text("raise SystemExit('not what was verified')")
    with pytest.raises(Refused, match=r"preprocess\.py"):
        verified.read("preprocess.py")
    (changing / "labels.json").unlink()
    (changing / "labels.json").symlink_to("README.md")
    with pytest.raises(Refused, match=r"labels\.json"):
        verified.read("labels.json")
    with pytest.raises(Refused, match="not in the manifest"):
        verified.read("../outside")


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        verify(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        verify(tmp_path / "file")
    assert "manifest.json" in refusal(tmp_path)


def test_command(bundle: Path, public_key: Path, copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ["--key", str(public_key)]
    assert main(["verify", str(bundle)]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "integrity only, origin unknown" in streams.err
    assert main(["verify", str(bundle), "--allow-unsigned"]) == 0
    assert "integrity only, origin unknown" in capsys.readouterr().out
    assert main(["verify", str(bundle), *key]) == 0
    assert "signed (openssf-model-signing, development key) by development.pub" in capsys.readouterr().out
    assert main(["verify", str(bundle), "--json", *key]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verified"]
    assert answer["targets"] == {"openvino-cpu": "PASS"}
    broken = copy()
    (broken / "labels.json").write_text("[]")
    assert main(["verify", str(broken), *key]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("labels.json") == 1
    assert main(["verify", str(broken), "--json", *key]) == 3
    assert "labels.json" in json.loads(capsys.readouterr().out)["got"]
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert main(["verify", str(bundle), "--key", str(tmp_path / "x.pub")]) == 2
    with pytest.raises(SystemExit) as usage:
        main(["verify", str(bundle), *key, "--allow-unsigned"])
    assert usage.value.code == 2
