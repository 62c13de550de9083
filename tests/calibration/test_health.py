"""Rows that are not well: every kind has an action, every row is listed, and none is left out in silence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from source_writers import colour, encoded, write_folder, write_npz

from calibration.health import KINDS, BadRow, Health, RowError, summary
from calibration.prepared import prepare_row
from calibration.sources import Source, guess, open_rows
from pipeline.anomalies import Anomaly
from pipeline.config import DataConfig, HealthConfig, InputConfig, SourceConfig
from pipeline.errors import DataError
from pipeline.tensors import TensorSpec

SPECS = (TensorSpec("x", "float32", ("batch", 2, 3)),)


def picture(mode: str = "RGB", format: str = "PNG", size: tuple[int, int] = (8, 6), **options: Any) -> bytes:
    from PIL import Image

    made = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    stream = io.BytesIO()
    made.convert(mode).save(stream, format=format, **options)
    return stream.getvalue()


def turned(orientation: int) -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(format="JPEG", exif=exif)


def animation() -> bytes:
    from PIL import Image

    frames = [Image.fromarray(pixels) for pixels in colour(3)]
    stream = io.BytesIO()
    frames[0].save(stream, format="PNG", save_all=True, append_images=frames[1:])
    return stream.getvalue()


def deep_png() -> bytes:
    """RGB of 16 bits a channel, which Pillow reads and cannot write."""
    import struct
    import zlib

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    levels = np.array([[0, 257, 32896], [65535, 65280, 4660]], ">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in levels[:, None, :])
    header = struct.pack(">IIBBBBB", 1, 2, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "plain.png": (picture(), ()),
    "turned.jpg": (turned(6), ("exif_rotation",)),
    "upright.jpg": (turned(1), ()),
    "unknown_turn.jpg": (turned(0), ()),
    "grey.png": (picture("L"), ("greyscale",)),
    "cmyk.jpg": (picture("CMYK", "JPEG"), ("cmyk",)),
    "palette.gif": (picture("P", "GIF"), ("palette",)),
    "clear.png": (picture("P", transparency=0), ("palette", "alpha")),
    "alpha.png": (picture("RGBA"), ("alpha",)),
    "grey_alpha.png": (picture("LA"), ("greyscale", "alpha")),
    "deep.png": (encoded(np.arange(48, dtype=np.uint16).reshape(6, 8) * 1000), ("greyscale", "sixteen_bit")),
    "deep_colour.png": (deep_png(), ("sixteen_bit",)),
    "moving.png": (animation(), ("several_frames",)),
    "misnamed.jpg": (picture(), ("misnamed",)),
    "misnamed.webp": (picture(format="JPEG"), ("misnamed",)),
    "flat.png": (encoded(np.full((6, 8, 3), 7, np.uint8)), ("constant",)),
}


@pytest.fixture
def mixed(tmp_path: Path) -> Source:
    broken = {"truncated.png": picture()[:100], "empty.png": b"", "page.png": b"<html></html>"}
    pictures = {name: content for name, (content, _) in PICTURES.items()}
    folder = write_folder(tmp_path / "p", {**pictures, **broken, "notes.txt": b"", "large.png": picture(size=(40, 30))})
    return open_rows(SourceConfig(kind="imagefolder", path=str(folder)), {"image": "image"}, max_pixels=1000)


def test_each_unusual_picture_is_noted_by_kind(mixed: Source) -> None:
    bad: list[BadRow] = []
    rows = {row.id: row for row in mixed.rows(on_bad=bad.append)}
    assert {name: row.notes for name, row in rows.items()} == {name: notes for name, (_, notes) in PICTURES.items()}
    assert rows["turned.jpg"].raw["image"].shape == (8, 6, 3)
    assert rows["deep_colour.png"].raw["image"].tolist() == [[[0, 1, 128]], [[255, 255, 18]]]
    assert {row.id: row.kind for row in bad} == {
        "truncated.png": "undecodable",
        "empty.png": "undecodable",
        "page.png": "undecodable",
        "large.png": "too_large",
    }


def test_everything_that_was_met_is_counted_and_listed(mixed: Source) -> None:
    health = Health(HealthConfig(undecodable="quarantine", too_large="quarantine", alpha="quarantine"))
    kept = [row.id for row in health.rows(mixed)]
    found = health.finish()
    expected = {kind: [name for name, (_, notes) in PICTURES.items() if kind in notes] for kind in KINDS}
    expected |= {"undecodable": ["empty.png", "page.png", "truncated.png"], "too_large": ["large.png"], "not_a_picture": ["notes.txt"]}
    assert {kind: sorted(anomaly.rows) for kind, anomaly in found.items()} == {kind: sorted(rows) for kind, rows in expected.items() if rows}
    assert all(anomaly.count == len(anomaly.rows) for anomaly in found.values())
    assert {kind for kind, anomaly in found.items() if anomaly.action == "quarantine"} == {"undecodable", "too_large", "alpha"}
    left_out = {*found["undecodable"].rows, *found["too_large"].rows, *found["alpha"].rows}
    assert set(kept) == {*PICTURES} - left_out
    assert "40 x 30 = 1200 pixels" in found["too_large"].rows["large.png"]
    assert "alpha 3 left out" in summary(found)
    assert Anomaly.from_json(found["alpha"].to_json()) == found["alpha"]


def test_by_default_what_cannot_be_used_is_refused_and_the_rest_is_kept(mixed: Source) -> None:
    with pytest.raises(RowError, match="(?s)cannot be decoded.*row empty.png") as caught:
        list(Health().rows(mixed))
    assert caught.value.kind == "undecodable"
    defaults = HealthConfig().model_dump()
    assert set(defaults) == set(KINDS)
    assert set(defaults.values()) == {"refuse", "accept"}


@pytest.mark.parametrize("kind", [kind for kind, action in HealthConfig().model_dump().items() if action == "accept"])
def test_a_kind_that_is_accepted_may_be_refused_or_left_out(mixed: Source, kind: str) -> None:
    others = {"undecodable": "quarantine", "too_large": "quarantine"}
    with pytest.raises(RowError, match=f"(?s)data.health refuses.*data.health.{kind}"):
        list(Health(HealthConfig.model_validate({**others, kind: "refuse"})).rows(mixed))
    health = Health(HealthConfig.model_validate({**others, kind: "quarantine"}))
    kept = {row.id for row in health.rows(mixed)}
    assert not kept & set(health.finish()[kind].rows)


@pytest.mark.parametrize("kind", [kind for kind, action in HealthConfig().model_dump().items() if action == "refuse"])
def test_what_cannot_be_used_is_never_accepted(kind: str) -> None:
    with pytest.raises(ValidationError, match="'refuse' or 'quarantine'"):
        HealthConfig.model_validate({kind: "accept"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        HealthConfig.model_validate({f"{kind}s": "refuse"})


def test_grey_is_an_anomaly_only_among_colour(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"1.png": colour(1)[0][..., 0], "2.png": colour(2)[1][..., 0]})
    health = Health()
    assert [row.notes for row in health.rows(open_rows(guess(folder), {"image": "image"}))] == [("greyscale",), ("greyscale",)]
    assert health.finish() == {}


def run(source: Source, policy: HealthConfig | None = None, **options: Any) -> tuple[list[str], dict[str, Anomaly]]:
    """Rows that are left after preprocessing, as the stage `roles` reads them."""
    health, kept = Health(policy), []
    for row in health.rows(source):
        try:
            prepare_row(row.id, row.raw, options.get("prepare", dict), options.get("specs", SPECS), None, options.get("values"))
        except RowError as error:
            health.bad(BadRow.of(row.id, error))
        else:
            kept.append(row.id)
    return kept, health.finish()


def arrays(path: Path, x: np.ndarray) -> Source:
    return open_rows(guess(write_npz(path, {"x": x})), {"x": "x"})


def test_a_nan_row_is_refused_by_name_or_left_out(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(32, 2, 3)).astype(np.float32)
    x[7, 0, 0] = np.nan
    source = arrays(tmp_path / "t.npz", x)
    with pytest.raises(RowError, match="(?s)not finite.*row 0000007, input x.*1 of 6"):
        run(source)
    kept, found = run(source, HealthConfig(non_finite="quarantine"))
    assert kept == [f"{index:07d}" for index in range(32) if index != 7]
    assert found == {
        "non_finite": Anomaly("quarantine", 1, {"0000007": "A row is not finite after preprocessing: 1 of 6 values are NaN or infinite"})
    }


def test_a_source_of_constant_rows_is_refused_and_one_such_row_is_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="(?s)Every row is constant.*32 rows"):
        run(arrays(tmp_path / "t.npz", np.full((32, 2, 3), 5, np.float32)))
    x = np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32)
    x[1] = 0
    assert run(arrays(tmp_path / "u.npz", x)) == (["0000000", "0000001", "0000002"], {"constant": Anomaly("accept", 1, {"0000001": ""})})


def test_an_attention_mask_of_ones_is_no_constant_row(tmp_path: Path) -> None:
    columns = {"ids": np.array([[1, 2], [3, 3]]), "mask": np.ones((2, 2), np.int64), "text": np.array(["a", "b"])}
    path = write_npz(tmp_path / "t.npz", columns)
    assert [row.notes for row in open_rows(guess(path), {"ids": "ids", "mask": "mask"}).rows()] == [(), ("constant",)]
    assert [row.notes for row in open_rows(guess(path), {"mask": "mask", "text": "text"}).rows()] == [(), ()]


@pytest.mark.parametrize(
    ("kind", "prepare"),
    [
        ("wrong_shape", lambda raw: {"x": raw["x"][:1]}),
        ("wrong_type", lambda raw: {"x": raw["x"].astype(np.float64)}),
        ("non_finite", lambda raw: {"x": raw["x"] * np.float32(np.inf)}),
        ("preprocessing", lambda raw: {"x": raw["pixels"]}),
    ],
)
def test_what_preprocessing_makes_of_a_row_has_a_kind(tmp_path: Path, kind: str, prepare: Any) -> None:
    source = arrays(tmp_path / "t.npz", np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32))
    with pytest.raises(RowError) as caught:
        run(source, prepare=prepare)
    assert caught.value.kind == kind
    kept, found = run(source, HealthConfig.model_validate({kind: "quarantine"}), prepare=prepare)
    assert kept == []
    assert found[kind].count == 3


def test_values_beyond_the_declared_range_name_row_and_input(tmp_path: Path) -> None:
    ids = np.array([[1, 2], [0, 9], [3, -1], [10, 4]])
    specs = (TensorSpec("x", "int64", ("batch", 2)),)
    source = arrays(tmp_path / "t.npz", ids)
    with pytest.raises(RowError, match="(?s)beyond the declared range.*row 0000002, input x.*0 to 9.*1 of 2 values, the first is -1"):
        run(source, specs=specs, values={"x": (0, 9)})
    kept, found = run(source, HealthConfig(out_of_range="quarantine"), specs=specs, values={"x": (0, 9)})
    assert kept == ["0000000", "0000001"]
    assert list(found["out_of_range"].rows) == ["0000002", "0000003"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"values": [0, 9]}, "integer input"),
        ({"dtype": "int64", "values": [9, 0]}, "hold nothing"),
        ({"dtype": "int64", "values": [1, 9], "pad": 0, "shape": ["batch", "n"]}, "outside values"),
    ],
)
def test_value_ranges_that_mean_nothing(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        InputConfig.model_validate({"shape": ["batch", 2], **given})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "parquet"}, "has a path"),
        ({"kind": "parquet", "path": "x", "revision": "main"}, "no revision"),
        ({"kind": "hub", "path": "x"}, "has a name"),
        ({"kind": "hub", "name": "a/b"}, "40 hexadecimal"),
        ({"kind": "hub", "name": "a/b", "revision": "main"}, "a branch or tag"),
        ({"kind": "hub", "name": "a/b", "revision": "0" * 40, "files": ["*"], "split": "train"}, "no meaning"),
    ],
)
def test_sources_that_do_not_add_up(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig.model_validate(source)


def test_health_is_a_part_of_the_data_section() -> None:
    roles = {"calibration": 1, "search": 1, "warmup": 1, "validation": "rest"}
    given = {"source": {"kind": "npz", "path": "x.npz"}, "columns": {"x": "x"}, "preprocess": "p.py:f", "roles": roles}
    assert DataConfig.model_validate(given).health == HealthConfig()
    assert DataConfig.model_validate({**given, "health": {"undecodable": "quarantine"}}).health.undecodable == "quarantine"
