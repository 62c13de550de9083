"""Sign without a key: a short-lived certificate says who signed, a public log says when (Sigstore, by OpenSSF `model-signing`). Needs a network.

https://docs.sigstore.dev/about/overview. Whoever verifies needs no key, but an identity and who vouches for it: see fleet/identity.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, Refused

VARIABLE = "SIGSTORE_ID_TOKEN"
"""Environment variable of an OpenID Connect token for the audience `sigstore`; GitLab sets it where `id_tokens` asks for it."""
ISSUER = "1.3.6.1.4.1.57264.1.1"
"""Fulcio's certificate extension that holds the issuer as plain text (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md)."""
GET_ONE = (
    "in GitHub Actions give the job `permissions: {id-token: write}`; in GitLab CI `id_tokens: {SIGSTORE_ID_TOKEN: {aud: sigstore}}`; "
    "elsewhere sign with a key (release.sign.key)"
)


@dataclasses.dataclass(frozen=True)
class Keyless:
    """Signs as whom `token` names. `trust_config`: another Sigstore than the public one, as JSON (sigstore's ClientTrustConfig)."""

    token: str = dataclasses.field(repr=False)
    trust_config: Path | None = None
    kind = "openssf-model-signing, sigstore"
    development = False
    host_package = "sigstore"
    """What a host needs to check such a signature."""

    def configure(self, config: Any) -> Any:
        """The signer of model-signing's configuration. Raises Refused where the Sigstore services cannot be reached."""
        try:
            return config.use_sigstore_signer(identity_token=self.token, trust_config=self.trust_config)
        except Exception as error:  # TUF, OpenID and network errors have no common base
            raise unreachable(error) from error


def open_keyless(trust_config: str | None = None) -> Keyless:
    """Signs with the token of `VARIABLE`, or the one that this CI gives its jobs.

    Raises Refused where there is none, or one that is malformed or no longer valid; ConfigError for a trust configuration that cannot be read.
    """
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential

    if trust_config is not None and not Path(trust_config).is_file():
        raise ConfigError("The trust configuration cannot be read", where="release.sign.trust_config", expected="a JSON file", got=trust_config)
    try:
        token = os.environ.get(VARIABLE) or detect_credential()
        if token:
            IdentityToken(token)
    except IdentityError as error:
        raise Refused(
            "The identity token cannot sign",
            where=f"release.sign.keyless ({VARIABLE})",
            expected="a valid OpenID token",
            got=str(error),
            next=GET_ONE,
        ) from error
    if not token:
        raise Refused(
            "There is no identity to sign with",
            where="release.sign.keyless",
            expected=f"an OpenID token in {VARIABLE}, or a CI that gives its jobs one",
            got="neither",
            next=GET_ONE,
        )
    return Keyless(token, Path(trust_config) if trust_config is not None else None)


def unreachable(error: Exception) -> Refused:
    """The refusal where Sigstore did not sign: no network, or one of its services said no."""
    return Refused(
        "Sigstore did not sign",
        where="release.sign.keyless",
        expected="a network and an identity that Sigstore takes",
        got=f"{type(error).__name__}: {error}"[:300],
        next="run `dvc repro release` again where there is a network, or sign with a key (release.sign.key); the previous bundle is untouched",
    )


def identity_text(signature: Path) -> str:
    """What a host is told to expect of this signature, as `--key FILE` takes it: the certificate's identity and who vouches for it, as JSON."""
    from cryptography.x509 import ObjectIdentifier, SubjectAlternativeName
    from sigstore.models import Bundle

    extensions = Bundle.from_json(signature.read_bytes()).signing_certificate.extensions
    identity = next(iter(extensions.get_extension_for_class(SubjectAlternativeName).value)).value
    issuer = extensions.get_extension_for_oid(ObjectIdentifier(ISSUER)).value.public_bytes().decode()
    return json.dumps({"identity": str(identity), "issuer": issuer})
