"""Tiny real sources and models, made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sources import FACTORY, pictures, png, prepare

from pipeline.config import ModelConfig


@pytest.fixture
def write_pictures(tmp_path: Path) -> Callable[..., Path]:
    """`write(pixels (n, 8, 8), labels)` gives a parquet file with an Image column `image` and an integer column `label`."""

    def write(pixels: Sequence[np.ndarray | bytes], labels: Sequence[Any], name: str = "rows.parquet", label_feature: Any = None) -> Path:
        from datasets import Dataset, Features, Image, Value, disable_progress_bars

        disable_progress_bars()
        features = Features({"image": Image(), "label": label_feature or Value("int64")})
        cells = [{"bytes": item if isinstance(item, bytes) else png(item), "path": None} for item in pixels]
        path = tmp_path / name
        Dataset.from_dict({"image": cells, "label": list(labels)}, features=features).to_parquet(str(path))
        return path

    return write


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.py`, as a user's project has it."""
    root = tmp_path_factory.mktemp("project")
    (root / "model.py").write_text(FACTORY, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def tiny_model(tiny_root: Path) -> Callable[..., ModelConfig]:
    """`tiny_model("build_fixed", batch={...})`: the model section for one factory of `model.py`, its checkpoint written."""

    def make(factory: str = "build", batch: dict[str, int] | None = None, inputs: Sequence[str] = ("image",)) -> ModelConfig:
        import safetensors.torch

        from pipeline.loading import load_object

        reference = f"model.py:{factory}"
        checkpoint = tiny_root / f"{factory}.safetensors"
        if factory not in {"build_raising", "build_number"} and not checkpoint.exists():
            safetensors.torch.save_file(load_object(reference, tiny_root)().state_dict(), checkpoint)
        return ModelConfig.model_validate(
            {
                "factory": reference,
                "checkpoint": checkpoint.name,
                "inputs": {name: {"shape": ["batch", 1, 8, 8]} for name in inputs},
                "outputs": ["logits"],
                "shapes": {"batch": batch or {"min": 1, "opt": 4, "max": 8}},
            }
        )

    return make


@pytest.fixture(scope="session")
def batch() -> dict[str, np.ndarray]:
    """64 prepared rows."""
    return {"image": np.stack([prepare({"image": picture})["image"] for picture in pictures(64)])}
