"""What the cache store says and keeps: keys, entries, and what a look-up found."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pipeline.digests import sha256_json
from pipeline.records import File
from pipeline.strict import Record


class State(enum.Enum):
    """What a look-up found. STALE: only entries of the same thing with other keys; CORRUPT: bytes that are not the listed ones."""

    HIT = "hit"
    MISS = "miss"
    STALE = "stale"
    CORRUPT = "corrupt"


@dataclasses.dataclass(frozen=True)
class Key:
    """`fields`: all that invalidates the entry when it changes. `subject` says in plain words what it is of; it is no part of the digest."""

    kind: str
    fields: Mapping[str, str]
    subject: str = ""

    @property
    def digest(self) -> str:
        return sha256_json({"kind": self.kind, "fields": dict(self.fields)})


@dataclasses.dataclass(frozen=True)
class Entry(Record):
    """What `entry.json` holds."""

    SCHEMA: ClassVar[str] = "qwarm.cache-entry/1"
    kind: str
    fields: dict[str, str]
    subject: str
    files: dict[str, File]

    @property
    def digest_of_key(self) -> str:
        return Key(self.kind, self.fields).digest

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


@dataclasses.dataclass(frozen=True)
class Found:
    """`why`: one line for each key that changed, or each fault of the bytes. `notes`: what the store could not do (write, keep)."""

    state: State
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.state.value + (" (rebuilt)" if self.state is State.CORRUPT else "") + (f": {'; '.join(self.why)}" if self.why else "")
        return " | ".join((text, *self.notes))


@dataclasses.dataclass(frozen=True)
class Kept:
    """An entry on disk. `fault` says what is wrong with it; `entry` is None where even the record cannot be read."""

    folder: Path
    entry: Entry | None
    used_at: float
    fault: str | None = None
