"""No row is in two roles: whatever the order, the sharding, the file format, and however often it is repeated."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.health import Health
from calibration.prove import prove_disjoint
from calibration.roles import MAIN, Policy, draw, read
from calibration.sources import open_rows
from pipeline.data_config import SourceConfig
from pipeline.tensors import TensorSpec

SPECS = (TensorSpec("x", "float32", ("batch", 3)),)
SIZES = {"train": 6, "warmup": 2, "search": 2, "calibration": 5, "validation": "rest"}
FORMATS = ("parquet", "arrow", "json", "csv", "npz")
Table = dict[str, list[Any]]


def write(table: Table, folder: Path, kind: str, shards: int) -> Path:
    import pyarrow
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    folder.mkdir()
    count = len(table["a"])
    for shard in range(shards):
        part = {name: column[shard * count // shards : (shard + 1) * count // shards] for name, column in table.items()}
        path = folder / f"part-{shard}.{kind}"
        arrow = pyarrow.table(part)
        if kind == "parquet":
            pyarrow.parquet.write_table(arrow, path)
        elif kind == "arrow":
            with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, arrow.schema) as stream:
                stream.write_table(arrow)
        elif kind == "csv":
            pyarrow.csv.write_csv(arrow, path)
        elif kind == "json":
            path.write_text("\n".join(json.dumps(dict(zip(part, cells, strict=True))) for cells in zip(*part.values(), strict=True)))
        else:
            np.savez(path, **{name: np.array(column) for name, column in part.items()})
    return folder


def prepare(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"x": np.array([float(raw[name]) for name in "abc"], np.float32)}


def roles_of(table: Table, columns: Sequence[str], kind: str, shards: int, *, grouped: bool) -> dict[str, set[str]]:
    """Roles by content, from files that exist only meanwhile; the manifest is proven disjoint on the way."""
    with tempfile.TemporaryDirectory() as scratch:
        path = write({name: table[name] for name in columns}, Path(scratch) / "source", kind, shards)
        source = open_rows(SourceConfig(kind=kind, path=str(path)), {name: name for name in "abc"}, group="g" if grouped else None)  # type: ignore[arg-type]
        policy = Policy(near="allow")
        roles = draw(
            [read(MAIN, source, prepare, SPECS, policy=policy, health=Health())],
            sizes=SIZES, seed=0, policy=policy, preprocess_sha256="0" * 64, class_names=(),
        ).roles  # fmt: skip
    prove_disjoint(roles)
    owners: dict[str, set[str]] = defaultdict(set)
    for name, role in roles.roles.items():
        for digest in role.digests:
            owners[digest].add(name)
    return owners


CELL = st.one_of(st.integers(-300, 300).map(float), st.floats(-1000, 1000, width=32))
ROW = st.tuples(CELL, st.integers(-5, 300), CELL)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(ROW, min_size=20, max_size=40, unique=True),
    st.lists(st.integers(0, 19), max_size=10),
    st.permutations(("a", "b", "c", "g")),
    st.integers(1, 3),
    st.sampled_from(FORMATS),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_no_content_and_no_group_plays_two_roles_and_the_draw_does_not_depend_on_the_files(
    rows: list[tuple[float, int, float]], repeated: list[int], columns: list[str], shards: int, kind: str, grouped: bool, shuffler: Any
) -> None:
    everything = rows + [rows[index] for index in repeated]
    group = {row: f"g{index % 13}" for index, row in enumerate(rows)}
    shuffled = list(everything)
    shuffler.shuffle(shuffled)

    def table(order: list[tuple[float, int, float]]) -> Table:
        return {"a": [r[0] for r in order], "b": [r[1] for r in order], "c": [r[2] for r in order], "g": [group[r] for r in order]}

    plain = roles_of(table(everything), ("a", "b", "c", "g"), "parquet", 1, grouped=grouped)
    other = roles_of(table(shuffled), columns, kind, shards, grouped=grouped)
    assert plain == other
    assert all(len(roles) == 1 for roles in plain.values())
    distinct = {tuple(np.float32(value) for value in row) for row in everything}
    assert len(plain) == len(distinct)
