"""Opening a `datasets` source: columns, labels by name, and rows named in every refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import CLASSES, pictures, png

from calibration.sources import open_parquet
from pipeline.errors import DataError

COLUMNS = {"image": "image", "label": "label"}


def test_rows_are_decoded_and_named(write_pictures: Callable[..., Path]) -> None:
    pixels = pictures(5)
    source = open_parquet(write_pictures(pixels, [0, 1, 2, 0, 1]), COLUMNS, CLASSES)
    rows = list(source.rows())
    assert [row.id for row in rows] == ["0000000", "0000001", "0000002", "0000003", "0000004"]
    assert [row.label for row in rows] == [0, 1, 2, 0, 1]
    assert all(np.array_equal(row.raw["image"], picture) for row, picture in zip(rows, pixels, strict=True))
    assert source.count == 5
    assert [row.id for row in source.rows({"0000003"})] == ["0000003"]


def test_the_digest_is_of_the_content_not_of_the_file_format(write_pictures: Callable[..., Path]) -> None:
    import io

    from PIL import Image

    picture = pictures(1)[0]
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, format="BMP")
    first, second = open_parquet(write_pictures([png(picture), stream.getvalue()], [0, 0]), COLUMNS, CLASSES).rows()
    assert first.digest == second.digest


def test_a_missing_column_lists_what_is_there(write_pictures: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as caught:
        open_parquet(write_pictures(pictures(2), [0, 1]), {"image": "picture", "label": "label"}, CLASSES)
    assert caught.value.got == "picture"
    assert "image, label" in caught.value.expected


def test_missing_empty_and_torn_files(write_pictures: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing"):
        open_parquet(tmp_path / "none.parquet", COLUMNS, CLASSES)
    with pytest.raises(DataError, match="empty"):
        open_parquet(write_pictures([], [], "empty.parquet"), COLUMNS, CLASSES)
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(write_pictures(pictures(2), [0, 1]).read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read"):
        open_parquet(torn, COLUMNS, CLASSES)


def test_an_undecodable_picture_names_its_row(write_pictures: Callable[..., Path]) -> None:
    source = open_parquet(write_pictures([*pictures(2), b"not a picture"], [0, 1, 2]), COLUMNS, CLASSES)
    with pytest.raises(DataError, match="row 0000002"):
        list(source.rows())


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_outside_the_classes_names_its_row(write_pictures: Callable[..., Path], label: int) -> None:
    source = open_parquet(write_pictures(pictures(2), [0, label]), COLUMNS, CLASSES)
    with pytest.raises(DataError, match="row 0000001"):
        list(source.rows())


def test_labels_are_bound_by_name(write_pictures: Callable[..., Path]) -> None:
    from datasets import ClassLabel, Value

    text = write_pictures(pictures(3), ["2", "0", "1"], "text.parquet", Value("string"))
    assert [row.label for row in open_parquet(text, COLUMNS, CLASSES).rows()] == [2, 0, 1]
    shuffled = write_pictures(pictures(3), [0, 1, 2], "shuffled.parquet", ClassLabel(names=["2", "0", "1"]))
    assert [row.label for row in open_parquet(shuffled, COLUMNS, CLASSES).rows()] == [2, 0, 1]
    foreign = write_pictures(pictures(1), [0], "foreign.parquet", ClassLabel(names=["0", "seven"]))
    with pytest.raises(DataError, match="seven"):
        open_parquet(foreign, COLUMNS, CLASSES)


def test_arrays_and_files_without_hugging_face_metadata(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    values = [[0.5, float("nan")], [1.5, 2.5]]
    table = pyarrow.table(
        {"x": pyarrow.array(values, pyarrow.list_(pyarrow.float32())), "picture": [png(p) for p in pictures(2)], "label": pyarrow.array([1, 0])}
    )
    path = tmp_path / "plain.parquet"
    pyarrow.parquet.write_table(table, path)
    rows = list(open_parquet(path, {"x": "x", "picture": "picture", "label": "label"}, CLASSES).rows())
    assert rows[0].raw["x"].dtype == np.float32
    assert np.isnan(rows[0].raw["x"][1])
    assert rows[1].raw["picture"].shape == (8, 8)
