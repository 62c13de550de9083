"""What is packed: bytes or a file, measured, and held to what it must be."""

from __future__ import annotations

from pathlib import Path

from pipeline.digests import sha256_bytes, sha256_file
from pipeline.errors import RecordError, Refused
from pipeline.records import File

Content = bytes | Path
"""A file of the bundle: made here, or copied from the building machine."""

AGAIN = "run `dvc repro`; the previous bundle is untouched"


def belongs(what: str, where: str, expected: str, got: str) -> None:
    """Raise Refused unless two digests (or records' digests) agree."""
    if expected != got:
        raise Refused(f"{what} does not belong to this release", where=where, expected=expected, got=got, next=AGAIN)


def as_file(content: Content) -> File:
    """Size and sha256; raises RecordError naming a file that is missing."""
    if isinstance(content, bytes):
        return File(len(content), sha256_bytes(content))
    try:
        return File(content.stat().st_size, sha256_file(content))
    except OSError as error:
        raise RecordError("A part of the bundle is missing", where=str(content), expected="a file", got=str(error), next=AGAIN) from error
