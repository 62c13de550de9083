"""Sign a packed bundle with OpenSSF `model-signing`, so that a host can tell who made it: by an elliptic-curve key, or keyless (release/keyless.py).

The signature lists the sha256 of every file of the folder (Sigstore bundle v0.3, DSSE, in-toto) and lies beside
manifest.json, in none of its entries: ECDSA signatures differ from run to run, the rest of a bundle does not.
`model_signing verify key BUNDLE --signature BUNDLE/signature.sigstore.json --public_key PUB` checks it too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, Refused, disk_error
from pipeline.files import write_bytes
from release.keyless import Keyless, unreachable

SIGNATURE = "signature.sigstore.json"
UNSIGNED = "none"
KIND = "openssf-model-signing"
CURVES = ("secp256r1", "secp384r1", "secp521r1")


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """A private key on disk. `development`: made by qwarm itself on first use, and worth nothing to anyone else's trust."""

    path: Path
    development: bool
    public_pem: bytes
    host_package = "cryptography"
    """What a host needs to check such a signature."""

    def configure(self, config: Any) -> Any:
        """The signer of model-signing's configuration."""
        return config.use_elliptic_key_signer(private_key=self.path)

    @property
    def kind(self) -> str:
        """What a manifest calls the signature."""
        return f"{KIND}, development key" if self.development else KIND

    def write_public(self, path: str | Path) -> Path:
        """Write the public key as PEM, unless it is there already. Returns `path`."""
        path = Path(path)
        if not path.exists() or path.read_bytes() != self.public_pem:
            write_bytes(path, self.public_pem)
        return path


def open_key(path: str | Path, *, development: bool = False) -> SigningKey:
    """The key at `path` (PEM, unencrypted, mode 0600); a development key is made there when there is none.

    Raises ConfigError for a key that is missing, unreadable, encrypted, on another curve or readable by others.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    path = Path(path)
    if development and not path.exists():
        make_key(path)
    fault = ConfigError("The signing key cannot be used", where=f"{path} (release.sign.key)", expected="an elliptic-curve private key in PEM")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise mended(fault, str(error), "put the key there, or set release.sign.development: true to try without one of your own") from error
    except TypeError as error:  # what `cryptography` raises for a key that needs a password
        raise mended(fault, "an encrypted key", "decrypt it into a file of mode 0600 (openssl pkey), outside the repository") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise mended(fault, str(error).splitlines()[0], "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        got = f"curve {key.curve.name}" if isinstance(key, ec.EllipticCurvePrivateKey) else type(key).__name__
        raise mended(fault, got, f"use a key on one of {', '.join(CURVES)}")
    if mode & 0o077:
        raise mended(fault, f"mode {mode:04o}: others may read it", f"chmod 600 {path}, and think of the key as known if the machine is shared")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(path, development, public)


def mended(fault: ConfigError, got: str, next: str) -> ConfigError:
    """`fault` with what was found and what to do."""
    return ConfigError(fault.what, where=fault.where, expected=fault.expected, got=got, next=next)


def make_key(path: Path) -> None:
    """Write a new P-256 key, mode 0600 from its first byte; one that appears in the meantime is left alone."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(pem)
                os.fsync(stream.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            Path(name).unlink()
    except OSError as error:
        raise disk_error(error, path) from error


def sign(folder: str | Path, key: SigningKey | Keyless, name: str) -> Path:
    """Sign every file now in `folder` and write the signature there; `name` is what it calls the bundle. Returns its path.

    Raises Refused when the folder holds what cannot be signed (a symbolic link), or Sigstore does not sign.
    """
    import model_signing

    class Named(model_signing.hashing.Config):
        """Hashes as model-signing does, under the bundle's own name instead of the staging folder's."""

        def hash(self, model_path: Any, **options: Any) -> Any:
            found = super().hash(model_path, **options)
            kind = model_signing.manifest.SerializationType.from_args(found.serialization_type)
            items = [kind.new_item(entry.identifier, entry.digest) for entry in found.resource_descriptors()]
            return model_signing.manifest.Manifest(name, items, kind)

    hashing = Named().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    place = Path(folder) / SIGNATURE
    try:
        key.configure(model_signing.signing.Config()).set_hashing_config(hashing).sign(folder, place)
    except ValueError as error:
        raise Refused("The bundle cannot be signed", where=str(folder), expected="regular files only", got=str(error)) from error
    except Exception as error:
        if isinstance(key, SigningKey) or isinstance(error, Refused):
            raise
        raise unreachable(error) from error  # Sigstore's own errors and the network's have no common base
    place.chmod(0o644)
    return place
