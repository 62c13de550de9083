"""A data set of the Hugging Face Hub at a pinned revision: its files from the local cache, or downloaded into it, then read like local files."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibration.sources.files import SUFFIXES, Files
from pipeline.data_config import SourceConfig
from pipeline.digests import sha256_json
from pipeline.errors import DataError

CARD = ("README.md", ".huggingface.yaml")
"""Where a data set says which files are which split, and of what type its columns are."""
READABLE = frozenset({*SUFFIXES, "imagefolder"})


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Files of one kind from one revision, and the loader's options for them, as the data set's card gives them."""

    kind: str
    files: Files
    options: Mapping[str, Any]
    name: str
    revision: str
    rows: int | None = None
    """What the card says, to tell a cache that holds only some of the files."""

    def sha256(self) -> str:
        """Over the revision, and names and contents of the files that are read."""
        return sha256_json({"name": self.name, "revision": self.revision, "files": self.files.sha256()})


def snapshot(source: SourceConfig) -> Snapshot:
    """The files of a hub source. No code of the data set is executed: a data set that needs a script is refused.

    Raises DataError when the files are neither cached nor to be had (it says how to cache them), and for a configuration, split or pattern
    that the data set does not have.
    """
    folder = _download(source)
    if source.files is not None:
        return _by_patterns(source, folder)
    return _by_card(source, folder)


def _download(source: SourceConfig) -> Path:
    import huggingface_hub

    patterns = None if source.files is None else [*source.files, *CARD]
    try:
        return Path(
            huggingface_hub.snapshot_download(str(source.name), repo_type="dataset", revision=source.revision, allow_patterns=patterns)
        ).absolute()
    except Exception as error:  # LocalEntryNotFoundError, IncompleteSnapshotError, HTTP and proxy errors, a malformed name
        include = "".join(f" --include {shlex.quote(pattern)}" for pattern in (patterns or ()))
        command = f"hf download {shlex.quote(str(source.name))} --repo-type dataset --revision {source.revision}{include}"
        raise DataError(
            "A data set of the Hub is not in the local cache, and cannot be downloaded",
            where=f"{source.name} at {source.revision}",
            expected="its files in the cache (HF_HOME), or a network that reaches the Hub",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            next=f"run `{command}` where there is a network, and copy the cache; or give a local copy as data.source: {{kind: parquet, path: ...}}",
        ) from error


def _by_patterns(source: SourceConfig, folder: Path) -> Snapshot:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    chosen = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in source.files or ())]
    kinds = {next((kind for kind, ends in SUFFIXES.items() if name.lower().endswith(ends)), "imagefolder") for name in chosen}
    if len(kinds) != 1:
        raise DataError(
            "The files of a Hub data set are not of one kind" if chosen else "No file of a Hub data set matches",
            where=f"data.source.files of {source.name}",
            expected=f"files of one kind: {', '.join(SUFFIXES)}, or pictures",
            got=", ".join(chosen[:5]) or f"none of {', '.join(names[:5])}",
            next="correct data.source.files in params.yaml",
        )
    return Snapshot(kinds.pop(), Files(folder, tuple(folder / name for name in chosen)), {}, str(source.name), str(source.revision))


def _by_card(source: SourceConfig, folder: Path) -> Snapshot:
    import datasets

    try:
        made = datasets.load_dataset_builder(str(folder), name=source.config)
        split = source.split or ("train" if "train" in made.config.data_files else next(iter(made.config.data_files)))
        names = list(made.config.data_files)
        paths = [Path(path) for path in made.config.data_files.get(split, ())]
    except Exception as error:  # no data files, several configurations and none named, a card that is no YAML
        raise DataError(
            "A Hub data set cannot be read as it is",
            where=f"{source.name} at {source.revision}",
            expected="data files that its card or their names describe (data sets that need a script of their own are not run)",
            got=f"{type(error).__name__}: {error}",
            next="set data.source.config, or name the files in data.source.files",
        ) from error
    kind = type(made).__module__.rpartition(".")[2]
    if kind not in READABLE or not paths:
        raise DataError(
            "A Hub data set has no such split" if not paths else "A Hub data set is of a kind that cannot be read",
            where=f"{source.name} at {source.revision}",
            expected=f"a split of {', '.join(names)}" if not paths else f"one of {', '.join(sorted(READABLE))}",
            got=split if not paths else kind,
            next="correct data.source in params.yaml",
        )
    outside = [path for path in paths if not Path(os.path.normpath(path)).is_relative_to(folder)]
    if outside:
        raise DataError(
            "A Hub data set names files that are not its own",
            where=f"{source.name} at {source.revision}",
            expected="files of the data set",
            got=str(outside[0]),
            next="give a local copy as data.source: {kind: parquet, path: ...}",
        )
    options = {key: getattr(made.config, key) for key in ("sep", "drop_labels", "drop_metadata") if getattr(made.config, key, None)}
    if made.info.features is not None:
        options["features"] = made.info.features
    known = (made.info.splits or {}).get(split)
    rows = known.num_examples if known is not None and known.num_examples else None
    return Snapshot(kind, Files(folder, tuple(sorted(paths))), options, str(source.name), str(source.revision), rows)
