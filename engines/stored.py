"""An engine folder: `engine.json` and the files it lists, checked byte by byte before a runtime parses any."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pipeline.digests import CHUNK_BYTES, sha256_bytes, sha256_file
from pipeline.errors import Refused
from pipeline.records import Engine, File

RECORD = "engine.json"
NEXT = "run `dvc repro` to build it again, or copy the bundle again"


def read_engine(folder: Path) -> Engine:
    """The record of `folder`; raises RecordError when it is missing, torn or of another schema."""
    return Engine.load(folder / RECORD, next=NEXT)


def describe(folder: Path, record: str = RECORD) -> dict[str, File]:
    """Size and sha256 of every file under `folder` but the record, by path relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / record)
    return {path.relative_to(folder).as_posix(): File(path.stat().st_size, sha256_file(path)) for path in paths}


def verify(folder: Path, engine: Engine) -> None:
    """Check every listed file; raises Refused naming the first that is missing or differs.

    Other files are not looked at: in a bundle the plan and the evidence lie beside the engine, and the manifest lists them all.
    """
    verify_files(folder, engine.files)


def verify_files(folder: Path, files: Mapping[str, File]) -> None:
    """Raise Refused naming the first of `files` that is missing or differs."""
    for name, wanted in files.items():
        path = _plain(folder, name)
        size = path.stat().st_size
        if size != wanted.bytes:
            raise _changed(path, f"{wanted.bytes} bytes", f"{size} bytes")
        if (digest := sha256_file(path)) != wanted.sha256:
            raise _changed(path, f"sha256 {wanted.sha256}", f"sha256 {digest}")


def verified_bytes(folder: Path, engine: Engine, name: str) -> bytes:
    """The bytes of one listed file, hashed as read: a backend gives these, not the path, to its runtime.

    Raises Refused when they are not what `engine` lists.
    """
    if name not in engine.files:
        raise Refused("An engine lacks a file", where=str(folder / RECORD), expected=name, got=", ".join(sorted(engine.files)) or "none", next=NEXT)
    return checked_bytes(folder, name, engine.files[name])


def checked_bytes(folder: Path, name: str, wanted: File) -> bytes:
    """The bytes of `folder`/`name`, once their sha256 is the wanted one; else Refused."""
    path = _plain(folder, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if (digest := sha256_bytes(content)) != wanted.sha256:
        raise _changed(path, f"sha256 {wanted.sha256}", f"sha256 {digest}")
    return content


def copy_checked(folder: Path, name: str, wanted: File, to: Path) -> None:
    """Copy `folder`/`name` to the new file `to`, hashing the bytes that are copied; raises Refused when they are not the wanted ones."""
    path = _plain(folder, name)
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        source = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with source, to.open("xb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    if digest.hexdigest() != wanted.sha256:
        raise _changed(path, f"sha256 {wanted.sha256}", f"sha256 {digest.hexdigest()}")


def _plain(folder: Path, name: str) -> Path:
    """A listed name as a regular file inside the folder; a path that leaves it and a link are refused."""
    relative = PurePosixPath(name)
    path = folder / relative
    if relative.is_absolute() or ".." in relative.parts or path.is_symlink():
        raise Refused("An engine file is not inside its folder", where=str(path), expected="a plain file in the engine folder", got=name, next=NEXT)
    if not path.is_file():
        raise Refused("An engine file is missing", where=str(path), expected=f"the file that {RECORD} lists", got="no file", next=NEXT)
    return path


def _changed(path: Path, expected: str, got: str) -> Refused:
    return Refused("An engine file has changed", where=str(path), expected=expected, got=got, next=NEXT)


def _unreadable(path: Path, error: OSError) -> Refused:
    return Refused("An engine file cannot be read", where=str(path), expected="a readable file", got=str(error), next=NEXT)
