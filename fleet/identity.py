"""A signature without a key: by an identity (a CI job, a person) that an issuer vouches for, checked with the package `sigstore`.

The file that `--key` names is then no public key but JSON: {"identity": "...", "issuer": "...", "trust_config": "FILE"}. Without `trust_config`, a
path beside it to another Sigstore's own description, the public instance's keys are fetched, or taken as fetched before where there is no network.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from fleet.contents import KEEP, read_regular, shown
from fleet.manifest import SIGNATURE, strict_json
from fleet.signature import MAX_KEY_BYTES, MAX_SIGNATURE_BYTES, PAYLOAD_TYPE, demand, malformed, resources
from pipeline.errors import ConfigError, QwarmError, Refused

WANTED = {"identity", "issuer"}


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who must have signed: the certificate's subject, and the OpenID issuer that vouches for it."""

    path: Path
    identity: str
    issuer: str
    trust_config: Path | None

    @property
    def said(self) -> str:
        """How `verify` names it."""
        return f"{self.identity}, for whom {self.issuer} vouches"


def load_identity(path: str | os.PathLike[str]) -> Identity | None:
    """The identity that a file holds; None where it is no JSON object, such as a public key. Raises ConfigError for one that lacks a part."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_KEY_BYTES)
    except OSError:
        return None
    if not content.lstrip().startswith(b"{"):
        return None
    try:
        given = json.loads(content)
        if not WANTED <= set(given) <= WANTED | {"trust_config"} or not all(isinstance(text, str) and text for text in given.values()):
            raise ValueError(f"keys {sorted(given)}")
    except ValueError as error:
        expected = 'JSON with "identity" and "issuer", and perhaps "trust_config"'
        raise ConfigError("An identity cannot be read", where=str(path), expected=expected, got=shown(str(error))[:200]) from error
    trust = Path(path).parent / given["trust_config"] if "trust_config" in given else None
    return Identity(Path(path), given["identity"], given["issuer"], trust)


def files_signed_by(folder: Path, who: Identity) -> dict[str, str]:
    """sha256 of each file that `who` signed in `folder`, by its path.

    Raises Refused when there is no signature, when it is not one, or when somebody else made it; QwarmError when it cannot be checked here.
    """
    try:
        from sigstore.errors import Error
        from sigstore.models import Bundle
        from sigstore.verify import Verifier, policy
    except ImportError as error:
        next = "python3 -m pip install sigstore (the bundle's README.md names the version)"
        raise QwarmError(
            "A signature cannot be checked on this host", where="--key", expected="the package sigstore", got=str(error), next=next
        ) from error
    try:
        content = read_regular(folder / SIGNATURE, MAX_SIGNATURE_BYTES)
    except OSError as error:
        expected = f"a signature by {who.said}"
        raise Refused("The bundle has no signature that can be read", where=SIGNATURE, expected=expected, got=str(error), next=KEEP) from error
    root = _trusted_root(who)
    try:
        signature = Bundle.from_json(content)
    except Exception as error:  # protobuf's and pydantic's own
        raise malformed("a Sigstore bundle with a certificate", error) from error
    try:
        kind, payload = Verifier(trusted_root=root).verify_dsse(signature, policy.Identity(identity=who.identity, issuer=who.issuer))
    except Error as error:
        raise Refused(
            "The bundle is not signed by this identity",
            where=SIGNATURE,
            expected=f"a signature by {who.said}",
            got=shown(str(error))[:300],
            next=f"correct {who.path}, or {KEEP}",
        ) from error
    try:
        demand("the payload's type", PAYLOAD_TYPE, kind)
        return resources(strict_json(payload))
    except (ValueError, KeyError, TypeError) as error:
        raise malformed("a statement of model-signing 1.0 over sha256 of files", error) from error


def _trusted_root(who: Identity) -> Any:
    from sigstore.models import ClientTrustConfig

    try:
        if who.trust_config is not None:
            return ClientTrustConfig.from_json(who.trust_config.read_text(encoding="utf-8")).trusted_root
    except Exception as error:  # the file system's, protobuf's and pydantic's own
        raise ConfigError(
            "A trust configuration cannot be read",
            where=str(who.trust_config),
            expected="a client trust configuration of Sigstore",
            got=str(error)[:200],
        ) from error
    try:
        try:
            return ClientTrustConfig.production().trusted_root
        except Exception:  # no network: what was fetched before, if anything was
            return ClientTrustConfig.production(offline=True).trusted_root
    except Exception as error:
        raise QwarmError(
            "Sigstore's keys cannot be fetched",
            where="--key",
            expected="a network, once",
            got=f"{type(error).__name__}: {error}"[:200],
            next=f'name a trust configuration in {who.path} ("trust_config"), or verify where there is a network',
        ) from error
