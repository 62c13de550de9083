"""manifest.json of a bundle: bytes that its checksum agrees with, strictly parsed, naming nothing outside the bundle."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from fleet.contents import KEEP, read_regular, shown
from pipeline.digests import sha256_bytes
from pipeline.errors import RecordError, Refused
from pipeline.records import ReleaseManifest

MANIFEST, CHECKSUM, SIGNATURE = "manifest.json", "manifest.sha256", "signature.sigstore.json"
UNSIGNED = "none"
"""`signature` of a manifest that has none beside it."""
SHARED_FILES = ("README.md", "labels.json", "preprocess.py", "warmup/rows.npz")
TARGET_FILES = ("engine.json", "plan.json", "expected.npz", "evidence.json")
RECORDS = {"engine_sha256": "engine.json", "plan_sha256": "plan.json", "evidence_sha256": "evidence.json"}
"""What a target of the manifest says of its records: their digest is that of their canonical text, and so of their file."""
MAX_MANIFEST_BYTES = 64 << 20


def checked_manifest(folder: Path) -> bytes:
    """Bytes of manifest.json once manifest.sha256 agrees with them."""
    contents = {}
    for name in (MANIFEST, CHECKSUM):
        try:
            contents[name] = read_regular(folder / name, MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise Refused("The bundle has no manifest", where=str(folder / name), expected=name, got="no file", next=KEEP) from error
        except OSError as error:
            raise Refused("The manifest cannot be read", where=str(folder / name), expected="a regular file", got=str(error), next=KEEP) from error
    expected = checksum(contents[MANIFEST])
    if contents[CHECKSUM] != expected:
        raise Refused(
            "manifest.json and manifest.sha256 do not belong together: one of them changed",
            where=f"{folder / MANIFEST}, {folder / CHECKSUM}",
            expected=expected.decode().strip(),
            got=shown(contents[CHECKSUM][:100].decode("utf-8", "backslashreplace").strip()),
            next=KEEP,
        )
    return contents[MANIFEST]


def checksum(manifest: bytes) -> bytes:
    """What manifest.sha256 must hold, as sha256sum writes it."""
    return f"{sha256_bytes(manifest)}  {MANIFEST}\n".encode()


def strict_json(content: bytes) -> Any:
    """Parse JSON whose keys occur once and whose numbers are finite; raises ValueError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def not_finite(name: str) -> NoReturn:
        raise ValueError(f"the number {name} is not JSON")

    try:
        return json.loads(content, object_pairs_hook=unique, parse_constant=not_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_manifest(content: bytes) -> ReleaseManifest:
    """Strictly parse manifest.json; raises Refused for anything but a manifest of this schema."""
    try:
        return ReleaseManifest.from_json(strict_json(content), MANIFEST)
    except RecordError as error:
        raise Refused(
            "The manifest does not fit this qwarm's schema",
            where=error.where,
            expected=error.expected,
            got=error.got,
            next="use the qwarm.pyz that was released with this bundle; " + KEEP,
        ) from error
    except ValueError as error:
        raise Refused("The manifest cannot be parsed", where=MANIFEST, expected=ReleaseManifest.SCHEMA, got=str(error)[:200], next=KEEP) from error


def path_fault(path: str) -> str | None:
    """Why `path` may not stand in a manifest, or None: it must be relative, canonical and stay inside the bundle."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or ":" in parts[0]:
        return "absolute or not POSIX"
    if ".." in parts:
        return "escapes the bundle"
    if not path or "" in parts or "." in parts or PurePosixPath(path).as_posix() != path:
        return "not canonical"
    if not path.isprintable():
        return "holds unprintable characters"
    if path in (MANIFEST, CHECKSUM, SIGNATURE):
        return "lists the manifest itself, or its signature"
    return None


def check_layout(manifest: ReleaseManifest) -> None:
    """Refuse paths that escape, a manifest that lacks a file which a host needs, and a target whose records are not those it names."""
    for path in manifest.files:
        if fault := path_fault(path):
            raise Refused("The manifest names a path it may not", where=shown(path), expected="a path inside the bundle", got=fault, next=KEEP)
    wanted = [*SHARED_FILES, *(f"{target.folder}/{name}" for target in manifest.targets for name in TARGET_FILES)]
    if missing := [path for path in wanted if path not in manifest.files]:
        raise Refused("The manifest lacks files that a host needs", where=MANIFEST, expected=", ".join(missing), got="not listed", next=KEEP)
    if not manifest.targets:
        raise Refused("The bundle has no target", where=MANIFEST, expected="at least one engine", got="none", next=KEEP)
    for target in manifest.targets:
        for field, name in RECORDS.items():
            listed, named = manifest.files[f"{target.folder}/{name}"].sha256, getattr(target, field)
            if listed != named:
                where = f"{MANIFEST}: {target.target}, {field}"
                raise Refused("Records of the bundle do not belong together", where=where, expected=named, got=f"{name} {listed}", next=KEEP)
