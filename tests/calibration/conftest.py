"""Tiny real sources and models, made on the fly."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import ModelConfig
from pipeline.tensors import TensorSpec

CLASSES = ("0", "1", "2")
SPECS = (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)

FACTORY = '''
import torch
from torch import nn


class Tiny(nn.Module):
    """Stem, residual block with BatchNorm, head: 16 channels, so that modelopt takes the convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer_scale = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.last = nn.BatchNorm2d(16)  # behind an Add: no weight to fold it into
        self.head = nn.Linear(16, 3)

    def forward(self, image):
        x = self.stem(image)
        x = torch.relu(self.last(x + self.layer_scale(x)))
        return self.head(x.mean((2, 3)))


class Fixed(Tiny):
    def forward(self, image):
        return super().forward(image).reshape(2, -1)


class Branch(Tiny):
    def forward(self, image):
        x = super().forward(image)
        return x if image.shape[0] == 4 else x[:2]


class Neighbours(Tiny):
    def forward(self, image):
        x = super().forward(image)
        return x - x.mean(0, keepdim=True)


def build():
    return trained(Tiny())


def trained(module):
    """Statistics as after training: no BatchNorm is the identity."""
    generator = torch.Generator().manual_seed(3)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight.data, part.running_var):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            for tensor in (part.bias.data, part.running_mean):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
        elif hasattr(part, "weight"):
            part.weight.data.copy_(torch.randn(part.weight.shape, generator=generator) * part.weight[0].numel() ** -0.5)
    return module


def build_fixed():
    return trained(Fixed())


def build_branch():
    return trained(Branch())


def build_neighbours():
    return trained(Neighbours())


def build_dead_channel():
    module = build()
    module.stem[0].weight.data[5] = 0
    return module


def build_products():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


def build_raising():
    raise RuntimeError("no such width")


def build_number():
    return 7
'''


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def prepare(raw: Any) -> dict[str, np.ndarray]:
    return {"image": (raw["image"].astype(np.float32) / 127.5 - 1)[np.newaxis]}


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """(count, 8, 8) distinct uint8 pictures."""
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)


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
