"""Folders of pictures, WebDataset archives and arrays in .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_writers import colour, encoded, write_folder, write_npz, write_tar

from calibration.health import BadRow, RowError
from calibration.sources import describe, guess, open_rows
from pipeline.config import SourceConfig
from pipeline.errors import DataError

PICTURES = colour(4)
LABELLED = {"image": "image", "label": "label"}


def folder_source(folder: Path, columns: dict[str, str] = LABELLED, classes: tuple[str, ...] = ("cat", "dog"), **options: Any) -> Any:
    return open_rows(SourceConfig(kind="imagefolder", path=str(folder)), columns, classes, **options)


def test_class_folders_are_labels_by_name_and_paths_are_ids(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"dog/2.png": PICTURES[0], "cat/1.png": PICTURES[1], "cat/10.PNG": PICTURES[2]})
    source = folder_source(folder, classes=("dog", "cat"))
    assert [(row.id, row.label) for row in source.rows()] == [("cat/1.png", 1), ("cat/10.PNG", 1), ("dog/2.png", 0)]
    assert source.count == 3
    assert [row.id for row in source.rows({"dog/2.png"})] == ["dog/2.png"]
    assert np.array_equal(next(source.rows({"dog/2.png"})).raw["image"], PICTURES[0])
    assert guess(folder).kind == "imagefolder"
    with pytest.raises(DataError, match="(?s)classes that the model does not.*dog"):
        folder_source(folder, classes=("cat", "cow"))


def test_one_class_is_a_class_and_none_is_none(tmp_path: Path) -> None:
    assert [row.label for row in folder_source(write_folder(tmp_path / "one", {"dog/1.png": PICTURES[0]})).rows()] == [1]
    flat = write_folder(tmp_path / "flat", {"1.png": PICTURES[0], "2.png": PICTURES[1]})
    assert [(row.id, row.label) for row in folder_source(flat, {"image": "image"}, ()).rows()] == [("1.png", None), ("2.png", None)]
    with pytest.raises(DataError, match="(?s)lacks a column.*in the folder itself have no class"):
        folder_source(flat)


def test_a_glob_takes_some_of_a_folder_with_the_same_ids(tmp_path: Path) -> None:
    write_folder(tmp_path, {"cat/1.png": PICTURES[0], "cat/2.png": PICTURES[1], "dog/1.png": PICTURES[2]})
    assert [row.id for row in folder_source(tmp_path / "*/1.png").rows()] == ["cat/1.png", "dog/1.png"]


def test_relative_paths_start_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "a" / "p", {"cat/1.png": PICTURES[0]})
    monkeypatch.chdir(tmp_path / "a")
    assert [row.id for row in folder_source(Path("p")).rows()] == ["cat/1.png"]
    assert [row.id for row in folder_source(Path("p/../p/*/*")).rows()] == ["cat/1.png"]
    assert [row.id for row in folder_source(Path()).rows()] == ["p/cat/1.png"]


def test_metadata_beside_the_pictures_gives_labels_groups_and_ids(tmp_path: Path) -> None:
    lines = "file_name,kind,patient\nx/1.png,dog,p1\nx/2.png,cat,p1\n3.png,cat,\n"
    folder = write_folder(tmp_path / "p", {"x/1.png": PICTURES[0], "x/2.png": PICTURES[1], "3.png": PICTURES[2], "metadata.csv": lines.encode()})
    bad: list[BadRow] = []
    source = folder_source(folder, {"image": "image", "label": "kind"}, group="patient")
    assert [(row.id, row.label, row.group) for row in source.rows(on_bad=bad.append)] == [("x/1.png", 1, "p1"), ("x/2.png", 0, "p1")]
    assert [(row.id, row.kind) for row in bad] == [("3.png", "missing_group")]
    assert describe(SourceConfig(kind="imagefolder", path=str(folder))) == {"image": "picture", "kind": "text", "patient": "text"}
    (folder / "metadata.csv").write_text("file_name,kind\n../outside.png,dog\n")
    with pytest.raises(DataError, match="cannot be read"):
        list(folder_source(folder, {"image": "image", "label": "kind"}).rows())


def test_other_files_are_listed_and_hidden_ones_are_not_there(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"cat/1.png": PICTURES[0], "cat/Thumbs.db": b"", "README.txt": b"", ".cache/2.png": PICTURES[1]})
    source = folder_source(folder)
    assert source.ignored == ("README.txt", "cat/Thumbs.db")
    assert [row.id for row in source.rows()] == ["cat/1.png"]


def test_the_digest_of_a_folder_sees_labels_and_pixels(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"cat/1.png": PICTURES[0], "dog/2.png": PICTURES[1]})
    before = folder_source(folder).sha256
    assert folder_source(folder.rename(tmp_path / "q")).sha256 == before
    (tmp_path / "q" / "dog" / "2.png").rename(tmp_path / "q" / "cat" / "2.png")
    assert folder_source(tmp_path / "q").sha256 != before


def test_a_picture_that_is_no_picture_names_its_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"cat/1.png": PICTURES[0], "cat/2.jpg": b"<html>404</html>", "cat/3.png": b""})
    with pytest.raises(RowError, match="(?s)cannot be decoded.*row cat/2.jpg"):
        list(folder_source(folder).rows())
    bad: list[BadRow] = []
    assert [row.id for row in folder_source(folder).rows(on_bad=bad.append)] == ["cat/1.png"]
    assert [(row.id, row.kind) for row in bad] == [("cat/2.jpg", "undecodable"), ("cat/3.png", "undecodable")]


def archive(path: Path, keys: list[str], **more: bytes) -> Path:
    return write_tar(
        path,
        [
            (f"{key}.{extension}", content)
            for index, key in enumerate(keys)
            for extension, content in {"png": encoded(PICTURES[index]), "cls": str(index % 2).encode(), **more}.items()
        ],
    )


def test_archives_have_keys_for_ids_and_extensions_for_columns(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    archive(tmp_path / "shards" / "1.tar", ["a/one", "a/two"])
    archive(tmp_path / "shards" / "0.tar", ["b/three"], json=b'{"patient": 5}')
    source = open_rows(guess(tmp_path / "shards" / "1.tar"), {"image": "png", "label": "cls"}, ("cat", "dog"))
    assert [(row.id, row.label) for row in source.rows()] == [("a/one", 0), ("a/two", 1)]
    assert np.array_equal(next(source.rows({"a/two"})).raw["image"], PICTURES[1])
    both = open_rows(guess(tmp_path / "shards"), {"image": "png", "label": "cls"}, ("cat", "dog"))
    assert [row.id for row in both.rows()] == ["b/three", "a/one", "a/two"]
    assert (source.count, both.count) == (2, 3)
    with pytest.raises(DataError, match="(?s)lacks a column.*one of cls, png.*jpg"):
        open_rows(guess(tmp_path / "shards" / "1.tar"), {"image": "jpg"})


def test_keys_that_two_archives_have_are_named(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(2):
        archive(tmp_path / "shards" / f"{number}.tar", ["one"])
    with pytest.raises(DataError, match="(?s)Two rows have one id.*row one"):
        list(open_rows(guess(tmp_path / "shards"), {"image": "png"}).rows())


def test_a_key_without_a_picture_and_an_empty_archive(tmp_path: Path) -> None:
    members = [(f"k{index}.{end}", content) for index in range(6) for end, content in (("png", encoded(PICTURES[0])), ("cls", b"1"))]
    path = write_tar(tmp_path / "t.tar", members[:-2] + members[-1:])
    bad: list[BadRow] = []
    assert len(list(open_rows(guess(path), {"image": "png"}).rows(on_bad=bad.append))) == 5
    assert [(row.id, row.kind) for row in bad] == [("k5", "missing_value")]
    with pytest.raises(DataError, match="(?s)empty.*KEY.EXTENSION"):
        open_rows(guess(write_tar(tmp_path / "e.tar", [])), {"image": "png"})


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_rows_by_their_first_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool, order: Any) -> None:
    from calibration.sources import npz

    monkeypatch.setattr(npz, "BATCH_BYTES", 100)
    x = np.asarray(np.random.default_rng(0).normal(size=(50, 2, 3)).astype(np.float32), order=order)
    text, empty = np.array([f"row {index}" for index in range(50)]), np.zeros((50, 0), np.float32)
    path = write_npz(tmp_path / "t.npz", {"x": x, "text": text, "y": np.arange(50), "none": empty, "mean": np.zeros(7)}, compressed)
    source = open_rows(guess(path), {"x": "x", "text": "text", "label": "y", "none": "none"})
    rows = list(source.rows())
    assert source.count == len(rows) == 50
    assert np.array_equal(np.stack([row.raw["x"] for row in rows]), x)
    assert rows[7].raw["x"].dtype == np.float32
    assert (rows[7].id, str(rows[7].raw["text"]), rows[7].label, rows[7].raw["none"].shape) == ("0000007", "row 7", 7, (0,))
    rows[7].raw["x"][:] = 0
    with pytest.raises(DataError, match=r"mean \[7\]"):
        describe(guess(path))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"(?s)no shared first axis.*x \[3, 2\], y \[4\]"),
        ({"x": np.array(1.0), "y": np.array(2.0)}, "no shared first axis"),
        ({"x": np.array([{"a": 1}, None]), "y": np.zeros(2)}, "(?s)neither numbers nor text.*not unpickled"),
        ({"x": np.array([b"a", b"b"]), "y": np.zeros(2)}, "neither numbers nor text"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "empty"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(tmp_path: Path, columns: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_rows(guess(write_npz(tmp_path / "t.npz", columns)), {"x": "x", "y": "y"})


def test_a_torn_npz_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "t.npz", {"x": np.zeros((100, 8))})
    source = open_rows(guess(path), {"x": "x"})
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        list(source.rows())
    path.write_bytes(content[:300])
    with pytest.raises(DataError, match="cannot be read"):
        open_rows(guess(path), {"x": "x"})
