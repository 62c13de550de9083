"""How fast are rows of each kind of source, and does memory grow with them?

    python benchmarks/sources.py --json build/bench/sources.json

For each kind, small rows (16 float32 values and a text, or a 32 x 32 picture) are written in two sizes, a factor of ten apart, and read in a
fresh process: seconds to open, rows a second (decoded, with content digest), and the process's peak memory. `wide` is one parquet row group of
4,096 uint8 values a row, read as qwarm does and through the loader of `datasets` alone (`wide_loader`, without digests).
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

ROWS = {"parquet": 100_000, "arrow": 100_000, "csv": 100_000, "json": 100_000, "npz": 100_000, "imagefolder": 20_000, "webdataset": 20_000}
WIDE_ROWS, WIDTH = 60_000, 4096


def pictures(count: int) -> Iterator[tuple[str, bytes]]:
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        stream = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (32, 32), dtype=np.uint8)).save(stream, format="PNG")
        yield f"{number:06d}", stream.getvalue()


def write(kind: str, folder: Path, count: int) -> Path:
    """`count` rows of one kind; the path to open."""
    values = np.random.default_rng(0).normal(size=(count, 16)).astype(np.float32)
    text = [f"row {number}" for number in range(count)]
    path = folder / f"rows.{ {'webdataset': 'tar', 'json': 'jsonl'}.get(kind, kind) }"
    if kind == "npz":
        np.savez(path, x=values, text=np.array(text))
    elif kind == "csv":
        pa.csv.write_csv(pa.table({"x": values[:, 0], "text": text}), path)
    elif kind == "json":
        with open(path, "w") as stream:
            stream.writelines(json.dumps({"x": row, "text": word}) + "\n" for row, word in zip(values.tolist(), text, strict=True))
    elif kind == "imagefolder":
        path = folder / "pictures"
        path.mkdir()
        for name, content in pictures(count):
            (path / f"{name}.png").write_bytes(content)
    elif kind == "webdataset":
        with tarfile.open(path, "w") as archive:
            for name, content in pictures(count):
                member = tarfile.TarInfo(f"{name}.png")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    elif kind == "wide":
        pixels = np.random.default_rng(0).integers(0, 256, count * WIDTH, dtype=np.uint8)
        path = folder / "rows.parquet"
        pa.parquet.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(pixels), WIDTH)}), path, row_group_size=count)
    else:
        table = pa.table({"x": pa.array(list(values)), "text": text})
        if kind == "parquet":
            pa.parquet.write_table(table, path)
        else:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=1000)
    return path


def read(kind: str, path: Path) -> dict[str, float]:
    """In this process: open and read all rows."""
    from calibration.sources import open_rows
    from pipeline.config import SourceConfig

    columns = {"imagefolder": {"x": "image"}, "webdataset": {"x": "png"}, "wide": {"x": "x"}}.get(kind, {"x": "x", "text": "text"})
    started = time.monotonic()
    rows: Iterator[Any]
    if kind == "wide_loader":
        import datasets

        rows = iter(datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True).with_format("numpy"))
    else:
        source = SourceConfig.model_validate({"kind": kind if kind in ROWS else "parquet", "path": str(path)})
        rows = open_rows(source, columns).rows()
    opened = time.monotonic()
    next(rows)
    first = time.monotonic()
    count = 1 + sum(1 for _ in rows)
    seconds = time.monotonic() - opened
    return {
        "rows": count,
        "open_seconds": round(opened - started, 2),
        "first_row_seconds": round(first - opened, 2),
        "rows_per_second": round(count / seconds),
        "peak_mb": int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024,  # ru_maxrss would be the parent's
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--read", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(arguments.read[0], Path(arguments.read[1]))))
        return
    figures = []
    plan = [(kind, kind, count) for kind, most in ROWS.items() for count in (most // 10, most)]
    for kind, written, count in [*plan, ("wide", "wide", WIDE_ROWS), ("wide_loader", "wide", WIDE_ROWS)]:
        with tempfile.TemporaryDirectory() as folder:
            path = write(written, Path(folder), count)
            command = [sys.executable, __file__, "--read", kind, str(path)]
            figure = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        figures.append({"kind": kind, **figure})
        print("  ".join(f"{name} {value}" for name, value in figures[-1].items()), flush=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
