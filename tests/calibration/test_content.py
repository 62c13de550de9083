"""Content digests: equal for equal values, whatever dtype, file format, shard or column order they came in."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from source_writers import colour, encoded, write_arrow, write_csv, write_folder, write_json, write_npz, write_parquet, write_shards

from calibration.content import content_digest
from calibration.sources import guess, open_rows
from pipeline.config import SourceConfig


def digest(value: Any) -> str:
    return content_digest({"x": np.asarray(value)})


@pytest.mark.parametrize(
    "values",
    [
        [
            np.array([0, 1, 1], dtype)
            for dtype in ("bool", "uint8", "int8", "int32", "int64", "uint64", "float16", "float32", "float64", ">i4", ">f8")
        ],
        [np.array([-5, 70000], dtype) for dtype in ("int32", "int64", "float32", "float64")],
        [np.array([0.1, -2.5], np.float32), np.array([0.1, -2.5], np.float32).astype(np.float64), np.array([0.1, -2.5])],
        [np.array([0.5, 0.0]), np.array([0.5, -0.0])],
        [np.array([0.0]), np.array([-0.0]), np.array([0])],
        [np.array([np.nan, 1], np.float32), np.array([-np.nan, 1]), np.array([0x7FC00001, 0x3F800000], np.uint32).view(np.float32)],
        [np.array([16777216.5]), np.array([16777216.5]).astype(np.float32)],
        [np.array([[1, 2], [3, 4]]), np.asfortranarray([[1, 2], [3, 4]])],
        [np.array("tür"), np.array("tür", "<U9")],
        [np.zeros((0, 3)), np.zeros((0, 3), np.int64)],
    ],
)
def test_equal_values_have_one_digest(values: list[np.ndarray]) -> None:
    assert len({digest(value) for value in values}) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([1, 2], [[1, 2]]),
        ([1, 2], [2, 1]),
        ([256], [0]),
        ([2**62], [-(2**62)]),
        ([0.1], [0.2]),
        ([np.nan], [np.inf]),
        (["ab", "c"], ["a", "bc"]),
        ("1", 1),
        ([np.uint64(2**63)], [-(2**63)]),
        (np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2, 2), np.uint8)),
    ],
)
def test_other_values_have_another(left: Any, right: Any) -> None:
    assert digest(left) != digest(right)


def test_the_name_counts_and_the_order_of_names_does_not() -> None:
    x, y = np.arange(3), np.array("text")
    assert content_digest({"x": x, "y": y}) == content_digest({"y": y, "x": x})
    assert content_digest({"x": x}) != content_digest({"y": x})


@given(arrays(np.float64, array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32)))
@settings(max_examples=200, deadline=None)
def test_float32_and_float64_agree(array: np.ndarray) -> None:
    assert digest(array) == digest(array.astype(np.float32))


def test_what_is_no_number_has_no_digest() -> None:
    with pytest.raises(TypeError, match="complex"):
        digest(1j)


def test_a_grey_picture_in_colour_is_the_grey_picture() -> None:
    grey = colour(1)[0][..., 0]
    assert digest(np.repeat(grey[..., None], 3, axis=2)) == digest(grey)
    tinted = np.repeat(grey[..., None], 3, axis=2)
    tinted[-1, -1, 2] ^= 1
    assert digest(tinted) != digest(grey)


@pytest.mark.parametrize("grey", [False, True])
def test_lossless_formats_agree(tmp_path: Path, grey: bool) -> None:
    pixels = colour(1)[0][..., 0] if grey else colour(1)[0]
    formats: dict[str, dict[str, Any]] = {"PNG": {}, "BMP": {}, "TIFF": {"compression": "tiff_lzw"}, "WEBP": {"lossless": True}, "GIF": {}, "PPM": {}}
    folder = {f"{name}.{name.lower()}": encoded(pixels, name, **options) for name, options in formats.items() if grey or name != "GIF"}
    rows = list(open_rows(SourceConfig(kind="imagefolder", path=str(write_folder(tmp_path / "p", folder))), {"image": "image"}).rows())
    assert len(rows) == len(folder)
    assert {row.digest for row in rows} == {content_digest({"image": pixels})}


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "vector": st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
            "ids": st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=5),
            "number": st.floats(allow_nan=False, allow_infinity=False),
            "whole": st.integers(-(2**31), 2**31 - 1),
            "text": st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8).map(lambda text: f"t{text}"),
        }
    ),
    min_size=2,
    max_size=9,
)


@given(rows=ROWS, data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_file_format_does_not_show_in_a_row(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    types = {"vector": pa.list_(pa.float32()), "ids": pa.list_(pa.int64()), "number": pa.float64(), "whole": pa.int32(), "text": pa.string()}
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})
    cut = data.draw(st.integers(1, len(rows) - 1), label="cut")
    order = data.draw(st.permutations(list(types)), label="order of columns")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = [
            write_parquet(folder / "one.parquet", table),
            write_parquet(folder / "columns.parquet", table.select(order)),
            write_shards(folder / "shards", table, cut),
            write_arrow(folder / "file.arrow", table),
            write_arrow(folder / "stream.arrow", table, stream=True),
            write_json(folder / "list.json", table),
            write_json(folder / "lines.jsonl", table),
        ]
        expected = [content_digest({name: np.asarray(row[name]) for name in types}) for row in rows]
        for path in every:
            assert _digests(path, list(types)) == sorted(expected), path.name
        flat = ["number", "whole", "text"]
        expected = [content_digest({name: np.asarray(row[name]) for name in flat}) for row in rows]
        npz = write_npz(folder / "some.npz", {name: [row[name] for row in rows] for name in flat})
        for path in (write_csv(folder / "some.csv", table.select(flat)), npz):
            assert _digests(path, flat) == sorted(expected), path.name


def _digests(path: Path, names: list[str]) -> list[str]:
    return sorted(row.digest for row in open_rows(guess(path), {name: name for name in names}).rows())
