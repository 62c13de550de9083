"""Small texts signed by an elliptic-curve key: waivers, and evidence by the runner that measured it. (A bundle's signature: release/signing.py.)"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from pipeline.errors import ConfigError


def sign(private_key: Path, message: bytes) -> str:
    """The signature, base64 of ECDSA with SHA-256. Raises ConfigError for a key that is missing, encrypted, readable by others or of another kind."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from release.signing import open_key

    open_key(private_key)
    key = serialization.load_pem_private_key(private_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # open_key refused every other
    return base64.b64encode(key.sign(message, ec.ECDSA(hashes.SHA256()))).decode()


def signed(public_key: Path, message: bytes, signature: str, *, where: str) -> bool:
    """Whether `signature` is that of `message` by `public_key` (PEM). Raises ConfigError, naming `where`, for a key that cannot be used."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError("A public key cannot be read", where=f"{where}: {public_key}", expected="a public key in PEM", got=str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError("A public key cannot be used", where=f"{where}: {public_key}", expected="an elliptic-curve key", got=type(key).__name__)
    try:
        key.verify(base64.b64decode(signature, validate=True), message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error):
        return False
    return True
