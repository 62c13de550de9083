"""The cache store: whatever can be built again, kept by what it was built from and for.

An entry is a folder `<root>/<kind>/<digest>/` of files and `entry.json`, which lists the key's fields and every file's size and sha256; the digest
is that of kind and fields. An entry appears by one rename, so a reader sees all of it or nothing, and a killed writer leaves nothing that
counts. Every read hashes what it copies. Writers of one key exclude each other by `flock`, which the kernel drops when they die.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from engines.cache_records import Entry, Found, Kept, Key, State
from engines.stored import checked_bytes, copy_checked, describe, verify_files
from pipeline.caches import cache_folder
from pipeline.errors import ConfigError, QwarmError, RecordError, Refused, disk_error
from pipeline.files import replacing_folder
from pipeline.platforms import difference
from pipeline.records import File

ENTRY, LOCKS, MODEL = "entry.json", ".locks", "model_sha256"
LIMIT_VARIABLE, DEFAULT_GB = "QWARM_CACHE_GB", 20.0


class Store:
    """`root`: default `$QWARM_CACHE/engines` (see `pipeline.caches`). `max_bytes`: default $QWARM_CACHE_GB, else 20 GB."""

    def __init__(self, root: Path | None = None, max_bytes: int | None = None) -> None:
        self.root = root if root is not None else cache_folder("engines")
        self.max_bytes = limit_bytes() if max_bytes is None else max_bytes

    def folder(self, key: Key) -> Path:
        """Where the entry of `key` lies or would lie."""
        return self.root / key.kind / key.digest

    def get_or_make(self, key: Key, folder: Path, make: Callable[[Path], object]) -> Found:
        """Fill `folder` from the entry of `key`, or by `make(folder)`, whose result is then kept. Says which, and why.

        Builders of one key wait for each other: the second finds what the first kept. Where the store cannot be written, or the result
        cannot be kept, `folder` is made all the same and `notes` says so.
        """
        found = self.fetch(key, folder)
        if found.state is State.HIT:
            return found
        with self.locked(key) as refusal:
            if refusal is None and (again := self.fetch(key, folder)).state is State.HIT:
                return again
            make(folder)
            note = refusal or self.keep(key, {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})
        return dataclasses.replace(found, notes=(f"not kept: {note}",) if note else ())

    def fetch(self, key: Key, folder: Path) -> Found:
        """Copy the entry of `key` to `folder`, which appears whole or not at all, and only on HIT. Every byte is hashed on the way."""

        def copy(kept: Path, entry: Entry) -> None:
            with replacing_folder(folder) as work:
                for name, file in entry.files.items():
                    copy_checked(kept, name, file, work / name)

        return self._read(key, copy)

    def read(self, key: Key, name: str) -> tuple[Found, bytes | None]:
        """The bytes of one file of the entry, which are those that were kept, or None unless the state is HIT."""
        got: list[bytes] = []

        def take(kept: Path, entry: Entry) -> None:
            got.append(checked_bytes(kept, name, entry.files.get(name, File(0, "none"))))

        found = self._read(key, take)
        return found, got[0] if got else None

    def keep(self, key: Key, contents: Mapping[str, Path | bytes]) -> str | None:
        """Write the entry of `key`, in the place of an older one, while `locked(key)` is held; then evict. Returns why it could not, or None.

        Less recently used entries go first; an entry larger than the whole limit is not kept.
        """
        size = sum(len(content) if isinstance(content, bytes) else content.stat().st_size for content in contents.values())
        if size > self.max_bytes:
            return f"{size} bytes are more than the limit of the cache, {self.max_bytes}"
        try:
            with replacing_folder(self.folder(key)) as work:
                for name, content in contents.items():
                    (work / name).parent.mkdir(parents=True, exist_ok=True)
                    if isinstance(content, bytes):
                        (work / name).write_bytes(content)
                    else:
                        shutil.copyfile(content, work / name)
                Entry(key.kind, dict(key.fields), key.subject, describe(work, ENTRY)).save(work / ENTRY)
            self._evict(self.max_bytes, self.folder(key))
        except QwarmError as error:
            return f"{error.what} ({error.got})"
        except OSError as error:  # from the eviction: the entry itself is there
            return f"the cache is over its limit ({error})"
        return None

    @contextlib.contextmanager
    def locked(self, key: Key) -> Iterator[str | None]:
        """Exclude other builders of `key`, waiting for them. Yields why the store cannot be written, or None: then the lock is held."""
        try:
            descriptor = self._lock(key.digest, wait=True)
        except OSError as error:
            yield f"the cache is read-only here ({error})"
            return
        try:
            yield None
        finally:
            os.close(descriptor)

    def entries(self, *, verify: bool = False) -> list[Kept]:
        """Every entry, the one used last first; with `verify` every byte is hashed, and `fault` says what is wrong."""
        found = []
        for folder in self._folders():
            try:
                used_at = (folder / ENTRY).stat().st_mtime if (folder / ENTRY).exists() else 0.0
                entry = self._entry(folder)
                fault = None if entry.digest_of_key == folder.name else f"{folder / ENTRY}: the entry of another key"
                if verify and fault is None:
                    verify_files(folder, entry.files)
                found.append(Kept(folder, entry, used_at, fault))
            except (RecordError, Refused, OSError) as error:
                if folder.is_dir():  # else it was pruned meanwhile
                    found.append(Kept(folder, None, 0.0, _line(error)))
        return sorted(found, key=lambda kept: (-kept.used_at, kept.folder.name))

    def prune(self, max_bytes: int | None = None) -> list[Kept]:
        """Remove what killed writers left, entries with a fault, and the least recently used until `max_bytes` are left. Returns the removed.

        What a running builder holds stays. Raises QwarmError when the store cannot be written.
        """
        if not self.root.is_dir():
            return []
        try:
            gone = [kept for kept in self.entries(verify=True) if kept.fault and self._remove(kept.folder)]
            gone += self._evict(self.max_bytes if max_bytes is None else max_bytes)
            for left in [*self.root.glob(".gone-*"), *self.root.glob("*/.*.tmp"), *self.root.glob("*/.*.old")]:
                digest = left.name.removeprefix(".").partition(".")[0]
                with contextlib.suppress(BlockingIOError):
                    descriptor = self._lock(digest, wait=False)
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(descriptor)
            for lock in self.root.glob(f"{LOCKS}/*"):
                with contextlib.suppress(BlockingIOError):
                    descriptor = self._lock(lock.name, wait=False)
                    lock.unlink(missing_ok=True)  # whoever waits for it sees that, and takes the new one
                    os.close(descriptor)
        except OSError as error:
            raise disk_error(error, self.root) from error
        return gone

    def _read(self, key: Key, take: Callable[[Path, Entry], object]) -> Found:
        kept = self.folder(key)
        if not kept.is_dir():
            return self._missing(key)
        try:
            entry = self._entry(kept)
            if entry.digest_of_key != key.digest:
                return Found(State.CORRUPT, (f"{kept / ENTRY}: the entry of another key",))
            take(kept, entry)
        except (RecordError, Refused) as error:
            if not kept.is_dir():  # pruned while it was read
                return self._missing(key)
            return Found(State.CORRUPT, (_line(error),))
        with contextlib.suppress(OSError):
            os.utime(kept / ENTRY)
        return Found(State.HIT)

    def _missing(self, key: Key) -> Found:
        """STALE when there is an entry of the same subject or the same model, for this target: the nearest one says which keys changed."""
        model = key.fields.get(MODEL)
        near: list[tuple[int, float, tuple[str, ...]]] = []
        for folder in self._folders(key.kind):
            with contextlib.suppress(RecordError, OSError):
                entry = self._entry(folder)
                same = (key.subject and entry.subject == key.subject) or (model is not None and entry.fields.get(MODEL) == model)
                if same and entry.fields.get("target") == key.fields.get("target"):
                    lines = tuple(difference(entry.fields, key.fields))
                    near.append((len(lines), -(folder / ENTRY).stat().st_mtime, lines))
        return Found(State.STALE, min(near)[2]) if near else Found(State.MISS)

    def _folders(self, kind: str = "*") -> list[Path]:
        return sorted(path for path in self.root.glob(f"{kind}/*") if not path.name.startswith(".") and path.parent.name != LOCKS and path.is_dir())

    def _entry(self, folder: Path) -> Entry:
        return Entry.load(folder / ENTRY, next="run `qwarm cache prune`")

    def _evict(self, max_bytes: int, besides: Path | None = None) -> list[Kept]:
        gone, kept = [], self.entries()
        total = sum(one.entry.bytes for one in kept if one.entry)
        for one in reversed(kept):
            if total <= max_bytes:
                break
            if one.entry and one.folder != besides and self._remove(one.folder):
                gone.append(one)
                total -= one.entry.bytes
        return gone

    def _remove(self, folder: Path) -> bool:
        """Take an entry away by one rename; False when a builder holds it, or it is gone already."""
        try:
            descriptor = self._lock(folder.name, wait=False)
        except BlockingIOError:
            return False
        try:
            with tempfile.TemporaryDirectory(prefix=".gone-", dir=self.root, ignore_cleanup_errors=True) as aside:
                folder.rename(Path(aside) / folder.name)
        except FileNotFoundError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _lock(self, digest: str, *, wait: bool) -> int:
        """A descriptor that holds the lock until it is closed. Raises OSError where it cannot be made, BlockingIOError where it is held."""
        path = self.root / LOCKS / digest
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_ino == os.fstat(descriptor).st_ino:
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # removed by `prune` meanwhile: another may hold its successor


def limit_bytes() -> int:
    """$QWARM_CACHE_GB in bytes; raises ConfigError for what is no positive number."""
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < 1e9:
        raise ConfigError("The size limit of the cache is no size", where=f"${LIMIT_VARIABLE}", expected="gigabytes, more than 0", got=text)
    return int(gigabytes * 1e9)


def _line(error: Exception) -> str:
    if isinstance(error, QwarmError):
        return f"{error.where}: expected {error.expected}, got {error.got}"
    return str(error)
