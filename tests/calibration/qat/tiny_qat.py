"""Tiny networks that are trained under fake quantization, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from tiny_sources import pictures, prepare

from calibration.checkpoint import load_module
from calibration.qat.fake import insert
from calibration.qat.machines import Alone
from calibration.qat.saved import Saved
from calibration.qat.teacher import outputs
from calibration.qat.train import Data, Trained, train
from calibration.tracing import bind, call
from pipeline.config import ModelConfig, TrainingConfig
from pipeline.loading import load_object
from pipeline.tensors import AxisRange

FACTORY = '''
import torch
from torch import nn
from torch.nn import functional


class Padded(nn.Conv2d):
    """With a forward of its own, as in many published networks."""

    def forward(self, x):
        return functional.conv2d(functional.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = Padded(1, 16, 3), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.layer_norm = nn.LayerNorm(8)
        self.unused, self.table = nn.Linear(8, 8), nn.Embedding(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, image):
        x = torch.relu(self.norm(self.stem(image)))
        x = self.layer_norm(torch.relu(self.up(x)).mean((2, 3)))
        x = functional.linear(x, self.unused.weight)
        return self.head(x), x.argmax(1)


class Dropping(Net):
    def forward(self, image):
        scores, best = super().forward(image)
        return functional.dropout(scores), best


class Sums(nn.Module):
    """Nothing that multiplies by a weight."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, image):
        x = image.mean((2, 3)) + self.offset
        return x, x.argmax(1)


class Steep(Net):
    def forward(self, image):
        scores, best = super().forward(image)
        return scores + torch.sqrt(scores - scores), best  # whose gradient is no number


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, image):
        x = self.second(torch.relu(self.first(image.flatten(1))))
        return x, x.argmax(1)


def seeded(kind):
    torch.manual_seed(0)
    module = kind()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            part.weight.data.normal_(0, 1)  # negative factors too
    return module


def build(): return seeded(Net)
def build_dropping(): return seeded(Dropping)
def build_steep(): return seeded(Steep)
def build_sums(): return seeded(Sums)
def build_tied(): return seeded(Tied)
'''

SIZE = AxisRange(1, 4, 8)
SETTINGS = TrainingConfig(epochs=3, learning_rate=0.2, batch_rows=8, patience=3)


def model_of(root: Path, factory: str = "build") -> ModelConfig:
    state = {name: tensor.clone() for name, tensor in load_object(f"model.py:{factory}", root)().state_dict().items()}
    safetensors.torch.save_file(state, root / f"{factory}.safetensors")
    return ModelConfig.model_validate(
        {
            "factory": f"model.py:{factory}", "checkpoint": f"{factory}.safetensors", "inputs": {"image": {"shape": ["batch", 1, 8, 8]}},
            "outputs": ["scores", "best"], "shapes": {"batch": {"min": 1, "opt": 4, "max": 8}},
        }
    )  # fmt: skip


def teaching() -> Data:
    images = np.stack([prepare({"image": picture})["image"] for picture in pictures(40)])
    rows = [{"image": images[start:end]} for start, end in ((0, 20), (20, 32), (32, 40))]
    return Data(rows[0], rows[1], lambda: iter([rows[2]]))


def run(model: ModelConfig, root: Path, data: Data, folder: Path, settings: TrainingConfig = SETTINGS, **options: Any) -> Trained:
    return train(model, root, data, settings, Saved(folder, "key"), **{"affine": True, "method": "max", "machine": Alone(), **options})


def inserted(root: Path, data: Data, factory: str = "build", **options: Any) -> tuple[Any, Any, Any]:
    """A converted module with how it is called, and the float outputs before."""
    model = model_of(root, factory)
    module = load_module(model, root)
    bound = bind(module, model.input_specs())

    def caller(batch: Any) -> Any:
        return call(module, bound, model.outputs, {name: torch.from_numpy(array) for name, array in batch.items()})

    before = outputs(caller, data.search, SIZE)
    student = insert(module, caller, data.calibration(), factory=factory, **{"affine": True, "method": "max", **options})
    return student, caller, before
