"""What is kept of each row of a source while overlaps are looked for: ids, digests, groups and small signatures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from calibration.firewall.fields import NUMBERS, PICTURE, TEXT, TOKENS, Field, fields_of
from calibration.firewall.kind import Kind
from calibration.firewall.numeric import Numbers
from calibration.firewall.pictures import Pictures
from calibration.firewall.store import SignatureStore
from calibration.firewall.texts import Texts, Tokens
from pipeline.errors import DataError

CHUNK_ROWS, CHUNK_BYTES = 2048, 64 << 20
"""Rows that are held decoded at once, whichever limit comes first."""
THREADS, SIGNED_AT_ONCE = 2, 64
"""A thread takes many rows at once: for small ones, handing over each would cost more than signing it."""


class Readable(Protocol):
    """A row as any source gives it."""

    @property
    def id(self) -> str: ...
    @property
    def raw(self) -> Mapping[str, np.ndarray]: ...
    @property
    def digest(self) -> str: ...
    @property
    def group(self) -> str | None: ...


Fetch = Callable[[Collection[str]], Iterator[Readable]]
"""Reads the rows with these ids again."""


def kinds(tolerance: float) -> dict[str, Kind]:
    """The kinds of content that can be compared, by name. `tolerance`: see `Numbers`."""
    return {PICTURE: Pictures(), TEXT: Texts(), TOKENS: Tokens(), NUMBERS: Numbers(tolerance)}


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """Rows in order: `signatures` is {field name: (n, b) uint8}, `kind_of_field` says by which kind. Some bytes a row, whatever its size."""

    name: str
    ids: tuple[str, ...]
    digests: tuple[str, ...]
    groups: tuple[str | None, ...]
    signatures: Mapping[str, np.ndarray]
    kind_of_field: Mapping[str, str]
    fetch: Fetch
    columns: tuple[str, ...] = ()

    def subset(self, name: str, ids: Collection[str]) -> Catalogue:
        """The rows with these ids, in order, under another name."""
        wanted = set(ids)
        places = [place for place, row_id in enumerate(self.ids) if row_id in wanted]
        return dataclasses.replace(
            self,
            name=name,
            ids=tuple(self.ids[place] for place in places),
            digests=tuple(self.digests[place] for place in places),
            groups=tuple(self.groups[place] for place in places),
            signatures={field: array[places] for field, array in self.signatures.items()},
        )

    def fields(self, row: Readable) -> dict[str, np.ndarray]:
        """The compared content of one row by field name."""
        return {field.name: field.content for field in fields_of(row.raw, self.columns)}


def stored_version(kind: Kind, field: str, columns: Sequence[str]) -> str:
    """What a stored signature is of, besides the row: a digest is over all columns of a row, and a field may be of some."""
    return f"{kind.version}, field {field} of {', '.join(columns) or 'all columns'}"


class Cataloguer:
    """Takes rows one by one and signs them in threads, chunk by chunk; signatures that are in the store are not made again."""

    def __init__(self, name: str, fetch: Fetch, *, tolerance: float, columns: Sequence[str] = (), store: Path | None = None) -> None:
        self.name, self.fetch, self.columns, self.store = name, fetch, tuple(columns), store
        self.kinds = kinds(tolerance)
        self.ids: list[str] = []
        self.digests: list[str] = []
        self.groups: list[str | None] = []
        self.kind_of_field: dict[str, str] = {}
        self.signatures: dict[str, list[np.ndarray]] = {}
        self.signed = 0
        """Signatures that had to be made, because the store lacked them."""
        self._held: list[tuple[str, tuple[Field, ...]]] = []
        self._bytes = 0
        self._stores: dict[str, SignatureStore] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="qwarm-sign")

    def add(self, row: Readable) -> None:
        """Take one row; raises DataError where its fields are of another kind than those of the rows before."""
        fields = fields_of(row.raw, self.columns)
        found = {field.name: field.kind for field in fields}
        if self.ids and found != self.kind_of_field:
            raise DataError(
                "Rows of one source hold different kinds of content",
                where=f"row {row.id} of {self.name}",
                expected=", ".join(self.kind_of_field),
                got=", ".join(found),
                next="name the columns to compare in data.firewall.columns",
            )
        self.kind_of_field = found
        self.ids.append(row.id)
        self.digests.append(row.digest)
        self.groups.append(row.group)
        self._held.append((row.digest, fields))
        self._bytes += sum(field.content.nbytes for field in fields)
        if len(self._held) >= CHUNK_ROWS or self._bytes >= CHUNK_BYTES:
            self._sign()

    def extend(self, rows: Iterable[Readable]) -> Cataloguer:
        for row in rows:
            self.add(row)
        return self

    def finish(self) -> Catalogue:
        """Sign what is left and give the catalogue."""
        self._sign()
        self._pool.shutdown()
        joined = {name: np.concatenate(parts) for name, parts in self.signatures.items()}
        return Catalogue(
            self.name, tuple(self.ids), tuple(self.digests), tuple(self.groups), joined, dict(self.kind_of_field), self.fetch, self.columns
        )

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the store: damaged parts that were made again, a folder that cannot be written."""
        return [warning for store in self._stores.values() for warning in store.warnings]

    def _sign(self) -> None:
        if not self._held:
            return
        digests = [digest for digest, _ in self._held]
        for index, (name, kind_name) in enumerate(self.kind_of_field.items()):
            kind = self.kinds[kind_name]
            signatures, missing = np.zeros((len(digests), kind.signature_bytes), np.uint8), np.ones(len(digests), bool)
            store = self._store(name, kind)
            if store is not None:
                found, known = store.get(digests)
                signatures[found], missing = known[found], ~found
            places = np.flatnonzero(missing)
            if len(places):
                contents = [self._held[place][1][index].content for place in places]
                batches = [contents[start : start + SIGNED_AT_ONCE] for start in range(0, len(contents), SIGNED_AT_ONCE)]
                signed = self._pool.map(lambda batch, sign=kind.sign: [sign(content) for content in batch], batches)
                signatures[places] = list(itertools.chain.from_iterable(signed))
                self.signed += len(places)
                if store is not None:
                    store.put([digests[place] for place in places], signatures[places])
            self.signatures.setdefault(name, []).append(signatures)
        self._held, self._bytes = [], 0

    def _store(self, field: str, kind: Kind) -> SignatureStore | None:
        """One store a field: a row's digest is over all its columns, so that two fields of one row need two places."""
        if self.store is None:
            return None
        if field not in self._stores:
            self._stores[field] = SignatureStore(self.store, kind.name, stored_version(kind, field, self.columns), kind.signature_bytes)
        return self._stores[field]
