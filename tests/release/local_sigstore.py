"""A double of Sigstore's services (Fulcio, its certificate log, Rekor v1, an OpenID issuer) on loopback: this machine reaches no real ones.

The certificates, timestamps, inclusion proofs and signatures are real, so that the real clients check them; only the operator is not.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER_OID, SCT_OID = (x509.ObjectIdentifier(text) for text in ("1.3.6.1.4.1.57264.1.1", "1.3.6.1.4.1.11129.2.4.2"))
SHA256 = ec.ECDSA(hashes.SHA256())
MINUTE = datetime.timedelta(minutes=1)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


class LocalSigstore:
    """Issues certificates to any token of `issuer`, and logs what it is given, each entry as a tree of its own."""

    def __init__(self, url: str) -> None:
        self.url, self.issuer = url, f"{url}/openid"
        self.authority, self.certificate_log, self.log = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local fulcio")])
        self.now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign", "encipher_only",
             "decipher_only"), False,
        )  # fmt: skip
        self.key_id = x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key())
        self.usage = x509.KeyUsage(**{**usage, "digital_signature": True}, key_cert_sign=False)
        self.root = (
            self._builder(name, name, self.authority.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage, key_cert_sign=True), critical=True)
            .add_extension(self.key_id, critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def _builder(self, subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(x509.random_serial_number())
        return builder.not_valid_before(self.now - MINUTE).not_valid_after(self.now + 10 * MINUTE)

    def token(self, identity: str, seconds: float = 300) -> str:
        """An OpenID token of `identity`; negative seconds: expired."""
        now = time.time()
        claims = {"iss": self.issuer, "sub": identity, "aud": "sigstore", "iat": int(now - 600), "exp": int(now + seconds)}
        return jwt.encode(claims, "a secret that nobody checks, as long as it must be", algorithm="HS256")

    def certify(self, request: dict[str, Any], token: str) -> dict[str, Any]:
        """Fulcio's POST /api/v2/signingCert (RFC 6962 for the timestamp inside)."""
        asked = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"]))
        claims = jwt.decode(token, options={"verify_signature": False})
        builder = (
            self._builder(x509.Name([]), self.root.subject, asked.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(claims["sub"])]), critical=True)
            .add_extension(self.usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self.key_id), critical=False)
            .add_extension(x509.UnrecognizedExtension(ISSUER_OID, claims["iss"].encode()), critical=False)
        )
        unlogged = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        at = int(time.time() * 1000)
        entry = hashlib.sha256(spki(self.authority)).digest() + struct.pack("!I", len(unlogged))[1:] + unlogged
        signature = self.certificate_log.sign(struct.pack("!BBQH", 0, 0, at, 1) + entry + b"\0\0", SHA256)
        timestamp = struct.pack("!B32sQHBBH", 0, hashlib.sha256(spki(self.certificate_log)).digest(), at, 0, 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(timestamp) + 2, len(timestamp)) + timestamp
        octets = bytes([0x04, 0x81, len(listed)]) + listed if len(listed) > 127 else bytes([0x04, len(listed)]) + listed
        certificate = builder.add_extension(x509.UnrecognizedExtension(SCT_OID, octets), critical=False).sign(self.authority, hashes.SHA256())
        chain = [each.public_bytes(serialization.Encoding.PEM).decode() for each in (certificate, self.root)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def enter(self, request: dict[str, Any]) -> dict[str, Any]:
        """Rekor's POST /api/v1/log/entries for one DSSE envelope: a tree of one leaf, its checkpoint and the promise to keep it."""
        content = request["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        parts = (content["envelope"].encode(), base64.b64decode(envelope["payload"]))
        hashed = [{"algorithm": "sha256", "value": hashlib.sha256(part).hexdigest()} for part in parts]
        signatures = [{"signature": each["sig"], "verifier": content["verifiers"][0]} for each in envelope["signatures"]]
        spec = {"envelopeHash": hashed[0], "payloadHash": hashed[1], "signatures": signatures}
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}, sort_keys=True, separators=(",", ":")).encode()
        root, log_id, at = hashlib.sha256(b"\0" + body).digest(), hashlib.sha256(spki(self.log)).digest(), int(time.time())
        note = f"local rekor\n1\n{encoded(root)}\n"
        checkpoint = f"{note}\n\u2014 local {encoded(log_id[:4] + self.log.sign(note.encode(), SHA256))}\n"
        promised = {"body": encoded(body), "integratedTime": at, "logID": log_id.hex(), "logIndex": 0}
        promise = self.log.sign(json.dumps(promised, sort_keys=True, separators=(",", ":")).encode(), SHA256)
        proof = {"logIndex": 0, "rootHash": root.hex(), "treeSize": 1, "hashes": [], "checkpoint": checkpoint}
        return {"entry": {**promised, "verification": {"signedEntryTimestamp": encoded(promise), "inclusionProof": proof}}}

    def trust(self, path: Path) -> Path:
        """What clients are told of these services: a ClientTrustConfig."""
        since = {"start": (self.now - MINUTE).isoformat().replace("+00:00", "Z")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": encoded(spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            return {
                "baseUrl": self.url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": encoded(hashlib.sha256(spki(key)).digest())},
            }

        def service(url: str) -> list[dict[str, Any]]:
            return [{"url": url, "majorApiVersion": 1, "validFor": since, "operator": "local"}]

        der = encoded(self.root.public_bytes(serialization.Encoding.DER))
        authority = {"subject": {"organization": "local", "commonName": "local fulcio"}, "uri": self.url, "validFor": since}
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1", "tlogs": [log(self.log)], "ctlogs": [log(self.certificate_log)],
            "certificateAuthorities": [{**authority, "certChain": {"certificates": [{"rawBytes": der}]}}], "timestampAuthorities": [],
        }  # fmt: skip
        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", "caUrls": service(self.url), "oidcUrls": service(self.issuer),
            "rekorTlogUrls": service(self.url), "rekorTlogConfig": {"selector": "ANY"}, "tsaUrls": [], "tsaConfig": {"selector": "ANY"},
        }  # fmt: skip
        media = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
        path.write_text(json.dumps({"mediaType": media, "trustedRoot": root, "signingConfig": signing}))
        return path


@contextlib.contextmanager
def running() -> Iterator[LocalSigstore]:
    """The services, answering on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self, content: dict[str, Any], status: int = 200) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self.reply({"authorization_endpoint": f"{services.issuer}/auth", "token_endpoint": f"{services.issuer}/token"})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/signingCert"):
                self.reply(services.certify(request, self.headers["Authorization"].removeprefix("Bearer ")))
            else:
                self.reply(services.enter(request), 201)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    services = LocalSigstore(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield services
    finally:
        server.shutdown()
        server.server_close()
