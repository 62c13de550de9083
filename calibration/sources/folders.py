"""Pictures in class folders, and WebDataset archives, by the loaders of the `datasets` library."""

from __future__ import annotations

import glob
import itertools
import os
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from calibration.sources.cells import Cells
from calibration.sources.files import Files, find_files
from calibration.sources.loading import BATCH_ROWS, empty, missing_column, stream, unreadable
from calibration.sources.source import Table
from pipeline.errors import DataError

PICTURE = "image"
"""The column that the folder's pictures are in; that of their folders' names is `label`."""


def picture_files(folder: Path) -> tuple[Files, tuple[str, ...]]:
    """Pictures and `metadata.csv`, `.jsonl` or `.parquet` of a folder (or a glob); and the names of all other files, which are not read."""
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    suffixes = (*ImageFolder.EXTENSIONS, *ImageFolder.METADATA_FILENAMES)
    if folder.is_file() or not (folder.is_dir() or glob.has_magic(str(folder))):
        raise DataError(
            "A folder of pictures is missing",
            where=str(folder),
            expected="a folder, with a folder a class in it where there are classes",
            got="a file" if folder.exists() else "nothing there",
            next="correct data.source.path in params.yaml",
        )
    files = find_files(folder, suffixes, "picture")
    names = set(ImageFolder.METADATA_FILENAMES)
    pictures = tuple(path for path in files.paths if path.name in names or path.suffix.lower() in ImageFolder.EXTENSIONS)
    there = folder.rglob("*") if folder.is_dir() else files.paths
    others = (file.relative_to(files.root) for file in set(there) - set(pictures) if file.is_file())
    ignored = tuple(sorted(other.as_posix() for other in others if not any(part.startswith(".") for part in other.parts)))
    return Files(files.root, pictures), ignored


def open_folder(files: Files, wanted: Collection[str] | None, ignored: tuple[str, ...] = (), options: Mapping[str, Any] | None = None) -> Table:
    """Pictures, each with its path inside the folder for an id.

    Columns: `image`, and `label` (the name of a picture's folder), or those of metadata files.

    Raises DataError for a folder without pictures, and an absent column.
    """
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    where = str(files.root)
    metadata = [path for path in files.paths if path.name in ImageFolder.METADATA_FILENAMES]
    pictures = [path for path in files.paths if path.name not in ImageFolder.METADATA_FILENAMES]
    if not pictures:
        got = ", ".join(path.name for path in metadata) or ", ".join(ignored[:5])
        raise DataError("A folder holds no picture", where=where, expected="pictures", got=got, next="correct data.source.path in params.yaml")
    in_folders = not metadata and all(path.parent != files.root for path in pictures)
    settings = {"drop_labels": not in_folders, "drop_metadata": not metadata, **(options or {})}
    try:
        dataset = stream("imagefolder", list(files.paths), **settings)
    except Exception as error:  # metadata files that differ, or are torn
        raise unreadable(where, "imagefolder", error) from error
    columns = list(dataset.features) if wanted is None else wanted
    if lacking := sorted(set(columns) - set(dataset.features)):
        hint = "" if in_folders or metadata else " (pictures that lie in the folder itself have no class)"
        raise missing_column(lacking[0], dataset.features, where + hint)

    def batches() -> Iterator[tuple[list[str], Mapping[str, Cells]]]:
        for rows in _some_at_a_time(dataset, {PICTURE, *columns}):
            ids = [Path(os.path.relpath(row[PICTURE]["path"], files.root.absolute())).as_posix() for row in rows]
            yield ids, _cells(rows, columns)

    return Table(dataset.features, len(pictures), batches, names_rows=bool(metadata), ignored=ignored)


def open_archives(files: Files, wanted: Collection[str] | None, options: Mapping[str, Any] | None = None) -> Table:
    """WebDataset archives: a row is the files of one key, which is its id; a column is what follows the key's first dot (`jpg`, `cls`, `json`).

    Raises DataError for a torn or empty archive, files that are not in the layout, and an absent column.
    """
    where = str(files.root)
    try:
        count = sum(_keys(path) for path in files.paths)
        if not count:
            raise empty(where, "files named KEY.EXTENSION in an archive")
        dataset = stream("webdataset", list(files.paths), **(options or {}))
    except DataError:
        raise
    except Exception as error:  # tarfile.ReadError, OSError, ValueError
        raise unreadable(where, "webdataset", error) from error
    columns = [name for name in dataset.features if not name.startswith("__")] if wanted is None else wanted
    if lacking := sorted(set(columns) - set(dataset.features)):
        raise missing_column(lacking[0], set(dataset.features) - {"__key__", "__url__"}, where)

    def batches() -> Iterator[tuple[list[str], Mapping[str, Cells]]]:
        for rows in _some_at_a_time(dataset, {"__key__", *columns}):
            yield [row["__key__"] for row in rows], _cells(rows, columns)

    return Table(dataset.features, count, batches, names_rows=True)


def _some_at_a_time(dataset: Any, columns: Collection[str]) -> Iterator[list[dict[str, Any]]]:
    """Rows as the loader gives them, pictures not yet decoded. (As Arrow it refuses rows that name their columns in another order.)"""
    import datasets

    chosen = dataset.select_columns(sorted(columns))
    for column, feature in dataset.features.items():
        if column in columns and isinstance(feature, datasets.Image):
            chosen = chosen.cast_column(column, datasets.Image(decode=False))
    rows = iter(chosen)
    while some := list(itertools.islice(rows, BATCH_ROWS)):
        yield some


def _cells(rows: list[dict[str, Any]], columns: Collection[str]) -> dict[str, Cells]:
    return {column: [row[column] for row in rows].__getitem__ for column in columns}


def _keys(path: Path) -> int:
    """Number of keys in an archive, from its headers alone."""
    from datasets.packaged_modules.webdataset.webdataset import base_plus_ext

    count, last = 0, None
    with tarfile.open(path) as archive:
        for member in archive:
            key = base_plus_ext(member.name)[0] if member.isfile() else None
            if key is not None and key != last:
                count, last = count + 1, key
    return count
