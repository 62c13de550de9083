"""What training under fake quantization gives, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_qat import SETTINGS, model_of, run

from calibration.checkpoint import load_module
from calibration.qat.saved import Saved
from calibration.qat.train import Data
from pipeline.config import TrainingConfig
from pipeline.errors import ModelError


def test_training_brings_the_student_nearer_and_its_float_weights_fit_the_factory(root: Path, data: Data, tmp_path: Path) -> None:
    model, seen = model_of(root), list[tuple[int, int, str]]()
    result = run(
        model,
        root,
        data,
        tmp_path,
        TrainingConfig(epochs=20, learning_rate=0.1, batch_rows=8, patience=20),
        progress=lambda *entry: seen.append(entry),
    )
    assert result.start_db is not None
    best = result.epochs[result.best_epoch - 1].search_sqnr_db
    assert best is not None
    assert best > result.start_db + 1
    assert best == max(epoch.search_sqnr_db or 0 for epoch in result.epochs)
    assert result.epochs[-1].loss < result.epochs[0].loss
    assert seen[-1][:2] == (60, 60)  # three steps of at most eight of twenty rows, twenty epochs
    assert "loss" in seen[-1][2]
    safetensors.torch.save_file(result.state, tmp_path / "after.safetensors")
    after = load_module(model.model_copy(update={"checkpoint": str(tmp_path / "after.safetensors")}), root)
    before = load_module(model, root)
    moved = {name for name, tensor in after.state_dict().items() if not torch.equal(tensor, before.state_dict()[name])}
    assert {"stem.weight", "norm.weight", "up.weight", "head.bias"} <= moved
    assert not moved & {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "table.weight"}


def test_equal_runs_give_equal_weights_and_another_seed_others(root: Path, data: Data, tmp_path: Path) -> None:
    model = model_of(root)
    first, second = (run(model, root, data, tmp_path / name) for name in "ab")
    third = run(model, root, data, tmp_path / "c", SETTINGS.model_copy(update={"seed": 1}))
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    assert not all(torch.equal(first.state[name], third.state[name]) for name in first.state)


def test_tied_weights_stay_tied(root: Path, data: Data, tmp_path: Path) -> None:
    result = run(model_of(root, "build_tied"), root, data, tmp_path)
    assert torch.equal(result.state["first.weight"], result.state["second.weight"])
    assert not torch.equal(result.state["first.bias"], result.state["second.bias"])


def test_patience_ends_it_and_the_best_epoch_is_given(root: Path, data: Data, tmp_path: Path) -> None:
    """At a rate that only makes it worse, the corrected means before it are the best for good."""
    settings = TrainingConfig(epochs=30, learning_rate=50, batch_rows=8, patience=2)
    result = run(model_of(root), root, data, tmp_path, settings)
    assert (result.best_epoch, len(result.epochs)) == (0, 2)
    assert torch.equal(result.state["head.weight"], load_module(model_of(root), root).state_dict()["head.weight"])


def test_a_loss_that_is_no_number_ends_it_and_the_last_good_state_stays(root: Path, data: Data, tmp_path: Path) -> None:
    run(model_of(root), root, data, tmp_path, SETTINGS.model_copy(update={"epochs": 1}))
    says = r"(?s)diverged.*step 5 of 9, learning rate 0.2\n.*last good state: epoch 1.*lower quantize.training.learning_rate"
    with pytest.raises(ModelError, match=says):
        run(model_of(root, "build_steep"), root, data, tmp_path)
    kept = Saved(tmp_path, "key").newest()
    assert kept is not None
    assert len(kept[1]["epochs"]) == 1
    assert all(bool(tensor.isfinite().all()) for tensor in kept[0].values())


def test_rows_on_which_the_float_model_is_not_finite_are_not_taken_for_a_wrong_rate(root: Path, data: Data, tmp_path: Path) -> None:
    broken = Data({"image": data.train["image"].copy()}, data.search, data.calibration)
    broken.train["image"][3] = np.inf
    with pytest.raises(ModelError, match=r"(?s)float model gives values that are not finite.*role train, step . of 9.*scores"):
        run(model_of(root), root, broken, tmp_path)


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("build_sums", r"(?s)no layer to train.*build_sums.*Conv, ConvTranspose or Linear.*quantize.qat: never"),
        ("build_dropping", r"(?s)answers the same rows in two ways.*scores.*training=self.training"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_by_name(root: Path, data: Data, tmp_path: Path, factory: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        run(model_of(root, factory), root, data, tmp_path)
