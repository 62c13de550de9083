"""A small residual network with BatchNorm and a depthwise block: what INT8 has to keep right and make fast."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

CLASS_NAMES = tuple("0123456789")


def _conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Sequential:
    layers: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)),
        ("norm", nn.BatchNorm2d(outputs)),
    ]
    return nn.Sequential(OrderedDict([*layers, ("relu", nn.ReLU())] if relu else layers))


class Residual(nn.Module):
    """`relu(x + body(x))`; with a stride the shortcut is a 1x1 convolution."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.relu = body, shortcut or nn.Identity(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, outputs: int, stride: int = 1) -> Residual:
    body = nn.Sequential(OrderedDict(first=_conv(inputs, outputs, 3, stride=stride), second=_conv(outputs, outputs, 3, relu=False)))
    return Residual(body, None if stride == 1 and inputs == outputs else _conv(inputs, outputs, 1, stride=stride, relu=False))


def _inverted(channels: int, expansion: int) -> Residual:
    wide = channels * expansion
    body = OrderedDict(expand=_conv(channels, wide, 1), depthwise=_conv(wide, wide, 3, groups=wide), project=_conv(wide, channels, 1, relu=False))
    return Residual(nn.Sequential(body))


class Digits(nn.Module):
    """(N, 1, 32, 32) float32 in [-1, 1] to logits (N, 10); 91 million multiply-accumulates a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(1, 32, 3)
        self.stage1 = nn.Sequential(_basic(32, 64, stride=2), _basic(64, 64))
        self.stage2 = nn.Sequential(_basic(64, 128, stride=2), _basic(128, 128), _basic(128, 128))
        self.stage3 = _inverted(128, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(128, len(CLASS_NAMES))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.stage3(self.stage2(self.stage1(self.stem(image))))
        return self.head(self.pool(features).flatten(1))


def build() -> nn.Module:
    """A new, untrained network in the shape of the checkpoint."""
    return Digits()
