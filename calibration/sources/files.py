"""The files of a source: one file, the files of a folder, or what a glob matches; and one digest over all of them."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Sequence
from pathlib import Path

from pipeline.digests import sha256_file, sha256_json
from pipeline.errors import DataError

SUFFIXES = {
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
    "webdataset": (".tar",),
    "npz": (".npz",),
}
"""What a folder's files of each kind end in; a file that is named itself, or by a glob, may end in anything."""


@dataclasses.dataclass(frozen=True)
class Files:
    """`paths` in the order of their names. `root` is the folder that names are relative to, or the one file itself."""

    root: Path
    paths: tuple[Path, ...]

    def name(self, path: Path) -> str:
        """Name of one file, inside the root."""
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def prefix(self, path: Path) -> str:
        """What the ids of a file's rows begin with: nothing for a source of one named file, so that a new shard renames no row."""
        return "" if path == self.root else f"{self.name(path)}:"

    def sha256(self) -> str:
        """Of the one file; or over names and contents of all, in whatever order."""
        if self.paths == (self.root,):
            return sha256_file(self.root)
        return sha256_json({self.name(path): sha256_file(path) for path in self.paths})


def find_files(path: Path, suffixes: Sequence[str], kind: str) -> Files:
    """The files of a source of `kind`; raises DataError when there is none, and for paths that are not files."""
    if path.is_file():
        return Files(path, (path,))
    if path.is_dir():
        found = (file for file in path.rglob("*") if file.name.lower().endswith(tuple(suffixes)) and file.is_file())
        paths = tuple(sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)))
        if not paths:
            raise DataError(
                f"A folder holds no {kind} file",
                where=str(path),
                expected=f"files that end in {', '.join(suffixes)}",
                got=_listing(path),
                next="correct data.source in params.yaml",
            )
        return Files(path, paths)
    if glob.has_magic(str(path)):
        paths = tuple(sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file()))  # noqa: PTH207
        if not paths:
            raise DataError(
                "A glob matches no file",
                where=str(path),
                expected=f"files of kind {kind}",
                got="none",
                next="correct data.source.path in params.yaml",
            )
        root = path
        while glob.has_magic(str(root)):
            root = root.parent
        return Files(root, paths)
    raise DataError(
        "The data source is missing",
        where=str(path),
        expected=f"a {kind} file, a folder of them, or a glob",
        got="no file",
        next="run `dvc repro data`, or correct data.source.path",
    )


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return f"{len(names)} other entries ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else "an empty folder"
