"""Is this bundle, byte for byte, what its manifest says, and who says so? Nothing of it is parsed further before both are answered."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from fleet.contents import KEEP, differences, read_regular
from fleet.identity import Identity, files_signed_by, load_identity
from fleet.manifest import CHECKSUM, MANIFEST, SIGNATURE, UNSIGNED, check_layout, checked_manifest, checksum, parse_manifest
from fleet.signature import PublicKey, load_key, signed_files
from pipeline.digests import sha256_bytes
from pipeline.errors import ConfigError, Refused
from pipeline.records import ReleaseManifest

MAX_LISTED = 20
INTEGRITY_ONLY = "integrity only, origin unknown"


@dataclasses.dataclass(frozen=True)
class Verified:
    """A bundle whose every byte was checked. `digest` is the sha256 of manifest.json and so names the whole bundle."""

    folder: Path
    manifest: ReleaseManifest
    digest: str
    origin: str

    @property
    def total_bytes(self) -> int:
        """Size of the files the manifest lists."""
        return sum(file.bytes for file in self.manifest.files.values())

    def read(self, path: str) -> bytes:
        """Content of a listed file, checked again as it is read: what is returned is what was verified.

        Raises Refused when the file changed since, or is not listed.
        """
        expected = self.manifest.files.get(path)
        if expected is None:
            raise Refused("A file is not in the manifest", where=path, expected="a file that manifest.json lists", got="nothing", next=KEEP)
        try:
            content = read_regular(self.folder / path, expected.bytes)
        except OSError as error:
            raise Refused("A file of the bundle changed after it was verified", where=path, got=str(error), next=KEEP) from error
        if len(content) != expected.bytes or sha256_bytes(content) != expected.sha256:
            raise Refused(
                "A file of the bundle changed after it was verified",
                where=path,
                expected=f"{expected.bytes} bytes, sha256 {expected.sha256}",
                got=f"{len(content)} bytes, sha256 {sha256_bytes(content)}",
                next=KEEP,
            )
        return content


def verify(bundle: str | os.PathLike[str], key: str | os.PathLike[str] | None = None, *, allow_unsigned: bool = False) -> Verified:
    """Check a bundle folder's signature by `key` (a public key, or an identity as fleet/identity.py has it) and each file; return what may be loaded.

    `bundle` itself may be a symbolic link to a folder (a fleet's "current"); nothing inside may be one. `allow_unsigned`: go on
    without a key, knowing that whoever could write the folder could write all of it; the signature, if any, is then not checked.

    Raises Refused (exit code 3) naming every changed, truncated, longer, missing, renamed, extra, linked or escaping file; for
    a signature that is missing, malformed, of another key or of another bundle; for a manifest that cannot be parsed or does not
    match manifest.sha256; and, once all else is right, for want of a key. ConfigError (exit code 2) when there is no such bundle
    or key file, and for a key together with `allow_unsigned`.
    """
    if key is not None and allow_unsigned:
        raise ConfigError("A key and leave to go without one contradict each other", where="key, allow_unsigned", expected="one of them", got="both")
    folder = bundle_folder(bundle)
    public = None if key is None else load_identity(key) or load_key(key)
    content = checked_manifest(folder)
    signed = None if public is None else check_origin(folder, public, content)
    manifest = parse_manifest(content)
    check_layout(manifest)
    beside = [MANIFEST, CHECKSUM] + [SIGNATURE] * (manifest.signature != UNSIGNED)
    problems = list(differences(folder, manifest.files, beside))
    if signed is not None:
        expected = {path: file.sha256 for path, file in manifest.files.items()}
        expected[MANIFEST], expected[CHECKSUM] = sha256_bytes(content), sha256_bytes(checksum(content))
        problems += [f"{path}: not as signed" for path in sorted({path for path, _ in expected.items() ^ signed.items()})]
    if problems:
        more = f"; and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
        raise Refused(
            "The bundle is not what its manifest says",
            where=str(folder),
            expected=f"exactly the {len(manifest.files)} files of manifest.json, unchanged",
            got="; ".join(problems[:MAX_LISTED]) + more,
            next=KEEP,
        )
    if public is None and not allow_unsigned:
        raise Refused(
            "Nobody vouches for this bundle",
            where=str(folder),
            expected="the public key of whoever released it",
            got=f"no key: {INTEGRITY_ONLY}",
            next="give --key PUB (fleet.open: key=...), or take the risk with --allow-unsigned (allow_unsigned=True)",
        )
    origin = INTEGRITY_ONLY if public is None else f"signed ({manifest.signature}) by {public.said}"
    return Verified(folder, manifest, sha256_bytes(content), origin)


def bundle_folder(bundle: str | os.PathLike[str]) -> Path:
    """The folder that `bundle` is or points to; raises ConfigError."""
    try:
        folder = Path(bundle).resolve(strict=True)
    except OSError as error:
        raise ConfigError("There is no bundle", where=str(bundle), expected="a folder with manifest.json", got=str(error)) from error
    if not folder.is_dir():
        raise ConfigError("There is no bundle", where=str(bundle), expected="a folder with manifest.json", got="a file")
    return folder


def check_origin(folder: Path, key: PublicKey | Identity, manifest: bytes) -> dict[str, str]:
    """What `key` signed, path to sha256, once that holds this very manifest; raises Refused."""
    signed = files_signed_by(folder, key) if isinstance(key, Identity) else signed_files(folder, key)
    if signed.get(MANIFEST) != sha256_bytes(manifest):
        raise Refused(
            "The signature is of another bundle, or the manifest was changed after it was signed",
            where=f"{folder / MANIFEST}, {SIGNATURE}",
            expected=f"{MANIFEST} with sha256 {signed.get(MANIFEST, 'that is not signed at all')}",
            got=f"sha256 {sha256_bytes(manifest)}",
            next=KEEP,
        )
    return signed
