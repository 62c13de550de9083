"""Stage `model`: train the example (or run your `model.train`) on the `train` role alone."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import load_config
from pipeline.errors import ConfigError, ModelError
from pipeline.loading import load_object
from pipeline.progress import bar
from stages import paths
from stages.rows import role_arrays


def run() -> str:
    config = load_config(paths.PARAMS)
    if config.model.train is None:
        raise ConfigError(
            "There is nothing to train",
            where=f"{paths.PARAMS}: model.train",
            expected="a function that writes model.checkpoint",
            got="no such key",
            next="add model.train, or take the stage `model` out of dvc.yaml and `dvc add` your checkpoint",
        )
    load_object(config.model.factory)  # a factory that cannot be imported is named before the training, not after it
    rows, labels = role_arrays(config, "train")
    checkpoint = Path(config.model.checkpoint)
    with bar("model: train") as report:
        figures = load_object(config.model.train)(rows, labels, seed=config.model.seed, checkpoint=checkpoint, progress=report)
    if not checkpoint.is_file():
        raise ModelError("Training wrote no checkpoint", where=config.model.train, expected=str(checkpoint), got="no file")
    return f"{checkpoint}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
