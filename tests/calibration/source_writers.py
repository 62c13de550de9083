"""The same rows in every file format that a source may have: what tests compare."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet


def write_parquet(path: Path, table: pa.Table) -> Path:
    pa.parquet.write_table(table, path)
    return path


def write_shards(folder: Path, table: pa.Table, cut: int) -> Path:
    """Two parquet files, the second with its columns the other way round."""
    folder.mkdir()
    write_parquet(folder / "part-1.parquet", table.slice(0, cut))
    write_parquet(folder / "part-0.parquet", table.slice(cut).select(table.column_names[::-1]))
    return folder


def write_arrow(path: Path, table: pa.Table, stream: bool = False) -> Path:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def write_json(path: Path, table: pa.Table) -> Path:
    """One object a line for `.jsonl`, else a list."""
    rows = table.to_pylist()
    path.write_text("\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows), encoding="utf-8")
    return path


def write_csv(path: Path, table: pa.Table) -> Path:
    pa.csv.write_csv(table, path)
    return path


def write_npz(path: Path, columns: Mapping[str, Any], compressed: bool = False) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **{name: np.asarray(value) for name, value in columns.items()})
    return path


def encoded(pixels: np.ndarray, format: str = "PNG", **options: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format=format, **options)
    return stream.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_folder(folder: Path, pictures: Mapping[str, bytes | np.ndarray]) -> Path:
    """Files by their path inside `folder`."""
    for name, content in pictures.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else encoded(content))
    return folder


def colour(count: int, seed: int = 0, size: int = 8) -> Sequence[np.ndarray]:
    """`count` distinct uint8 pictures (size, size, 3)."""
    return list(np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8))
