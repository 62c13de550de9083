"""Is this bundle, byte for byte, what its manifest says? Every byte is read here before any deserializer of an engine sees one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from pipeline.digests import CHUNK_BYTES, sha256_bytes
from pipeline.errors import ConfigError, RecordError, Refused
from pipeline.records import File, ReleaseManifest

MANIFEST, CHECKSUM = "manifest.json", "manifest.sha256"
SHARED_FILES = ("README.md", "labels.json", "preprocess.py", "warmup/rows.npz")
TARGET_FILES = ("engine.json", "plan.json", "expected.npz", "evidence.json")
MAX_MANIFEST_BYTES = 64 << 20
MAX_LISTED = 20
KEEP = "fetch the bundle again from where it was released; until then keep serving the previous release"


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


def open_regular(path: Path) -> int:
    """File descriptor of a regular file that is no symbolic link; raises OSError otherwise (a pipe does not block)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return descriptor


def read_regular(path: Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes of a regular file, so that a longer one shows without being read whole."""
    with os.fdopen(open_regular(path), "rb") as stream:
        return stream.read(limit + 1)


def measured(path: Path, limit: int) -> File:
    """Size and sha256 of a regular file; reading stops past `limit` bytes."""
    digest, size = hashlib.sha256(), 0
    with os.fdopen(open_regular(path), "rb", buffering=0) as stream:
        while size <= limit and (chunk := stream.read(CHUNK_BYTES)):
            digest.update(chunk)
            size += len(chunk)
    return File(bytes=size, sha256=digest.hexdigest())


def verify(bundle: str | os.PathLike[str], key: str | os.PathLike[str] | None = None) -> Verified:
    """Check a bundle folder against its manifest and return what may be loaded.

    `bundle` itself may be a symbolic link to a folder (a fleet's "current"); nothing inside may be one. Raises Refused
    (exit code 3) naming every changed, truncated, longer, missing, renamed, extra, linked or escaping file; for a manifest
    that cannot be parsed or does not match manifest.sha256; and for a `key` when there is no signature it could check.
    """
    try:
        folder = Path(bundle).resolve(strict=True)
    except OSError as error:
        raise ConfigError("There is no bundle", where=str(bundle), expected="a folder with manifest.json", got=str(error)) from error
    if not folder.is_dir():
        raise ConfigError("There is no bundle", where=str(bundle), expected="a folder with manifest.json", got="a file")
    content = checked_manifest(folder)
    manifest = parse_manifest(content)
    check_signature(manifest, key)
    check_layout(manifest)
    problems = list(differences(folder, manifest.files))
    if problems:
        more = f"; and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
        raise Refused(
            "The bundle is not what its manifest says",
            where=str(folder),
            expected=f"exactly the {len(manifest.files)} files of manifest.json, unchanged",
            got="; ".join(problems[:MAX_LISTED]) + more,
            next=KEEP,
        )
    return Verified(folder, manifest, sha256_bytes(content), "integrity only, origin unknown")


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
    expected = f"{sha256_bytes(contents[MANIFEST])}  {MANIFEST}\n".encode()
    if contents[CHECKSUM] != expected:
        raise Refused(
            "manifest.json and manifest.sha256 do not belong together: one of them changed",
            where=f"{folder / MANIFEST}, {folder / CHECKSUM}",
            expected=expected.decode().strip(),
            got=shown(contents[CHECKSUM][:100].decode("utf-8", "backslashreplace").strip()),
            next=KEEP,
        )
    return contents[MANIFEST]


def parse_manifest(content: bytes) -> ReleaseManifest:
    """Strictly parse manifest.json: raises Refused for anything but a manifest of this schema with unique, finite entries."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def not_finite(name: str) -> NoReturn:
        raise ValueError(f"the number {name} is not JSON")

    try:
        return ReleaseManifest.from_json(json.loads(content, object_pairs_hook=unique, parse_constant=not_finite), MANIFEST)
    except RecordError as error:
        raise Refused(
            "The manifest does not fit this qwarm's schema",
            where=error.where,
            expected=error.expected,
            got=error.got,
            next="use the qwarm.pyz that was released with this bundle; " + KEEP,
        ) from error
    except (ValueError, RecursionError) as error:
        raise Refused("The manifest cannot be parsed", where=MANIFEST, expected=ReleaseManifest.SCHEMA, got=str(error)[:200], next=KEEP) from error


def check_signature(manifest: ReleaseManifest, key: str | os.PathLike[str] | None) -> None:
    """An unsigned bundle verifies without a key only, so that a key never gives false comfort."""
    if manifest.signature != "none":
        raise Refused(
            "This qwarm cannot check the bundle's signature", where=MANIFEST, expected="signature: none", got=manifest.signature,
            next="use the qwarm.pyz that was released with this bundle",
        )  # fmt: skip
    if key is not None:
        raise Refused(
            "A key was given, but there is no signature to check", where=MANIFEST, expected="a signed bundle", got="signature: none",
            next="ask for a signed bundle, or verify without a key: integrity only, origin unknown",
        )  # fmt: skip


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
    if path in (MANIFEST, CHECKSUM):
        return "lists the manifest itself"
    return None


def check_layout(manifest: ReleaseManifest) -> None:
    """Refuse paths that escape, and a manifest that lacks a file which a host needs."""
    for path in manifest.files:
        if fault := path_fault(path):
            raise Refused("The manifest names a path it may not", where=shown(path), expected="a path inside the bundle", got=fault, next=KEEP)
    wanted = [*SHARED_FILES, *(f"{target.folder}/{name}" for target in manifest.targets for name in TARGET_FILES)]
    if missing := [path for path in wanted if path not in manifest.files]:
        raise Refused("The manifest lacks files that a host needs", where=MANIFEST, expected=", ".join(missing), got="not listed", next=KEEP)
    if not manifest.targets:
        raise Refused("The bundle has no target", where=MANIFEST, expected="at least one engine", got="none", next=KEEP)


def differences(folder: Path, files: Mapping[str, File]) -> Iterator[str]:
    """One line for each file that differs from the manifest, with its name first."""
    found, faults = walk(folder, {parent.as_posix() for path in files for parent in PurePosixPath(path).parents})
    missing = [path for path in files if path not in found and path not in faults]
    extra = [path for path in found if path not in files]
    for path, fault in sorted(faults.items()):
        yield f"{shown(path)}: {fault}"
    renamed: dict[str, str] = {}
    for path in missing:
        for other in extra:
            if other not in renamed.values() and (folder / other).stat().st_size == files[path].bytes:
                try:
                    if measured(folder / other, files[path].bytes) == files[path]:
                        renamed[path] = other
                        break
                except OSError:
                    continue
    for path in missing:
        yield f"{shown(path)}: " + (f"renamed to {shown(renamed[path])}" if path in renamed else "missing")
    for path in extra:
        if path not in renamed.values():
            yield f"{shown(path)}: extra, not in the manifest"
    for path in sorted(set(files) & set(found)):
        try:
            actual = measured(folder / path, files[path].bytes)
        except OSError as error:
            yield f"{shown(path)}: cannot be read ({error})"
            continue
        if actual.bytes < files[path].bytes:
            yield f"{shown(path)}: truncated, {actual.bytes} of {files[path].bytes} bytes"
        elif actual.bytes > files[path].bytes:
            yield f"{shown(path)}: longer than its {files[path].bytes} bytes"
        elif actual.sha256 != files[path].sha256:
            yield f"{shown(path)}: changed, sha256 {actual.sha256} instead of {files[path].sha256}"


def walk(folder: Path, expected_folders: set[str]) -> tuple[list[str], dict[str, str]]:
    """Regular files below `folder` (sorted, without the manifest pair), and a fault for each entry that may not be there."""
    files: list[str] = []
    faults: dict[str, str] = {}

    def visit(relative: str) -> None:
        with os.scandir(folder / relative) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                path = f"{relative}/{entry.name}" if relative else entry.name
                if entry.is_symlink():
                    faults[path] = "a symbolic link"
                elif entry.is_dir(follow_symlinks=False):
                    if path in expected_folders:
                        visit(path)
                    else:
                        faults[path] = "an extra folder, not in the manifest"
                elif not entry.is_file(follow_symlinks=False):
                    faults[path] = "not a regular file"
                elif path not in (MANIFEST, CHECKSUM):
                    files.append(path)

    try:
        visit("")
    except OSError as error:
        raise Refused("The bundle cannot be read", where=str(folder), expected="readable folders", got=str(error), next=KEEP) from error
    return files, faults


def shown(text: str) -> str:
    """`text` fit for a terminal and for UTF-8: control characters and undecodable bytes escaped."""
    return text if text.isprintable() else ascii(text)
