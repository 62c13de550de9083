"""The embedded example's parts; its training to full accuracy is what `make repro` does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.sources import open_parquet
from pipeline.digests import sha256_file
from pipeline.loading import load_object

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"
CLASSES = load_object("model.py:CLASS_NAMES", EXAMPLE)


def test_the_source_is_the_scans_bit_for_bit_and_twice_the_same(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    write = load_object("data.py:write", EXAMPLE)
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet")
    assert sha256_file(tmp_path / "a.parquet") == sha256_file(tmp_path / "b.parquet")
    rows = list(open_parquet(tmp_path / "a.parquet", {"image": "image", "label": "label"}, CLASSES).rows())
    digits = load_digits()
    stored = np.stack([row.raw["image"] for row in rows])
    assert np.array_equal(np.rint(stored * 16.0 / 255), digits.images)
    assert [row.label for row in rows] == digits.target.tolist()


def test_preprocessing_is_the_same_for_grey_and_colour_and_keeps_flat_pictures_flat() -> None:
    prepare = load_object("preprocess.py:prepare", EXAMPLE)
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    expected = prepare({"image": grey})["image"]
    assert (expected.shape, expected.dtype) == ((1, 32, 32), np.float32)
    assert np.array_equal(prepare({"image": grey[..., None]})["image"], expected)
    assert np.array_equal(prepare({"image": np.repeat(grey[..., None], 3, axis=2)})["image"], expected)
    assert np.array_equal(prepare({"image": np.full((8, 8), 255, np.uint8)})["image"], np.ones((1, 32, 32), np.float32))
    assert expected.mean() == pytest.approx(grey.mean() / 127.5 - 1, abs=1e-6)


@pytest.mark.parametrize("raw", [{}, {"image": np.zeros((9, 9), np.uint8)}, {"image": np.zeros((8, 8))}, {"image": np.zeros((8, 8, 4), np.uint8)}])
def test_preprocessing_refuses_what_is_no_scan(raw: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="image"):
        load_object("preprocess.py:prepare", EXAMPLE)(raw)


def test_preprocessing_needs_only_numpy() -> None:
    import subprocess
    import sys

    script = (
        "import sys; sys.path.insert(0, '.'); import preprocess; print(any(m.split('.')[0] in {'torch', 'PIL', 'pipeline'} for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=EXAMPLE, capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_network_has_its_kinds_of_layers() -> None:
    from torch import nn

    modules = list(load_object("model.py:build", EXAMPLE)().modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in modules)
    assert any(isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1 for m in modules)


def test_training_is_deterministic_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch on few rows, twice: equal bytes. Patches the number of epochs only."""
    import torch

    train = load_object("train.py:train", EXAMPLE)
    monkeypatch.setitem(train.__globals__, "EPOCHS", 1)
    rows = {"image": np.random.default_rng(1).normal(size=(50, 1, 32, 32)).astype(np.float32)}
    labels = np.arange(50) % 10
    state = torch.random.get_rng_state()
    notes: list[str] = []
    metrics = [
        train(rows, labels, seed=seed, checkpoint=tmp_path / f"{index}.safetensors", progress=lambda *step: notes.append(str(step)))
        for index, seed in enumerate((0, 0, 1))
    ]
    digests = [sha256_file(tmp_path / f"{index}.safetensors") for index in range(3)]
    assert digests[0] == digests[1] != digests[2]
    assert metrics[0] == metrics[1]
    assert len(notes) == 3
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(ValueError, match="at least 50 rows"):
        train({"image": rows["image"][:10]}, labels[:10], seed=0, checkpoint=tmp_path / "none", progress=lambda *_: None)
