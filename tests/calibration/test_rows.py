"""Rows of a role are held to the manifest, and preprocessing to the declared inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sources import CLASSES, SPECS, drawn_roles, pictures, prepare

from calibration.prepared import load_prepare, prepare_row
from calibration.rows import arrays, batches
from calibration.sources import open_parquet
from pipeline.errors import ConfigError, DataError
from pipeline.records import Roles

SIZES = {"train": 20, "calibration": 11, "search": 6, "warmup": 3, "validation": "rest"}
COLUMNS = {"image": "image", "label": "label"}
Drawn = tuple[Path, Roles, np.ndarray, list[int]]


@pytest.fixture
def drawn(write_pictures: Callable[..., Path]) -> Drawn:
    pixels, labels = pictures(50), [i % 3 for i in range(50)]
    path = write_pictures(pixels, labels)
    return path, drawn_roles(open_parquet(path, COLUMNS, CLASSES), prepare, SPECS, SIZES), pixels, labels


def test_every_row_comes_once_and_in_the_manifests_order(drawn: Drawn) -> None:
    path, roles, pixels, labels = drawn
    source = open_parquet(path, COLUMNS, CLASSES)
    got = list(batches(source, roles, "calibration", prepare, SPECS, 4))
    assert [len(batch["image"]) for batch, _ in got] == [4, 4, 3]
    indices = [int(row) for row in roles.roles["calibration"].rows]
    together, found = arrays(source, roles, "calibration", prepare, SPECS)
    assert np.array_equal(together["image"], np.concatenate([batch["image"] for batch, _ in got]))
    assert np.array_equal(together["image"], np.stack([prepare({"image": pixels[i]})["image"] for i in indices]))
    assert found.tolist() == [labels[i] for i in indices]


def test_a_source_that_changed_since_roles_names_the_row(drawn: Drawn, write_pictures: Callable[..., Path]) -> None:
    _, roles, pixels, labels = drawn
    victim = int(roles.roles["search"].rows[2])
    edited = pixels.copy()
    edited[victim, 4, 4] ^= 1
    source = open_parquet(write_pictures(edited, labels, "edited.parquet"), COLUMNS, CLASSES)
    with pytest.raises(DataError, match=f"row {victim:07d}") as caught:
        list(batches(source, roles, "search", prepare, SPECS, 4))
    assert caught.value.next == "run `dvc repro roles`"
    shorter = open_parquet(write_pictures(pixels[:20], labels[:20], "shorter.parquet"), COLUMNS, CLASSES)
    with pytest.raises(DataError, match="changed since roles"):
        list(batches(shorter, roles, "validation", prepare, SPECS, 4))


def test_a_role_that_is_not_there(drawn: Drawn) -> None:
    path, roles, _, _ = drawn
    with pytest.raises(DataError, match="no such role"):
        arrays(open_parquet(path, COLUMNS, CLASSES), roles, "test", prepare, SPECS)


ZEROS = np.zeros((1, 8, 8), dtype=np.float32)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"picture": ZEROS}, "other inputs"),
        (ZEROS, "other inputs"),
        ({"image": ZEROS.astype(np.float64)}, "another dtype"),
        ({"image": [1.0]}, "another dtype"),
        ({"image": ZEROS[0]}, "another shape"),
        ({"image": ZEROS[:, :7]}, "another shape"),
        ({"image": np.full_like(ZEROS, np.inf)}, "not finite"),
    ],
)
def test_preprocessing_that_does_not_fit_names_the_row(result: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        prepare_row("0000009", {}, lambda _: result, SPECS)
    assert "row 0000009" in caught.value.where


def test_preprocessing_that_raises_names_the_row() -> None:
    with pytest.raises(DataError, match="KeyError"):
        prepare_row("0000009", {}, prepare, SPECS)


def test_preprocessing_is_loaded_with_its_files_digest(tmp_path: Path) -> None:
    from pipeline.digests import sha256_file

    (tmp_path / "pre.py").write_text("NUMBER = 1\ndef prepare(raw):\n    return raw\n", encoding="utf-8")
    function, digest = load_prepare("pre.py:prepare", tmp_path)
    assert function({"a": 1}) == {"a": 1}
    assert digest == sha256_file(tmp_path / "pre.py")
    with pytest.raises(ConfigError, match="not callable"):
        load_prepare("pre.py:NUMBER", tmp_path)


def test_a_label_that_changed_since_roles_is_noticed(drawn: Drawn, write_pictures: Callable[..., Path]) -> None:
    """Two labels that change places leave every row's content and the histogram as they were."""
    _, roles, pixels, labels = drawn
    first, second = next((a, b) for a in map(int, roles.roles["search"].rows) for b in map(int, roles.roles["search"].rows) if labels[a] != labels[b])
    swapped = list(labels)
    swapped[first], swapped[second] = labels[second], labels[first]
    source = open_parquet(write_pictures(pixels, swapped, "swapped.parquet"), COLUMNS, CLASSES)
    with pytest.raises(DataError, match="labels of the search rows"):
        list(batches(source, roles, "search", prepare, SPECS, 4))
    assert list(batches(source, roles, "warmup", prepare, SPECS, 4))
