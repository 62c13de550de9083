"""Signing keys: made once, for their owner alone; and a signature that changes nothing else of a bundle."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pipeline.errors import ConfigError, Refused
from pipeline.loading import load_object
from release import bundle, signing

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)


def write_key(path: Path, key: Any, password: bytes | None = None) -> Path:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    path.chmod(0o600)
    return path


def test_a_development_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "build/keys/development.pem"
    key = signing.open_key(path, development=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert key.kind == "openssf-model-signing, development key"
    assert signing.open_key(path, development=True) == key
    assert signing.open_key(path).kind == "openssf-model-signing"


def test_two_makers_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "keys/development.pem"
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: signing.open_key(path, development=True), range(8)))
    assert len(set(keys)) == 1
    assert list(path.parent.iterdir()) == [path]


def test_the_public_key_is_written_once(tmp_path: Path) -> None:
    key = signing.open_key(tmp_path / "development.pem", development=True)
    path = key.write_public(tmp_path / "release/development.pub")
    written = path.stat().st_mtime_ns
    assert key.write_public(path).stat().st_mtime_ns == written
    assert path.read_bytes() == key.public_pem
    assert b"PRIVATE" not in key.public_pem


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    (tmp_path / "garbage.pem").write_bytes(b"a key")
    shared = write_key(tmp_path / "shared.pem", ec.generate_private_key(ec.SECP256R1()))
    shared.chmod(0o644)
    cases = {
        tmp_path / "none.pem": "No such file",
        tmp_path: "directory",
        tmp_path / "garbage.pem": "openssl ecparam",
        write_key(tmp_path / "rsa.pem", rsa.generate_private_key(65537, 2048)): "RSAPrivateKey",
        write_key(tmp_path / "curve.pem", ec.generate_private_key(ec.SECP256K1())): "secp256k1",
        write_key(tmp_path / "encrypted.pem", ec.generate_private_key(ec.SECP256R1()), b"secret"): "an encrypted key",
        shared: "mode 0644",
    }
    for path, part in cases.items():
        with pytest.raises(ConfigError) as caught:
            signing.open_key(path)
        assert part in str(caught.value), path
        assert str(path) in caught.value.where
        assert caught.value.next


def test_a_signed_bundle_differs_in_nothing_but_its_signature(tmp_path: Path) -> None:
    parts = make_parts(tmp_path / "parts")
    key = signing.open_key(tmp_path / "development.pem", development=True)
    folders = [bundle.pack(tmp_path / name / "release", **parts, key=key) for name in ("a", "b")]
    files = [{path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()} for folder in folders]
    differing = {name for name, content in files[0].items() if files[1][name] != content}
    assert differing == {signing.SIGNATURE}
    manifest = json.loads(files[0]["manifest.json"])
    assert manifest["signature"] == key.kind
    assert signing.SIGNATURE not in manifest["files"]
    assert b"private" not in b"".join(files[0].values()).lower()
    text = files[0]["README.md"].decode()
    for part in ("signed with a development key", "verify tiny-0.0.1 --key development.pub", 'key="development.pub"', signing.SIGNATURE):
        assert part in text
    unsigned = (bundle.pack(tmp_path / "c/release", **parts) / "README.md").read_text()
    for part in ("not signed", "verify tiny-0.0.1 --allow-unsigned", "allow_unsigned=True"):
        assert part in unsigned


def test_what_cannot_be_signed(tmp_path: Path) -> None:
    key = signing.open_key(tmp_path / "development.pem", development=True)
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "development.pem")
    with pytest.raises(Refused, match="cannot be signed"):
        signing.sign(folder, key, "bundle")
    assert not (folder / signing.SIGNATURE).exists()
