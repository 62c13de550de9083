"""Frozen dataclasses to canonical JSON and back, strictly: an unknown, missing or mistyped key is an error."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pipeline.digests import sha256_bytes
from pipeline.errors import RecordError
from pipeline.files import canonical_json, read_json, write_text


@dataclasses.dataclass(frozen=True)
class Record:
    """Base of every record that is saved: `SCHEMA` is its name and version, written as the key `schema`.

    A subclass that is only ever a part of another leaves `SCHEMA` empty and carries no such key.
    """

    SCHEMA: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data: enums by name, tuples as lists, nested records as objects."""
        return typing.cast(dict[str, Any], to_plain(self))

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> Self:
        """Strict inverse of `to_json`; raises RecordError naming the key."""
        return typing.cast(Self, from_plain(cls, data, where or cls.__name__))

    def to_text(self) -> str:
        """The canonical JSON text that `save` writes and `digest` hashes."""
        return canonical_json(self.to_json())

    def save(self, path: str | Path) -> None:
        """Write to `path` atomically as canonical JSON."""
        write_text(path, self.to_text())

    @classmethod
    def load(cls, path: str | Path, next: str = "run `dvc repro`") -> Self:
        """Read from `path`; raises RecordError when it is missing, torn or of another schema."""
        return cls.from_json(read_json(path, next), str(path))

    def digest(self) -> str:
        """sha256 of the canonical JSON: what other records are bound to."""
        return sha256_bytes(self.to_text().encode())


def to_plain(value: Any) -> Any:
    """Records, enums, tuples and mappings to what `json` writes; refuses a non-finite float."""
    if isinstance(value, Record):
        data = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"schema": value.SCHEMA, **data} if value.SCHEMA else data
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError("A record holds a number that is not finite", expected="a finite number", got=str(value))
    return value


def _refuse(where: str, expected: str, got: Any) -> RecordError:
    return RecordError(
        "A record does not fit its schema", where=where, expected=expected, got=repr(got)[:200], next="run `dvc repro` to write it again"
    )


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Resolved once a class: a record of a hundred layers would spend most of its loading there."""
    return typing.get_type_hints(cls)


def _record(cls: type[Record], data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _refuse(where, f"an object ({cls.SCHEMA or cls.__name__})", data)
    given = dict(data)
    if cls.SCHEMA and given.pop("schema", None) != cls.SCHEMA:
        raise _refuse(f"{where}: schema", cls.SCHEMA, data.get("schema"))
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(set(given) - set(fields)):
        raise _refuse(where, f"keys {sorted(fields)}", unknown)
    if missing := sorted(set(fields) - set(given)):
        raise _refuse(where, f"the keys {missing}", sorted(given))
    hints = _hints(typing.cast(Any, cls))  # mypy asks a class for the hash of its instances
    return cls(**{name: from_plain(hints[name], given[name], f"{where}: {name}") for name in fields})


def from_plain(kind: Any, data: Any, where: str) -> Any:
    """Check `data` against the type hint `kind` and convert; raises RecordError at the first key that differs."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return from_plain(option, data, where)
            except RecordError:
                continue
        raise _refuse(where, str(kind), data)
    if origin is tuple:
        if not isinstance(data, list):
            raise _refuse(where, "a list", data)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(from_plain(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(data))
        if len(data) != len(arguments):
            raise _refuse(where, f"{len(arguments)} items", data)
        return tuple(from_plain(a, item, f"{where}[{index}]") for index, (a, item) in enumerate(zip(arguments, data, strict=True)))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(data, Mapping):
            raise _refuse(where, "an object", data)
        return {key: from_plain(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is type(None):
        if data is not None:
            raise _refuse(where, "null", data)
        return None
    if isinstance(kind, type) and issubclass(kind, Record):
        return _record(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if not isinstance(data, str) or data not in kind.__members__:
            raise _refuse(where, f"one of {list(kind.__members__)}", data)
        return kind[data]
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if kind in (str, int, bool) and type(data) is kind:
        return data
    raise _refuse(where, getattr(kind, "__name__", str(kind)), data)
