"""The files of a bundle on this disk: read without following a link, measured, and compared with what they should be."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from pipeline.digests import CHUNK_BYTES
from pipeline.errors import Refused
from pipeline.records import File

KEEP = "fetch the bundle again from where it was released; until then keep serving the previous release"
"""What to do after nearly every refusal."""


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


def differences(folder: Path, files: Mapping[str, File], besides: Collection[str]) -> Iterator[str]:
    """One line for each file that differs from `files`, with its name first; `besides` must be regular files, whatever they hold."""
    found, faults = walk(folder, {parent.as_posix() for path in files for parent in PurePosixPath(path).parents})
    missing = [path for path in [*files, *besides] if path not in found and path not in faults]
    extra = [path for path in found if path not in files and path not in besides]
    for path, fault in sorted(faults.items()):
        yield f"{shown(path)}: {fault}"
    renamed: dict[str, str] = {}
    for path in [path for path in missing if path in files]:
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
    """Regular files below `folder`, sorted, and a fault for each entry that may not be there."""
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
                else:
                    files.append(path)

    try:
        visit("")
    except OSError as error:
        raise Refused("The bundle cannot be read", where=str(folder), expected="readable folders", got=str(error), next=KEEP) from error
    return files, faults


def shown(text: str) -> str:
    """`text` fit for a terminal and for UTF-8: control characters and undecodable bytes escaped."""
    return text if text.isprintable() else ascii(text)
