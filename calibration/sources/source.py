"""An opened source: rows read lazily, in one order, decoded in one way."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibration.content import content_digest
from calibration.health import BadRow, RowError
from calibration.sources.cells import Cells, Decoder
from calibration.sources.labels import LABEL, Label, read_name
from pipeline.errors import DataError

OnBad = Callable[[BadRow], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoded row: `raw` by the names of `data.columns` (a picture is uint8 (H, W) or (H, W, 3), text a string array of rank 0).

    `digest` is that of `content_digest`: by value and without the label, so equal rows are found whatever their file format. `group` is that
    of the group column as text. `notes` are the anomalies that decoding met, as keys of `data.health`.
    """

    id: str
    raw: dict[str, np.ndarray]
    label: Label
    digest: str
    group: str | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Table:
    """What every kind of source is opened to. `features`: columns by name, as `datasets` describes them.

    `batches()` starts at the first row and gives ids and cells of some rows at a time. `names_rows` says that ids come from the data, and not
    from row numbers or paths, so that two rows may have one.
    """

    features: Mapping[str, Any]
    count: int
    batches: Callable[[], Iterator[tuple[list[str], Mapping[str, Cells]]]]
    names_rows: bool = False
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """`path` is the file or folder that was opened, `where` how people know it, `name` that in short; `count` rows.

    `ignored` are files of a folder that are not read.

    Ids are row numbers of seven digits, behind `shard:` in a source of several files; paths inside a folder of pictures; keys of a
    WebDataset; or what the `id` column holds.
    """

    path: Path
    name: str
    where: str
    count: int
    class_names: tuple[str, ...]
    columns: Mapping[str, str]
    decoders: Mapping[str, Decoder]
    label_of: Callable[[Any, str], Label] | None
    table: Table
    digest_of: Callable[[], str]
    group: str | None = None
    id: str | None = None

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.table.ignored

    @functools.cached_property
    def sha256(self) -> str:
        """Of all files' content, in whatever order; of a hub data set also its revision. Read when it is first asked for."""
        return self.digest_of()

    def rows(self, wanted: Collection[str] | None = None, on_bad: OnBad | None = None) -> Iterator[Row]:
        """Decode rows in source order, all or the `wanted` ids; memory does not grow with the number of rows.

        Raises RowError, a DataError, naming the row for a picture, value, label or group that cannot be read; with `on_bad` that is called
        instead, and the row is left out. Raises DataError for a file that cannot be read any further, and for an id that two rows have.
        """
        seen: set[str] = set()
        last = "the beginning"
        try:
            for ids, cells in self.table.batches():
                for index, row_id in enumerate(ids):
                    last = f"row {row_id}"
                    try:
                        if self.id is not None:
                            row_id = read_name(cells[self.id](index), f"{last}, column {self.id}, {self.where}", "row id", "missing_value")
                            last = f"row {row_id}"
                        if self.id is not None or self.table.names_rows:
                            if row_id in seen:
                                raise self._duplicate(row_id)
                            seen.add(row_id)
                        if wanted is None or row_id in wanted:
                            yield self._row(row_id, index, cells)
                    except RowError as error:
                        if on_bad is None:
                            raise
                        on_bad(BadRow.of(row_id, error))
        except (DataError, GeneratorExit):
            raise
        except Exception as error:  # loaders raise ArrowInvalid, OSError, ValueError, KeyError and more on damaged files
            raise DataError(
                "The data source cannot be read",
                where=f"{self.where}, after {last}",
                expected="a complete source",
                got=f"{type(error).__name__}: {error}",
                next="repair the file, or correct data.source",
            ) from error

    def _row(self, row_id: str, index: int, cells: Mapping[str, Cells]) -> Row:
        raw: dict[str, np.ndarray] = {}
        notes: dict[str, None] = {}
        for name, decode in self.decoders.items():
            where = f"row {row_id}, column {self.columns[name]}, {self.where}"
            try:
                raw[name], met = decode(cells[self.columns[name]](index), where)
            except RowError as error:
                if error.where:
                    raise
                raise error.at(where) from error
            notes.update(dict.fromkeys(met))
        label = None
        if self.label_of is not None:
            label = self.label_of(cells[self.columns[LABEL]](index), f"row {row_id}, column {self.columns[LABEL]}, {self.where}")
        group = None
        if self.group is not None:
            group = read_name(cells[self.group](index), f"row {row_id}, column {self.group}, {self.where}", "group", "missing_group")
        if _is_constant(raw):
            notes["constant"] = None
        return Row(row_id, raw, label, content_digest(raw), group, tuple(notes))

    def _duplicate(self, row_id: str) -> DataError:
        return DataError(
            "Two rows have one id",
            where=f"row {row_id}, {self.where}",
            expected="ids that are unique in the source",
            got=f"{row_id} twice",
            next="correct the ids" if self.id is None else f"correct column {self.id}, or name another one in data.id",
        )


def _is_constant(raw: Mapping[str, np.ndarray]) -> bool:
    """Every array of more than one value holds one value throughout, and there is such an array and no text."""
    arrays = [array for array in raw.values() if array.size > 1 or array.dtype.kind == "U"]
    return bool(arrays) and all(
        array.dtype.kind != "U" and array.flat[0] == array.flat[-1] and bool((array == array.flat[0]).all()) for array in arrays
    )
