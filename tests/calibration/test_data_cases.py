"""The cases of shared/cases that concern data, up to the rows that preprocessing gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import drawn_roles

from calibration.health import BadRow, Health, RowError
from calibration.prepared import prepare_row
from calibration.sources import Source, guess, open_rows
from pipeline.config import HealthConfig
from pipeline.errors import DataError
from pipeline.tensors import TensorSpec

CASES = Path(__file__).resolve().parents[2] / "../shared/cases/make_cases.py"
SPECS = (TensorSpec("x", "float32", ("batch", 3, 8, 8)),)
pytestmark = pytest.mark.skipif(not CASES.is_file(), reason="shared/cases is not beside this checkout")


@pytest.fixture
def case(tmp_path: Path) -> Callable[[str], Path]:
    """`case(name)` writes one case and gives its folder."""
    spec = importlib.util.spec_from_file_location("make_cases", CASES)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)

    def write(name: str) -> Path:
        folder = tmp_path / name
        getattr(cases, name)(folder)
        return folder

    return write


def prepared(source: Source, health: Health) -> list[str]:
    kept = []
    for row in health.rows(source):
        try:
            prepare_row(row.id, row.raw, dict, SPECS)
        except RowError as error:
            health.bad(BadRow.of(row.id, error))
        else:
            kept.append(row.id)
    return kept


def test_nan_row(case: Callable[[str], Path]) -> None:
    source = open_rows(guess(case("nan_row") / "calibration.npz"), {"x": "x"})
    with pytest.raises(RowError, match="(?s)not finite.*row 0000007, input x"):
        prepared(source, Health())
    health = Health(HealthConfig(non_finite="quarantine"))
    assert len(prepared(source, health)) == 31
    assert list(health.finish()["non_finite"].rows) == ["0000007"]


def test_constant_input(case: Callable[[str], Path]) -> None:
    source = open_rows(guess(case("constant_input") / "calibration.npz"), {"x": "x"})
    health = Health()
    prepared(source, health)
    with pytest.raises(DataError, match="(?s)Every row is constant.*32 rows"):
        health.finish()
    assert len({row.digest for row in source.rows()}) == 1


def test_one_dark_row(case: Callable[[str], Path]) -> None:
    source = open_rows(guess(case("one_dark_row") / "calibration.npz"), {"x": "x"})
    health = Health()
    assert len(prepared(source, health)) == source.count == 1
    assert health.finish() == {}, "dim, and not constant: it is the number of rows that is refused"
    with pytest.raises(DataError, match="(?s)too few distinct rows.*32 distinct rows"):
        drawn_roles(source, dict, SPECS, {"calibration": 32})


def test_bad_images(case: Callable[[str], Path]) -> None:
    source = open_rows(guess(case("bad_images")), {"image": "image"})
    with pytest.raises(RowError, match="(?s)cannot be decoded.*row empty.jpg"):
        list(Health().rows(source))
    health = Health(HealthConfig(undecodable="quarantine"))
    rows = {row.id: row.raw["image"] for row in health.rows(source)}
    found = {kind: sorted(anomaly.rows) for kind, anomaly in health.finish().items()}
    assert found == {
        "undecodable": ["empty.jpg", "truncated.jpg", "web_page.jpg"],
        "exif_rotation": ["exif6.jpg"],
        "greyscale": ["grey.jpg", "grey_alpha.png", "sixteen_bit.png"],
        "cmyk": ["cmyk.jpg"],
        "palette": ["palette.png"],
        "alpha": ["grey_alpha.png", "png_named.jpg", "rgba.png"],
        "sixteen_bit": ["sixteen_bit.png"],
        "misnamed": ["png_named.jpg"],
    }
    assert rows["exif6.jpg"].shape == (48, 32, 3)
    assert np.abs(rows["exif6.jpg"][2, 45 - 16].astype(int) - np.rot90(rows["ok.jpg"], -1)[2, 45 - 16]).max() <= 8
    expected = np.rint(np.arange(32 * 48).reshape(32, 48) * 40 * 255 / 65535)
    assert np.array_equal(rows["sixteen_bit.png"], expected)
    assert np.array_equal(rows["rgba.png"], rows["png_named.jpg"])


@pytest.mark.parametrize("order", ["number", "text", "reversed"])
def test_label_order(case: Callable[[str], Path], order: str) -> None:
    names = [str(number) for number in range(12)]
    names = {"number": names, "text": sorted(names), "reversed": names[::-1]}[order]
    source = open_rows(guess(case("label_order") / "folders"), {"image": "image", "label": "label"}, names)
    rows = list(source.rows())
    assert len(rows) == 48
    for row in rows:
        folder = row.id.split("/")[0]
        assert names[int(row.label or 0)] == folder
        assert abs(float(row.raw["image"].mean()) - 20 * int(folder)) < 8, "picture k is grey level 20 k"
