"""Tiny pictures, their preprocessing, and a torch model as a user would write it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

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


def drawn_roles(source: Any, prepared: Any, specs: Any, sizes: Any, shapes: Any = None) -> Any:
    """The manifest of roles drawn from one source, near rows allowed."""
    from calibration.health import Health
    from calibration.roles import MAIN, Policy, draw, read

    policy = Policy(near="allow")
    main = read(MAIN, source, prepared, specs, policy=policy, health=Health(), shapes=shapes)
    return draw([main], sizes=sizes, seed=0, policy=policy, preprocess_sha256="0" * 64, class_names=source.class_names).roles
