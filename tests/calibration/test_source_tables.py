"""Tables of every kind: shards, ids, groups, labels by name, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from source_writers import write_arrow, write_csv, write_json, write_npz, write_parquet, write_shards

from calibration.health import BadRow, RowError
from calibration.sources import describe, guess, open_rows
from pipeline.config import SourceConfig
from pipeline.errors import DataError

TABLE = pa.table({"x": [[0.5, 1], [2, 3], [4, 5]], "label": ["b", "a", "c"], "patient": [7, 7, 8], "name": ["one", "two", "three"]})
COLUMNS = {"x": "x", "label": "label"}
CLASSES = ("a", "b", "c")


def rows_of(path: Path, columns: dict[str, str] = COLUMNS, classes: tuple[str, ...] = CLASSES, **options: Any) -> list[Any]:
    return list(open_rows(guess(path), columns, classes, **options).rows())


def test_ids_are_row_numbers_and_in_several_files_the_file_comes_first(tmp_path: Path) -> None:
    one, shards = write_parquet(tmp_path / "one.parquet", TABLE), write_shards(tmp_path / "shards", TABLE, 2)
    assert [row.id for row in rows_of(one)] == ["0000000", "0000001", "0000002"]
    ids = ["part-0.parquet:0000000", "part-1.parquet:0000000", "part-1.parquet:0000001"]
    assert [row.id for row in rows_of(shards)] == ids
    globbed = open_rows(SourceConfig(kind="parquet", path=str(shards / "part-*.parquet")), COLUMNS, CLASSES)
    assert [row.id for row in globbed.rows()] == ids
    assert [row.label for row in globbed.rows()] == [2, 1, 0]
    first = open_rows(SourceConfig(kind="parquet", path=str(shards / "part-1*")), COLUMNS, CLASSES)
    assert [row.id for row in first.rows()] == ids[1:], "a shard more or less renames no row"


def test_the_digest_of_a_source_is_of_content_and_not_of_order_or_place(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", TABLE, 2)
    before = open_rows(guess(shards), COLUMNS, CLASSES).sha256
    moved = shards.rename(tmp_path / "moved")
    assert open_rows(guess(moved), COLUMNS, CLASSES).sha256 == before
    write_parquet(moved / "part-1.parquet", TABLE)
    assert open_rows(guess(moved), COLUMNS, CLASSES).sha256 != before


WRITERS: dict[str, Callable[[Path, pa.Table], Path]] = {
    "t.parquet": write_parquet,
    "t.arrow": write_arrow,
    "t.csv": write_csv,
    "t.json": write_json,
    "t.jsonl": write_json,
    "t.npz": lambda path, table: write_npz(path, table.to_pydict()),
}


@pytest.mark.parametrize("name", WRITERS)
def test_groups_and_ids_are_columns_of_text_or_whole_numbers(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, TABLE.drop_columns(["x"]).append_column("size", pa.array([1.5, 2.5, 3.5])))
    rows = rows_of(path, {"size": "size", "label": "label"}, group="patient", id="name")
    assert [(row.id, row.group, row.label) for row in rows] == [("one", "7", 1), ("two", "7", 0), ("three", "8", 2)]
    assert [row.id for row in open_rows(guess(path), {"size": "size"}, id="name").rows({"two"})] == ["two"]
    assert describe(guess(path)) == {"label": "text", "patient": "numbers", "name": "text", "size": "numbers"}


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "t.npz"])
def test_a_group_column_with_a_null_names_the_row(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": [1.5, 2.5, 3.5], "patient": pa.array([7, None, 8])}))
    with pytest.raises(RowError, match=r"(?s)no group.*row 0000001, column patient") as caught:
        rows_of(path, {"x": "x"}, (), group="patient")
    assert caught.value.kind == "missing_group"
    bad: list[BadRow] = []
    source = open_rows(guess(path), {"x": "x"}, group="patient")
    assert [row.group for row in source.rows(on_bad=bad.append)] == ["7", "8"]
    assert [(row.id, row.kind) for row in bad] == [("0000001", "missing_group")]
    assert "column patient" in bad[0].where


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "t.npz"])
def test_a_missing_value_names_row_and_column(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": pa.array([1, 2, None]), "text": ["a", None, "c"], "y": [1, 2, 3]}))
    with pytest.raises(RowError, match=r"(?s)missing.*row 0000002, column x"):
        rows_of(path, {"x": "x"}, ())
    bad: list[BadRow] = []
    rows = list(open_rows(guess(path), {"x": "x", "text": "text"}).rows(on_bad=bad.append))
    assert [row.id for row in rows] == ["0000000"]
    assert rows[0].raw["x"] == 1
    assert rows[0].raw["text"] == "a"
    assert [(row.id, row.kind) for row in bad] == [("0000001", "missing_value"), ("0000002", "missing_value")]


def test_holes_and_ragged_arrays_are_no_arrays(tmp_path: Path) -> None:
    table = pa.table({"x": [[[1, 2], [3, 4]], [[1], [2, 3]], [[1, None], [3, 4]], None, [[5, 6], [7, 8]]]})
    bad: list[BadRow] = []
    source = open_rows(guess(write_parquet(tmp_path / "t.parquet", table)), {"x": "x"})
    assert [row.raw["x"].tolist() for row in source.rows(on_bad=bad.append)] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert [(row.id, row.kind) for row in bad] == [("0000001", "wrong_shape"), ("0000002", "missing_value"), ("0000003", "missing_value")]
    assert all("column x" in row.where for row in bad)


def test_wanted_rows_are_chosen_before_anything_is_decoded(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", pa.table({"x": [b"no picture", b"none", b"nothing"]}))
    source = open_rows(guess(path), {"x": "x"})
    assert list(source.rows(set())) == []
    with pytest.raises(RowError, match="row 0000001"):
        list(source.rows({"0000001"}))


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.json", "t.npz"])
def test_duplicate_ids_are_named(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": [1, 2, 3], "name": ["one", "two", "one"]}))
    with pytest.raises(DataError, match=r"(?s)Two rows have one id.*row one.*data.id"):
        rows_of(path, {"x": "x"}, (), id="name")


@pytest.mark.parametrize("name", WRITERS)
def test_an_absent_column_lists_what_is_there(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": [1, 2], "y": [1, 2]}))
    for columns, options in (({"x": "pixels"}, {}), ({"x": "x"}, {"group": "pixels"}), ({"x": "x"}, {"id": "pixels"})):
        with pytest.raises(DataError, match=r"(?s)lacks a column.*one of x, y.*pixels"):
            open_rows(guess(path), columns, **options)


@pytest.mark.parametrize("use", ["label", "group", "id"])
def test_a_list_is_no_label_group_or_id(tmp_path: Path, use: str) -> None:
    path = write_parquet(tmp_path / "t.parquet", pa.table({"x": [1, 2], "y": [[1, 2], [3, 4]]}))
    columns, options = ({"x": "x", "label": "y"}, {}) if use == "label" else ({"x": "x"}, {use: "y"})
    with pytest.raises(DataError, match=r"(?s)wrong type.*column y.*List"):
        open_rows(guess(path), columns, **options)


def test_a_type_without_a_way_to_an_array_is_refused_at_once(tmp_path: Path) -> None:
    table = pa.table({"x": [{"a": 1}, {"a": 2}], "when": pa.array([1, 2], pa.timestamp("s")), "y": [1, 2]})
    path = write_parquet(tmp_path / "t.parquet", table)
    for column in ("x", "when"):
        with pytest.raises(DataError, match=f"(?s)without a declared way.*column {column}"):
            open_rows(guess(path), {"x": column})
    assert len(rows_of(path, {"x": "y"}, ())) == 2, "what is not mapped does not matter"


@pytest.mark.parametrize("name", WRITERS)
def test_labels_are_bound_by_name_whatever_the_order_of_the_classes(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": [1, 2, 3], "label": ["b", "a", "c"]}))
    assert [row.label for row in rows_of(path, COLUMNS, ("c", "b", "a"))] == [1, 2, 0]
    with pytest.raises(RowError, match=r"(?s)outside the class names.*row 0000002") as caught:
        rows_of(path, COLUMNS, ("a", "b"))
    assert caught.value.kind == "unknown_label"


TEXT_ORDER = ("0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9")


@pytest.mark.parametrize("name", ["t.parquet", "t.json", "t.npz", "t.arrow"])
def test_a_number_that_may_be_a_name_or_an_index_is_refused(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, pa.table({"x": [1, 2], "label": [10, 2]}))
    with pytest.raises(DataError, match="(?s)index or its name.*as text"):
        open_rows(guess(path), COLUMNS, TEXT_ORDER)
    assert [row.label for row in rows_of(path, COLUMNS, tuple(map(str, range(12))))] == [10, 2]


def test_labels_in_csv_are_names_where_they_can_be_and_indices_otherwise(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", pa.table({"x": [1, 2], "label": [10, 2]}))
    assert [row.label for row in rows_of(path, COLUMNS, TEXT_ORDER)] == [2, 4]
    path = write_csv(tmp_path / "u.csv", pa.table({"x": [1, 2], "label": [1, 0]}))
    assert [row.label for row in rows_of(path, COLUMNS, ("cat", "dog"))] == [1, 0]
    (tmp_path / "v.csv").write_text("x,label\n1,NA\n2,null\n")
    assert [row.label for row in rows_of(tmp_path / "v.csv", COLUMNS, ("null", "NA"))] == [1, 0]


def test_class_labels_that_shards_name_in_other_orders_are_refused(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    (tmp_path / "shards").mkdir()
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        features = Features({"x": Value("int64"), "label": ClassLabel(names=names)})
        Dataset.from_dict({"x": [1], "label": [0]}, features=features).to_parquet(str(tmp_path / "shards" / f"{number}.parquet"))
    with pytest.raises(DataError, match=r"(?s)disagree about a column.*column label.*1.parquet"):
        open_rows(guess(tmp_path / "shards"), COLUMNS, ("a", "b"))


def test_shards_that_differ_in_type_are_one_where_they_can_be(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number, values in enumerate(([1, 2], [0.5, 1.5])):
        write_json(tmp_path / "shards" / f"{number}.json", pa.table({"x": values}))
    assert [float(row.raw["x"]) for row in rows_of(tmp_path / "shards", {"x": "x"}, ())] == [1, 2, 0.5, 1.5]
    write_json(tmp_path / "shards" / "2.json", pa.table({"x": ["word"]}))
    with pytest.raises(DataError, match=r"(?s)disagree about a column.*2.json"):
        open_rows(guess(tmp_path / "shards"), {"x": "x"})


def test_a_category_of_pandas_is_text(tmp_path: Path) -> None:
    for path in (tmp_path / "t.parquet", tmp_path / "t.arrow"):
        WRITERS[path.name](path, pa.table({"x": [1, 2], "label": pa.array(["b", "a"]).dictionary_encode()}))
        assert [row.label for row in rows_of(path)] == [1, 0]


def test_csv_types_are_those_of_the_whole_file(tmp_path: Path) -> None:
    """The loader guesses anew every 10,000 lines."""
    lines = [f"{number},{number},{number}" for number in range(10_000)] + ["0.5,word,"]
    (tmp_path / "t.csv").write_text("x,text,gap\n" + "\n".join(lines))
    rows = list(open_rows(guess(tmp_path / "t.csv"), {"x": "x", "text": "text"}).rows())
    assert {row.raw["text"].dtype.kind for row in rows} == {"U"}
    assert [float(rows[index].raw["x"]) for index in (0, 9999, 10_000)] == [0, 9999, 0.5]
    with pytest.raises(RowError, match="row 0010000, column gap"):
        list(open_rows(guess(tmp_path / "t.csv"), {"x": "gap"}).rows())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2,3\n4,5,6\n", r"(?s)ragged line.*line 2.*2 fields.*3 fields"),
        ("t.csv", "a,b\n1,2\n3\n", r"(?s)ragged line.*line 3.*1 fields"),
        ("t.csv", "a,a\n1,2\n", "two columns alike"),
        ("t.csv", "a,b\n", "empty"),
        ("t.csv", "", "cannot be read|empty"),
        ("t.csv", b"\xff\xfe\x00\x01", "cannot be read"),
        ("t.json", "[1, 2, 3]", r"(?s)no list of rows.*item 0"),
        ("t.json", '"text"', "(?s)no list of rows.*line 1"),
        ("t.json", "[]", "empty"),
        ("t.json", '[{"a": 1}', "does not fit"),
        ("t.jsonl", '{"a": 1}\n{"a": "word"}\n', "(?s)does not fit.*one type"),
        ("t.jsonl", '{"a": 1}\nnonsense\n', "does not fit"),
        ("t.parquet", b"PAR1 and no more", "cannot be read"),
        ("t.arrow", b"nothing of the kind", "cannot be read"),
        ("t.npz", b"nothing of the kind", "cannot be read"),
        ("t.tar", b"nothing of the kind" * 100, "cannot be read"),
    ],
)
def test_damaged_files_are_refused_with_one_error(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        open_rows(guess(path), {"x": "a"})


def test_a_json_list_is_read_exactly(tmp_path: Path) -> None:
    """The loader rounds to ten decimals."""
    values = [5.960464477539063e-08, 0.1234567890123456]
    (tmp_path / "t.json").write_text(json.dumps([{"x": values}]))
    assert rows_of(tmp_path / "t.json", {"x": "x"}, ())[0].raw["x"].tolist() == values


def test_a_file_that_is_torn_between_opening_and_reading_names_the_last_row(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", pa.table({"x": np.arange(1000)}))
    source = open_rows(guess(path), {"x": "x"})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="(?s)cannot be read.*after the beginning"):
        list(source.rows())


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz", "webdataset", "imagefolder"])
def test_nothing_there_says_so(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("")
    for path, message in (("none", "missing"), ("folder", r"(?s)holds no \w+.*notes.txt"), ("*.none", "(?s)glob matches no file")):
        with pytest.raises(DataError, match=message):
            open_rows(SourceConfig(kind=kind, path=str(tmp_path / path)), {"x": "x"})  # type: ignore[arg-type]


def test_a_name_that_tells_no_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.pickle").write_text("")
    with pytest.raises(DataError, match="what kind of data"):
        guess(tmp_path / "t.pickle")


def test_a_path_with_the_signs_of_a_glob_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "data [1]"
    folder.mkdir()
    assert len(rows_of(write_parquet(folder / "t*.parquet", TABLE))) == 3


def test_a_picture_that_is_stored_by_its_path_lies_beside_the_table(tmp_path: Path) -> None:
    from source_writers import colour, encoded

    (tmp_path / "data").mkdir()
    (tmp_path / "outside.png").write_bytes(encoded(colour(1)[0]))
    (tmp_path / "data" / "inside.png").write_bytes(encoded(colour(1)[0]))
    cells = [{"bytes": None, "path": path} for path in ("inside.png", "../outside.png", "none.png")]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    path = write_parquet(tmp_path / "data" / "t.parquet", pa.table({"image": pa.array(cells, kind)}))
    bad: list[BadRow] = []
    assert [row.id for row in open_rows(guess(path), {"image": "image"}).rows(on_bad=bad.append)] == ["0000000"]
    assert [(row.id, row.kind) for row in bad] == [("0000001", "missing_value"), ("0000002", "undecodable")]
