"""Who made this bundle? Checks the signature that OpenSSF's `model-signing` wrote, with `cryptography` alone.

The file is a Sigstore bundle v0.3 (docs.sigstore.dev/about/bundle) around a DSSE envelope (github.com/secure-systems-lab/dsse)
around an in-toto statement that lists the sha256 of every file of the folder. The envelope's signature is checked before the
statement is parsed, and all of it before anything else of the bundle is. `cryptography` is imported only when a key is given.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

from fleet.contents import KEEP, read_regular, shown
from fleet.manifest import SIGNATURE, strict_json
from pipeline.errors import ConfigError, QwarmError, Refused

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://model_signing/signature/v1.0"}
SERIALIZATION = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Curves that model-signing takes, and the digest that goes with each."""
MAX_KEY_BYTES, MAX_SIGNATURE_BYTES = 64 << 10, 64 << 20
OTHER_KEY = "give the public key that belongs to whoever released this bundle; until then keep serving the previous release"


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """An elliptic-curve public key; `fingerprint` is the sha256 of its PEM, which signatures carry as a hint."""

    path: Path
    fingerprint: str
    key: Any

    @property
    def said(self) -> str:
        """How `verify` names it."""
        return f"{self.path.name}, sha256 {self.fingerprint}"

    def signed(self, signature: bytes, message: bytes) -> bool:
        """Whether this key's owner signed `message` (ECDSA, FIPS 186-5)."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            self.key.verify(signature, message, ec.ECDSA(getattr(hashes, CURVES[self.key.curve.name])()))
        except InvalidSignature:
            return False
        return True


def load_key(path: str | os.PathLike[str]) -> PublicKey:
    """Read a PEM public key.

    Raises ConfigError when the file cannot be read, Refused when it is not a public key on a curve of CURVES, QwarmError
    when `cryptography` is not installed.
    """
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        next = "give the path of the public key (PEM) of whoever released the bundle"
        raise ConfigError("The public key cannot be read", where=str(path), expected="a readable file", got=str(error), next=next) from error
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise QwarmError(
            "A signature cannot be checked on this host",
            where="--key",
            expected="the package cryptography",
            got=str(error),
            next="python3 -m pip install cryptography (the bundle's README.md names the version)",
        ) from error
    try:
        if b"PRIVATE KEY" in content:
            raise ValueError("a private key, which no host should have")
        key = serialization.load_pem_public_key(content[:MAX_KEY_BYTES])
    except (ValueError, UnsupportedAlgorithm) as error:
        raise key_refused(path, "a public key in PEM", str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        got = f"curve {key.curve.name}" if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.strip("_")
        raise key_refused(path, f"an elliptic-curve key on one of {', '.join(CURVES)}", got)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(Path(path), hashlib.sha256(pem).hexdigest(), key)


def key_refused(path: str | os.PathLike[str], expected: str, got: str) -> Refused:
    """The refusal of a key that cannot have signed a bundle."""
    return Refused("The key cannot have signed a bundle", where=str(path), expected=expected, got=shown(got[:200]), next=OTHER_KEY)


def signed_files(folder: Path, key: PublicKey) -> dict[str, str]:
    """sha256 of each file that `key` signed in `folder`, by its path.

    Raises Refused when there is no signature, when it is not one, or when another key made it. What is in the folder is
    not looked at: compare it with what is returned.
    """
    try:
        content = read_regular(folder / SIGNATURE, MAX_SIGNATURE_BYTES)
    except FileNotFoundError as error:
        raise Refused(
            "A key was given, but the bundle has no signature",
            where=str(folder / SIGNATURE),
            expected=f"a signature by the key {key.path}",
            got="no file",
            next="ask for a signed bundle; until then keep serving the previous release",
        ) from error
    except OSError as error:
        raise Refused("The signature cannot be read", where=SIGNATURE, expected="a regular file", got=str(error), next=KEEP) from error
    try:
        payload, signature, hint = envelope(content)
    except (ValueError, KeyError, TypeError) as error:
        raise malformed("a Sigstore bundle v0.3 with one DSSE signature", error) from error
    message = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    same = hint == key.fingerprint
    if not same or not key.signed(signature, message):
        raise Refused(
            "The signature does not hold" if same else "The bundle is signed with another key",
            where=SIGNATURE,
            expected=f"a signature by {key.path} (sha256 {key.fingerprint})",
            got="a signed statement that was changed" if same else f"one that says it is by the key with sha256 {shown(str(hint))[:80]}",
            next=KEEP if same else OTHER_KEY,
        )
    try:
        return resources(strict_json(payload))
    except (ValueError, KeyError, TypeError) as error:
        raise malformed("a statement of model-signing 1.0 over sha256 of files", error) from error


def malformed(expected: str, error: Exception) -> Refused:
    """The refusal of a signature file that is not one."""
    got = f"no {error}" if isinstance(error, KeyError) else shown(str(error))[:200]
    return Refused("The signature is malformed", where=SIGNATURE, expected=expected, got=got, next=KEEP)


def demand(what: str, expected: object, got: object) -> None:
    """Raise ValueError unless equal."""
    if expected != got:
        raise ValueError(f"{what} is {got!r} instead of {expected!r}"[:200])


def envelope(content: bytes) -> tuple[bytes, bytes, Any]:
    """(payload, signature, hint of the key) of a Sigstore bundle with nothing else in it; raises ValueError, KeyError or TypeError."""
    bundle = strict_json(content)
    demand("mediaType", MEDIA_TYPE, bundle["mediaType"])
    demand("payloadType", PAYLOAD_TYPE, bundle["dsseEnvelope"]["payloadType"])
    [signature] = bundle["dsseEnvelope"]["signatures"]
    hint = bundle["verificationMaterial"]["publicKey"]["hint"]
    payload, proof = (base64.b64decode(text, validate=True) for text in (bundle["dsseEnvelope"]["payload"], signature["sig"]))
    texts = [base64.b64encode(each).decode() for each in (payload, proof)]
    whole = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": {"payload": texts[0], "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": texts[1], "keyid": ""}]},
    }
    if bundle != whole:
        raise ValueError("something else than what model-signing writes for a key")
    return payload, proof, hint


def resources(statement: Any) -> dict[str, str]:
    """Path to sha256 of an in-toto statement by model-signing; raises ValueError, KeyError or TypeError."""
    for name, wanted in STATEMENT.items():
        demand(name, wanted, statement[name])
    predicate = statement["predicate"]
    for name, value in SERIALIZATION.items():
        demand(f"serialization.{name}", value, predicate["serialization"][name])
    found: dict[str, str] = {}
    for entry in predicate["resources"]:
        demand("algorithm", "sha256", entry["algorithm"])
        if not isinstance(entry["name"], str) or entry["name"] in found:
            raise ValueError(f"a file is listed twice or has no name: {entry['name']!r}")
        found[entry["name"]] = bytes.fromhex(entry["digest"]).hex()
    [subject] = statement["subject"]
    root = hashlib.sha256(b"".join(map(bytes.fromhex, found.values()))).hexdigest()
    demand("the subject's sha256", root, subject["digest"]["sha256"])
    return found
