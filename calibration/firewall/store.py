"""Signatures and verdicts kept across runs and processes, by content digest. Nothing is trusted that does not hash to its own name.

A store is a folder of segments. A segment is written whole (pipeline/files.py), never changed, and named by the sha256 of all its bytes:
one JSON line that says what it is of, then its digests (n, 32) sorted, then their values (n, value_bytes).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.digests import sha256_bytes
from pipeline.errors import DataError, QwarmError
from pipeline.files import write_bytes

MAGIC = b"qwarm segment 1\n"
DIGEST_BYTES = 32
DIGEST = np.dtype((np.void, DIGEST_BYTES))
SEGMENT_NAME = re.compile(r"[0-9a-f]{64}\.segment")
MOST_SEGMENTS = 16
"""More are made one at the next `put`."""
LISTINGS = 8
STALE_SECONDS = 3600
"""A temporary file as old as that was left by a writer that was killed."""
HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Segment:
    """Verified rows: `digests` (n,) of 32 bytes each (void), ascending and distinct; `values` (n, value_bytes) uint8."""

    digests: np.ndarray
    values: np.ndarray


class SignatureStore:
    """Values of a fixed length by sha256 digest, under `folder`/kind-version.

    Damaged, foreign and misplaced segments are named in `warnings` and left out, so their rows are made again. A folder that cannot be written is
    named there too, and nothing is kept. Any number of processes may read and write at once.
    """

    def __init__(self, folder: str | Path, kind_name: str, version: str, signature_bytes: int) -> None:
        self.value_bytes = signature_bytes
        self.header = json.dumps({"kind": kind_name, "version": version, "bytes": signature_bytes}, sort_keys=True).encode() + b"\n"
        self.folder = Path(folder) / f"{kind_name}-{sha256_bytes(self.header)[:16]}"
        self.warnings: list[str] = []
        self._segments: dict[str, Segment | None] = {}
        self._damaged: set[str] = set()

    def get(self, digests: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(n,) bool of which digests are kept, and their values (n, signature_bytes) uint8, zeros where they are not."""
        wanted = _as_bytes(digests)
        self._refresh()
        return self._look_up(wanted)

    def put(self, digests: Sequence[str], signatures: np.ndarray) -> int:
        """Keep values (n, signature_bytes) uint8; a digest that is kept already keeps its value. Returns how many are new and written.

        Damaged segments are removed then. Raises DataError when the shapes do not fit.
        """
        rows = _as_bytes(digests)
        values = np.ascontiguousarray(signatures, np.uint8)
        shape = (len(rows), self.value_bytes)
        if values.shape != shape:
            raise DataError("Signatures do not fit the store", where=str(self.folder), expected=f"shape {shape}", got=f"shape {values.shape}")
        self._refresh()
        fresh = ~self._look_up(rows)[0]
        if not fresh.any():
            return 0
        segment = _segment(rows[fresh], values[fresh])
        try:
            self._write(segment)
            self._remove(self._damaged)
            if len(self._segments) > MOST_SEGMENTS:
                self.compact(but_largest=True)
        except (OSError, QwarmError) as error:
            reason = f"{error.what.lower()} ({error.got})" if isinstance(error, QwarmError) else str(error)
            self._warn(f"Nothing is kept in {self.folder}: {reason}")
            return 0
        return len(segment.digests)

    def compact(self, but_largest: bool = False) -> None:
        """Make one segment of all that are sound (the largest left as it is, if asked) and remove what went into it and what killed writers left."""
        self._refresh()
        segments = {name: segment for name, segment in self._segments.items() if segment is not None}
        if but_largest and segments:
            del segments[max(segments, key=lambda name: len(segments[name].digests))]
        if len(segments) > 1:
            digests = np.concatenate([segment.digests for segment in segments.values()])
            kept = self._write(_segment(digests, np.concatenate([segment.values for segment in segments.values()])))
            self._remove(segments.keys() - {kept})
        self._remove(self._damaged)
        for path in self.folder.glob(".*.segment.*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()

    def _look_up(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.zeros(len(wanted), bool)
        values = np.zeros((len(wanted), self.value_bytes), np.uint8)
        for segment in self._segments.values():
            missing = np.flatnonzero(~found)
            if segment is None or not len(missing) or not len(segment.digests):
                continue
            places = np.minimum(np.searchsorted(segment.digests, wanted[missing]), len(segment.digests) - 1)
            hits = segment.digests[places] == wanted[missing]
            found[missing[hits]] = True
            values[missing[hits]] = segment.values[places[hits]]
        return found, values

    def _refresh(self) -> None:
        """Read and verify segments that were not seen before; forget those that are gone."""
        for _ in range(LISTINGS):
            names = self._names()
            self._segments = {name: segment for name, segment in self._segments.items() if name in names}
            self._damaged &= names
            gone = False
            for name in sorted(names - self._segments.keys()):
                try:
                    self._segments[name] = self._read(name)
                except FileNotFoundError:  # another process has made one of many: list again
                    gone = True
            if not gone:
                return
        self._warn(f"{self.folder} changes faster than it can be read, or holds a broken link: some rows are made again")

    def _names(self) -> set[str]:
        try:
            return {path.name for path in self.folder.iterdir() if SEGMENT_NAME.fullmatch(path.name)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            self._warn(f"{self.folder} cannot be read, and nothing in it is used: {error}")
            return set()

    def _read(self, name: str) -> Segment | None:
        """A segment, or None with a warning. Raises FileNotFoundError when it is gone."""
        path = self.folder / name
        start = len(MAGIC) + len(self.header)
        problem = "it is of another kind or version"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            content, problem = b"", f"it cannot be read: {error}"
        else:
            if sha256_bytes(content) != name.partition(".")[0]:
                self._damaged.add(name)
                problem = "its content is not what its name says: torn, changed or moved"
            elif content.startswith(MAGIC + self.header):
                rows, rest = divmod(len(content) - start, DIGEST_BYTES + self.value_bytes)
                if rows and not rest:
                    digests = np.frombuffer(content, DIGEST, rows, start)
                    values = np.frombuffer(content, np.uint8, rows * self.value_bytes, start + rows * DIGEST_BYTES)
                    return Segment(digests, values.reshape(rows, self.value_bytes))
                problem = "its length does not fit"
        self._warn(f"{path} is not used, and its rows are made again: {problem}")
        return None

    def _write(self, segment: Segment) -> str:
        content = MAGIC + self.header + segment.digests.tobytes() + segment.values.tobytes()
        name = f"{sha256_bytes(content)}.segment"
        write_bytes(self.folder / name, content)
        self._segments[name] = segment
        self._damaged.discard(name)
        return name

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            (self.folder / name).unlink(missing_ok=True)
            self._segments.pop(name, None)
            self._damaged.discard(name)

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class VerdictStore:
    """Confirmed pairs: how far two contents are apart, or that they do not come from one original. Order does not matter."""

    def __init__(self, folder: str | Path, kind_name: str, version: str) -> None:
        self._store = SignatureStore(folder, f"{kind_name}-verdicts", version, 8)

    @property
    def warnings(self) -> list[str]:
        """As of SignatureStore."""
        return self._store.warnings

    def get(self, left: Sequence[str], right: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(n,) bool of which pairs of digests were decided, and their distances (n,) float64, NaN where they are two originals or not decided."""
        found, values = self._store.get(_pair_digests(left, right))
        return found, np.where(found, values.view("<f8")[:, 0], np.nan)

    def put(self, left: Sequence[str], right: Sequence[str], distances: Sequence[float | None]) -> int:
        """Keep decisions; None is two originals. Returns how many are new and written."""
        values = np.array([np.nan if distance is None else distance for distance in distances], "<f8")
        return self._store.put(_pair_digests(left, right), values.reshape(-1, 1).view(np.uint8))


def _pair_digests(left: Sequence[str], right: Sequence[str]) -> list[str]:
    return [hashlib.sha256("".join(sorted(pair)).encode()).hexdigest() for pair in zip(left, right, strict=True)]


def _as_bytes(digests: Sequence[str]) -> np.ndarray:
    """Hex sha256 digests to (n,) of 32 bytes."""
    try:
        content = bytes.fromhex("".join(digests))
    except ValueError:
        content = b""
    if len(content) != DIGEST_BYTES * len(digests) or any(len(digest) != 2 * DIGEST_BYTES for digest in digests):
        wrong = next((digest for digest in digests if not HEX_DIGEST.fullmatch(digest)), "")
        raise DataError("A content digest is none", expected="64 hexadecimal digits", got=repr(wrong)[:100])
    return np.array([], DIGEST) if not content else np.frombuffer(content, DIGEST)


def _segment(digests: np.ndarray, values: np.ndarray) -> Segment:
    """Rows sorted by digest, the first of equal digests kept: equal content gives equal bytes."""
    distinct, first = np.unique(digests, return_index=True)
    return Segment(distinct, values[first])
