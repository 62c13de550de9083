"""Files that are whole or absent: write beside, fsync, rename. Canonical JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import RecordError, disk_error


def canonical_json(data: Any) -> str:
    """Sorted keys, two-space indent, no NaN or infinity, one trailing newline: equal data gives equal bytes."""
    return json.dumps(data, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def fsync_path(path: Path) -> None:
    """Flush a file or a folder entry to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], durable: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling to write; on success it is fsynced and renamed to `path`, else removed.

    Not `durable`: not fsynced, for what means nothing after this boot; every reader still sees it whole or not at all.

    Raises DiskFullError (or QwarmError for another OSError); `path` is then as it was before.
    """
    final = Path(path)
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent)
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o644)
        if durable:
            fsync_path(temporary)
        os.replace(temporary, final)
        if durable:
            fsync_path(final.parent)
    except OSError as error:
        raise disk_error(error, final) from error
    finally:
        if temporary is not None and temporary.exists():
            temporary.unlink()


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str], staging: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield an empty temporary folder; on success its files are fsynced and it takes the place of `path`.

    The old folder is moved aside first and restored if the rename fails. `staging` is where the temporary
    folder is made (same file system; default: beside `path`). Leftovers of a killed run are swept away.
    """
    final = Path(path)
    base = Path(staging) if staging is not None else final.parent
    temporary: Path | None = None
    try:
        base.mkdir(parents=True, exist_ok=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(final, base)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=base))
        temporary.chmod(0o755)
        yield temporary
        for entry in sorted(temporary.rglob("*")):
            fsync_path(entry)
        aside = base / f".{final.name}.old"
        if final.exists():
            os.rename(final, aside)
        try:
            os.rename(temporary, final)
        except OSError:
            if aside.exists():
                os.rename(aside, final)
            raise
        fsync_path(final.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise disk_error(error, final) from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(final: Path, base: Path) -> None:
    """Undo what a kill between two renames left: put the old folder back, drop half-written ones."""
    aside = base / f".{final.name}.old"
    if aside.exists() and not final.exists():
        os.rename(aside, final)
    for stale in [aside, *base.glob(f".{final.name}.*.tmp")]:
        if stale.is_dir():
            shutil.rmtree(stale, ignore_errors=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write `data` as canonical JSON, atomically."""
    write_text(path, canonical_json(data))


def read_json(path: str | os.PathLike[str], next: str = "run `dvc repro`") -> Any:
    """Parse a JSON file; raises RecordError naming the file when it is missing or torn."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError("A record is missing", where=str(path), expected="a JSON file", got="no file", next=next) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError("A record cannot be read", where=str(path), expected="JSON", got=str(error), next=next) from error
