"""Opening a source: find its files, read what columns there are, and choose how each one is decoded."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.decode import MAX_PIXELS
from calibration.sources.cells import decoder, is_list, kind_of
from calibration.sources.files import SUFFIXES, find_files
from calibration.sources.folders import open_archives, open_folder, picture_files
from calibration.sources.hub import snapshot
from calibration.sources.labels import LABEL, Label, class_reader, load_class_names, read_scalar
from calibration.sources.npz import open_arrays
from calibration.sources.source import Source, Table
from calibration.sources.tables import open_table
from pipeline.config import DataConfig, SourceConfig
from pipeline.errors import DataError

BESIDE = {"dataset_info.json", "state.json"}
"""What `datasets` leaves beside the Arrow files of a saved data set."""


def open_source(data: DataConfig, source: SourceConfig, root: Path) -> Source:
    """Open `source`, `data.source` or that of one role, as params.yaml declares it; relative paths start at `root`. Raises as `open_rows`."""
    names = load_class_names(data.labels, root) if data.labels else ()
    return open_rows(source, data.columns, names, group=data.group, id=data.id, max_pixels=data.max_pixels, root=root)


def open_parquet(path: Path, columns: Mapping[str, str], class_names: Sequence[str]) -> Source:
    """Open parquet files: `open_rows` in short."""
    return open_rows(SourceConfig(kind="parquet", path=str(path)), columns, class_names)


def open_rows(
    source: SourceConfig,
    columns: Mapping[str, str],
    class_names: Sequence[str] = (),
    *,
    group: str | None = None,
    id: str | None = None,
    max_pixels: int = MAX_PIXELS,
    root: Path = Path(),
) -> Source:
    """Open a source of any kind; nothing is decoded yet, and nothing is written outside a temporary folder (and the cache, for `hub`).

    `columns` maps the names that preprocessing receives, and `label`, to columns. A picture is an `Image` column, a struct of `bytes` and
    `path`, or binary. A label is text, a ClassLabel (both looked up by name in `class_names`) or an integer index; without `class_names` it
    is any finite scalar, or there is no such column. `group` and `id` are columns of text or whole numbers.
    Raises DataError for a missing, unreadable or empty source, an absent column or one of the wrong type, and class names that differ.
    """
    if not set(columns) - {LABEL}:
        raise DataError("No column is given to preprocessing", where="data.columns", expected="a name besides `label`", got=", ".join(columns))
    named = [name for name in (columns.get(LABEL) if class_names else None, group, id) if name is not None]
    needed = sorted({*columns.values(), *named})
    path, where, table, digest_of = _open(source, root, needed, named)
    for name in {columns.get(LABEL), group, id} - {None}:
        feature = table.features[str(name)]
        if is_list(feature) or kind_of(feature) not in {"text", "numbers"}:
            raise DataError(
                "A column has the wrong type",
                where=f"column {name}, {where}",
                expected="one number or text a row, as a label, a group or an id",
                got=str(feature),
                next="name another column in data.columns.label, data.group or data.id",
            )
    folder = (path if path.is_dir() else path.parent).absolute()
    decoders = {
        name: decoder(table.features[column], f"column {column}, {where}", folder, max_pixels) for name, column in columns.items() if name != LABEL
    }
    label_of: Callable[[Any, str], Label] | None = None
    if class_names:
        label_of = _class_reader(table.features[columns[LABEL]], tuple(class_names), where, from_text=source.kind == "csv")
    elif LABEL in columns:
        label_of = read_scalar
    name = where if source.kind == "hub" else path.absolute().name
    return Source(path, name, where, table.count, tuple(class_names), dict(columns), decoders, label_of, table, digest_of, group, id)


def _class_reader(feature: Any, class_names: tuple[str, ...], where: str, from_text: bool) -> Callable[[Any, str], Label]:
    stored = tuple(feature.names) if getattr(feature, "names", None) else None
    return class_reader(stored, class_names, where, numbers=kind_of(feature) == "numbers", from_text=from_text)


def _open(source: SourceConfig, root: Path, columns: list[str] | None, text: list[str]) -> tuple[Path, str, Table, Callable[[], str]]:
    """The folder or file, how people know it, the opened table, and what computes the digest of its files."""
    if source.kind == "hub":
        taken = snapshot(source)
        kind, files, options, digest_of = taken.kind, taken.files, taken.options, taken.sha256
        where, ignored, rows = f"{taken.name}@{taken.revision[:12]}", tuple[str, ...](), taken.rows
    else:
        path = root / str(source.path)
        kind, where, options, rows = source.kind, str(path), dict[str, Any](), None
        files, ignored = picture_files(path) if kind == "imagefolder" else (find_files(path, SUFFIXES[kind], kind), ())
        digest_of = files.sha256
    if kind == "imagefolder":
        table = open_folder(files, columns, ignored, options)
    elif kind == "webdataset":
        table = open_archives(files, columns, options)
    elif kind == "npz":
        table = open_arrays(files, columns)
    else:
        table = open_table(kind, files, columns, text=text, options=options)
    if rows is not None and rows != table.count:
        raise DataError(
            "A Hub data set is not complete",
            where=where,
            expected=f"{rows} rows, as its card says",
            got=f"{table.count} rows in {len(files.paths)} files",
            next="delete this revision from the cache and download it again",
        )
    return files.root, where, table, digest_of


def guess(path: Path) -> SourceConfig:
    """The kind of a file or folder from its name or what it holds: for commands that take a path alone. Raises DataError where that says nothing."""
    if not path.exists() and not glob.has_magic(str(path)):
        raise DataError(
            "The data source is missing", where=str(path), expected="a file, a folder or a glob", got="nothing there", next="correct the path"
        )
    names = [path.name] if not path.is_dir() else [file.name for file in path.rglob("*") if file.is_file()]
    names = [name for name in names if not name.startswith("metadata.") and name not in BESIDE]
    kinds = {kind for kind, ends in SUFFIXES.items() if any(name.lower().endswith(ends) for name in names)}
    if path.is_dir() and not kinds:
        kinds = {"imagefolder"}
    if len(kinds) != 1:
        raise DataError(
            "It does not show what kind of data this is",
            where=str(path),
            expected=f"a folder of pictures, or files of one kind: {', '.join(sum(SUFFIXES.values(), ()))}",
            got=", ".join(sorted(kinds)) or "another name",
            next="give files of one kind",
        )
    return SourceConfig(kind=kinds.pop(), path=str(path))  # type: ignore[arg-type]


def describe(source: SourceConfig, root: Path = Path()) -> dict[str, str]:
    """The columns of a source, each with its kind: `picture`, `text` or `numbers`; or the name of a type that cannot be decoded."""
    _, _, table, _ = _open(source, root, None, [])
    return {name: kind_of(feature) for name, feature in table.features.items() if not name.startswith("__")}
