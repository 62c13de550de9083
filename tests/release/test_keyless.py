"""Signing without a key, through the real clients of Sigstore, against a double of its services: this machine reaches no real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import local_sigstore
import pytest

from fleet.identity import load_identity
from fleet.verify import verify
from pipeline.errors import ConfigError, QwarmError, Refused
from pipeline.loading import load_object
from pipeline.release_config import SignConfig
from release import bundle, keyless, signing
from stages import release as stage

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)
WHO = "https://git.example/letters/.github/workflows/release.yml@refs/heads/main"


@pytest.fixture(scope="module")
def services() -> Iterator[local_sigstore.LocalSigstore]:
    with local_sigstore.running() as found:
        yield found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def packed(services: local_sigstore.LocalSigstore, parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Signed as `WHO`, whose host's file lies beside the trust configuration."""
    trust = services.trust(tmp_path / "trust.json")
    monkeypatch.setenv(keyless.VARIABLE, services.token(WHO))
    folder = bundle.pack(tmp_path / "release", **parts, key=keyless.open_keyless(str(trust)))
    write_identity(tmp_path / "release.json", json.loads(keyless.identity_text(folder / signing.SIGNATURE)))
    return folder


def write_identity(path: Path, who: dict[str, str]) -> Path:
    path.write_text(json.dumps({**who, "trust_config": "trust.json"}))
    return path


def test_a_bundle_is_signed_by_an_identity_and_verified_by_it(services: local_sigstore.LocalSigstore, packed: Path, tmp_path: Path) -> None:
    assert json.loads((tmp_path / "release.json").read_text()) == {"identity": WHO, "issuer": services.issuer, "trust_config": "trust.json"}
    verified = verify(packed, tmp_path / "release.json")
    assert verified.manifest.signature == "openssf-model-signing, sigstore"
    assert verified.origin == f"signed (openssf-model-signing, sigstore) by {WHO}, for whom {services.issuer} vouches"
    assert "--key release.json" in (packed / "README.md").read_text()
    command = [sys.executable, "-m", "model_signing", "verify", "sigstore", str(packed), "--signature", str(packed / signing.SIGNATURE)]
    trust = ["--trust_config", str(tmp_path / "trust.json"), "--ignore-paths", str(packed / signing.SIGNATURE)]
    done = subprocess.run([*command, "--identity", WHO, "--identity_provider", services.issuer, *trust], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("who", "says"),
    [({"identity": "https://git.example/other"}, "SANs do not match"), ({"issuer": "https://issuer.example"}, "issuer"), ({}, None)],
)
def test_another_identity_or_issuer_is_refused(
    services: local_sigstore.LocalSigstore, packed: Path, tmp_path: Path, who: dict[str, str], says: str | None
) -> None:
    path = write_identity(tmp_path / "host.json", {"identity": WHO, "issuer": services.issuer, **who})
    if says is None:
        verify(packed, path)
        (packed / "labels.json").write_text("[]")
        says = "labels.json: truncated"
    with pytest.raises(Refused, match=says):
        verify(packed, path)


def test_a_signature_by_a_key_or_by_another_sigstore_is_not_this_identitys(parts: dict[str, Any], packed: Path, tmp_path: Path) -> None:
    key = signing.open_key(tmp_path / "development.pem", development=True)
    by_key = bundle.pack(tmp_path / "by-key", **parts, key=key)
    with pytest.raises(Refused, match="malformed|not signed by this identity"):
        verify(by_key, tmp_path / "release.json")
    with pytest.raises(Refused, match="malformed"):
        verify(packed, key.write_public(tmp_path / "development.pub"))
    with pytest.raises(Refused, match="no signature"):
        verify(bundle.pack(tmp_path / "unsigned", **parts), tmp_path / "release.json")
    with local_sigstore.running() as others:
        others.trust(tmp_path / "trust.json")
    with pytest.raises(Refused, match="not signed by this identity"):
        verify(packed, tmp_path / "release.json")


def test_without_a_token_or_with_a_bad_one_nothing_is_signed(
    services: local_sigstore.LocalSigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (keyless.VARIABLE, "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Refused, match=r"(?s)no identity to sign with.*id-token: write.*release\.sign\.key"):
        keyless.open_keyless()
    for token in ("no token", services.token(WHO, seconds=-60)):
        monkeypatch.setenv(keyless.VARIABLE, token)
        with pytest.raises(Refused, match="identity token cannot sign") as caught:
            keyless.open_keyless()
        assert token not in str(caught.value)
    with pytest.raises(ConfigError, match="trust configuration"):
        keyless.open_keyless(str(tmp_path / "none.json"))


@pytest.mark.usefixtures("packed")
def test_the_release_stage_takes_the_signer_that_params_yaml_names(tmp_path: Path) -> None:
    by_identity = stage._signer(SignConfig(keyless=True, trust_config=str(tmp_path / "trust.json")))
    assert by_identity is not None
    assert (by_identity.kind, by_identity.host_package) == ("openssf-model-signing, sigstore", "sigstore")
    by_key = stage._signer(SignConfig(key=str(tmp_path / "development.pem"), development=True))
    assert by_key is not None
    assert (by_key.kind, by_key.host_package) == ("openssf-model-signing, development key", "cryptography")
    assert stage._signer(None) is None


def test_without_a_network_the_previous_bundle_stays(parts: dict[str, Any], packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_sigstore.running() as gone:
        trust, token = gone.trust(tmp_path / "gone.json"), gone.token(WHO)
    monkeypatch.setenv(keyless.VARIABLE, token)
    before = (packed / signing.SIGNATURE).read_bytes()
    key = keyless.open_keyless(str(trust))
    assert token not in repr(key)
    with pytest.raises(Refused, match=r"(?s)Sigstore did not sign.*the previous bundle is untouched"):
        bundle.pack(tmp_path / "release", **parts, key=key)
    assert (packed / signing.SIGNATURE).read_bytes() == before


@pytest.mark.parametrize("content", ["{", '{"identity": "a"}', '{"identity": "a", "issuer": 1}', '{"identity": "a", "issuer": "b", "key": "c"}'])
def test_identities_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "who.json").write_text(content)
    with pytest.raises(ConfigError, match="identity cannot be read"):
        load_identity(tmp_path / "who.json")


def test_a_trust_configuration_or_a_package_that_is_missing(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_identity(tmp_path / "host.json", {"identity": WHO, "issuer": "x"})
    (tmp_path / "trust.json").write_text("{}")
    with pytest.raises(ConfigError, match="trust configuration cannot be read"):
        verify(packed, path)
    monkeypatch.setitem(sys.modules, "sigstore.verify", None)
    with pytest.raises(QwarmError, match="pip install sigstore"):
        verify(packed, path)
