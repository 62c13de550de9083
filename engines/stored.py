"""An engine folder: `engine.json` and the files it lists, checked byte by byte before a runtime parses any."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pipeline.digests import sha256_bytes, sha256_file
from pipeline.errors import Refused
from pipeline.records import Engine, File

RECORD = "engine.json"
NEXT = "run `dvc repro` to build it again, or copy the bundle again"


def read_engine(folder: Path) -> Engine:
    """The record of `folder`; raises RecordError when it is missing, torn or of another schema."""
    return Engine.load(folder / RECORD, next=NEXT)


def describe(folder: Path) -> dict[str, File]:
    """Size and sha256 of every file under `folder` but the record, by path relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / RECORD)
    return {path.relative_to(folder).as_posix(): File(path.stat().st_size, sha256_file(path)) for path in paths}


def verify(folder: Path, engine: Engine) -> None:
    """Check every listed file; raises Refused naming the first that is missing or differs.

    Other files are not looked at: in a bundle the plan and the evidence lie beside the engine, and the manifest lists them all.
    """
    for name, wanted in engine.files.items():
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
    path = _plain(folder, name)
    content = path.read_bytes()
    if (digest := sha256_bytes(content)) != engine.files[name].sha256:
        raise _changed(path, f"sha256 {engine.files[name].sha256}", f"sha256 {digest}")
    return content


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
