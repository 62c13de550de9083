"""A signature vouches for the whole bundle: whatever else lies there, or another key, is refused by name before it is parsed."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from test_verify import refusal, reseal

from fleet import manifest as manifests
from fleet.main import main
from fleet.signature import CURVES, load_key
from fleet.verify import verify
from pipeline.errors import ConfigError, QwarmError
from release import signing

Copy = Callable[[], Path]
SIGNATURE = "signature.sigstore.json"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[signing.SigningKey, Path]:
    """Somebody else's keys."""
    folder = tmp_path_factory.mktemp("other")
    key = signing.open_key(folder / "other.pem", development=True)
    return key, key.write_public(folder / "other.pub")


def edit(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the JSON of the signature file."""
    content = json.loads((bundle / SIGNATURE).read_text())
    change(content)
    (bundle / SIGNATURE).write_text(json.dumps(content))


def edit_statement(bundle: Path, change: Callable[[dict[str, Any]], Any], key: signing.SigningKey) -> None:
    """Change the statement and sign it anew with `key`: what only the key's owner could do."""
    content = json.loads((bundle / SIGNATURE).read_text())
    statement = json.loads(base64.b64decode(content["dsseEnvelope"]["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    kind = content["dsseEnvelope"]["payloadType"].encode()
    private = serialization.load_pem_private_key(key.path.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    from cryptography.hazmat.primitives import hashes

    proof = private.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload), ec.ECDSA(hashes.SHA256()))
    content["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    content["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(proof).decode()
    (bundle / SIGNATURE).write_text(json.dumps(content))


def test_the_right_key(bundle: Path, public_key: Path) -> None:
    verified = verify(bundle, public_key)
    assert verified.manifest.signature == "openssf-model-signing, development key"
    assert verified.origin.startswith("signed (openssf-model-signing, development key) by development.pub, sha256 ")
    assert load_key(public_key).fingerprint in verified.origin
    assert (manifests.SIGNATURE, manifests.UNSIGNED, tuple(CURVES)) == (signing.SIGNATURE, signing.UNSIGNED, signing.CURVES)


def test_openssf_agrees(bundle: Path, public_key: Path, copy: Copy) -> None:
    """The OpenSSF command itself verifies what is packed, and refuses what is changed."""

    def model_signing(folder: Path) -> subprocess.CompletedProcess[str]:
        command = ["-m", "model_signing", "verify", "key", str(folder), "--signature", str(folder / SIGNATURE), "--public_key", str(public_key)]
        return subprocess.run([sys.executable, *command], capture_output=True, text=True)

    assert model_signing(bundle).returncode == 0
    broken = copy()
    (broken / "labels.json").write_text("[]")
    run = model_signing(broken)
    assert run.returncode == 1
    assert "labels.json" in run.stderr


def test_forgery_is_caught(copy: Copy, public_key: Path) -> None:
    """A changed manifest with its checksum made right passes for integrity, and not for origin."""
    forged = copy()
    reseal(forged, lambda manifest: manifest.update(version="6.6.6"))
    assert verify(forged, allow_unsigned=True).manifest.version == "6.6.6"
    message = refusal(forged, public_key)
    assert "changed after it was signed" in message
    assert "manifest.json" in message


def test_a_whole_forged_bundle_is_caught_without_parsing_it(copy: Copy, public_key: Path, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = copy()
    reseal(forged, lambda manifest: manifest.update(version="6.6.6"))
    signing.sign(forged, other[0], forged.name)
    assert verify(forged, other[1]).manifest.version == "6.6.6"
    monkeypatch.setattr("fleet.verify.parse_manifest", lambda *_: pytest.fail("the manifest was parsed before its signature was checked"))
    monkeypatch.setattr("fleet.signature.resources", lambda *_: pytest.fail("the statement was parsed before its signature was checked"))
    message = refusal(forged, public_key)
    assert "signed with another key" in message
    assert load_key(other[1]).fingerprint in message
    edit(forged, lambda content: content["verificationMaterial"]["publicKey"].update(hint=load_key(public_key).fingerprint))
    assert "The signature does not hold" in refusal(forged, public_key)


def test_another_key(bundle: Path, other: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle), "--key", str(other[1]), "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "The bundle is signed with another key"
    assert answer["where"] == SIGNATURE


def test_no_signature(parts: dict[str, Any], copy: Copy, public_key: Path, tmp_path: Path) -> None:
    unsigned = tiny.pack(parts, tmp_path / "release")
    assert verify(unsigned, allow_unsigned=True).manifest.signature == "none"
    assert not (unsigned / SIGNATURE).exists()
    assert "the bundle has no signature" in refusal(unsigned, public_key)
    stripped = copy()
    (stripped / SIGNATURE).unlink()
    assert f"{SIGNATURE}: missing" in refusal(stripped)
    reseal(stripped, lambda manifest: manifest.update(signature="none"))
    assert "the bundle has no signature" in refusal(stripped, public_key)
    verify(stripped, allow_unsigned=True)


def test_a_signature_where_the_manifest_says_none(parts: dict[str, Any], bundle: Path, tmp_path: Path) -> None:
    unsigned = tiny.pack(parts, tmp_path / "release")
    shutil.copy(bundle / SIGNATURE, unsigned)
    assert f"{SIGNATURE}: extra" in refusal(unsigned)


def test_signature_of_another_bundle(parts: dict[str, Any], copy: Copy, signing_key: signing.SigningKey, public_key: Path, tmp_path: Path) -> None:
    later = tiny.pack(parts, tmp_path / "release", version="0.0.2", key=signing_key)
    swapped = copy()
    shutil.copy(later / SIGNATURE, swapped)
    assert "The signature is of another bundle" in refusal(swapped, public_key)


def test_every_kind_of_tampering_under_a_key(copy: Copy, public_key: Path, tmp_path: Path) -> None:
    """As without a key, each by name: extra, missing, renamed, truncated, linked."""
    blob = "targets/openvino-cpu/model.blob"
    broken = copy()
    (broken / "extra.txt").write_text("")
    (broken / "warmup/rows.npz").unlink()
    (broken / "labels.json").rename(broken / "names.json")
    (broken / blob).write_bytes((broken / blob).read_bytes()[:-1])
    (broken / "README.md").rename(tmp_path / "README.md")
    (broken / "README.md").symlink_to(tmp_path / "README.md")
    message = refusal(broken, public_key)
    for part in ("extra.txt: extra", "rows.npz: missing", "labels.json: renamed to names.json", f"{blob}: truncated", "README.md: a symbolic link"):
        assert part in message
    linked = copy()
    (linked / SIGNATURE).rename(tmp_path / SIGNATURE)
    (linked / SIGNATURE).symlink_to(tmp_path / SIGNATURE)
    assert SIGNATURE in refusal(linked, public_key)
    assert f"{SIGNATURE}: a symbolic link" in refusal(linked)


def test_escaping_paths_under_a_key(copy: Copy, signing_key: signing.SigningKey, public_key: Path) -> None:
    """Also when the key's owner signed them."""
    broken = copy()
    (broken.parent / "outside").write_bytes(b"")
    reseal(broken, lambda manifest: manifest["files"].update({"../outside": {"bytes": 0, "sha256": "0" * 64}}))
    signing.sign(broken, signing_key, broken.name)
    assert "escapes the bundle" in refusal(broken, public_key)


def test_signed_but_not_what_the_manifest_lists(copy: Copy, signing_key: signing.SigningKey, public_key: Path) -> None:
    def another(statement: dict[str, Any]) -> None:
        entries = statement["predicate"]["resources"]
        entries[0]["name"] = "other"
        assert entries[0]["name"] != "manifest.json"

    broken = copy()
    edit_statement(broken, another, signing_key)
    message = refusal(broken, public_key)
    assert "other: not as signed" in message
    assert "README.md: not as signed" in message


MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no-envelope": lambda content: content.pop("dsseEnvelope"),
    "media-type": lambda content: content.update(mediaType="application/vnd.dev.sigstore.bundle.v0.1+json"),
    "payload-type": lambda content: content["dsseEnvelope"].update(payloadType="text/plain"),
    "no-signature": lambda content: content["dsseEnvelope"].update(signatures=[]),
    "two-signatures": lambda content: content["dsseEnvelope"]["signatures"].append(content["dsseEnvelope"]["signatures"][0]),
    "not-base64": lambda content: content["dsseEnvelope"].update(payload="%%%"),
    "not-text": lambda content: content["dsseEnvelope"]["signatures"][0].update(sig=None),
    "more-keys": lambda content: content.update(certificate="x"),
    "material": lambda content: content.update(verificationMaterial=[]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(copy: Copy, public_key: Path, name: str) -> None:
    broken = copy()
    edit(broken, MALFORMED[name])
    assert "The signature is malformed" in refusal(broken, public_key)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"1"], ids=repr)
def test_garbage(copy: Copy, public_key: Path, content: bytes) -> None:
    broken = copy()
    (broken / SIGNATURE).write_bytes(content)
    message = refusal(broken, public_key)
    assert "The signature is malformed" in message
    assert SIGNATURE in message


STATEMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "type": lambda statement: statement.update(_type="x"),
    "predicate-type": lambda statement: statement.update(predicateType="https://model_signing/Digests/v0.1"),
    "no-predicate": lambda statement: statement.pop("predicate"),
    "shards": lambda statement: statement["predicate"]["serialization"].update(method="shards"),
    "symlinks": lambda statement: statement["predicate"]["serialization"].update(allow_symlinks=True),
    "blake": lambda statement: statement["predicate"]["resources"][0].update(algorithm="blake3"),
    "twice": lambda statement: statement["predicate"]["resources"].append(statement["predicate"]["resources"][0]),
    "not-hex": lambda statement: statement["predicate"]["resources"][0].update(digest="zz"),
    "root": lambda statement: statement["predicate"]["resources"].pop(),
    "two-subjects": lambda statement: statement["subject"].append(statement["subject"][0]),
    "resources": lambda statement: statement["predicate"].update(resources=None),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_that_say_something_else(copy: Copy, signing_key: signing.SigningKey, public_key: Path, name: str) -> None:
    broken = copy()
    edit_statement(broken, STATEMENTS[name], signing_key)
    assert "The signature is malformed" in refusal(broken, public_key)


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def test_keys_that_are_none(bundle: Path, signing_key: signing.SigningKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {
        "garbage": (b"a key", "PEM"),
        "empty": (b"", "PEM"),
        "binary": (bytes(range(256)), "PEM"),
        "rsa": (pem(rsa.generate_private_key(65537, 2048)), "RSAPublicKey"),
        "ed25519": (pem(ed25519.Ed25519PrivateKey.generate()), "Ed25519PublicKey"),
        "curve": (pem(ec.generate_private_key(ec.SECP256K1())), "secp256k1"),
        "private": (signing_key.path.read_bytes(), "a private key"),
    }
    for name, (content, part) in contents.items():
        path = tmp_path / f"{name}.pub"
        path.write_bytes(content)
        assert main(["verify", str(bundle), "--key", str(path)]) == 3, name
        message = capsys.readouterr().err
        assert part in message
        assert str(path) in message
    for path in (tmp_path / "none.pub", tmp_path):
        assert main(["verify", str(bundle), "--key", str(path)]) == 2
        assert "The public key cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_other_curves(copy: Copy, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    path = tmp_path / "key.pem"
    private = ec.generate_private_key(curve)
    path.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    path.chmod(0o600)
    key = signing.open_key(path)
    signed = copy()
    signing.sign(signed, key, signed.name)
    assert verify(signed, key.write_public(tmp_path / "key.pub")).origin


def test_without_cryptography(bundle: Path, public_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(QwarmError, match="pip install cryptography"):
        verify(bundle, public_key)
    assert verify(bundle, allow_unsigned=True)


def test_a_key_and_leave_to_go_without(bundle: Path, public_key: Path) -> None:
    with pytest.raises(ConfigError, match="contradict"):
        verify(bundle, public_key, allow_unsigned=True)
