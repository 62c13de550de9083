"""Adam whose step is measured in what rounding to INT8 does, so that one rate suits layers and networks of any magnitude and width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BETAS = (0.9, 0.999)
SMALL = 1e-12
FIRST, SECOND, COUNT = "first", "second", "count"


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, for `weights` by name.

    A weight moves by up to about `rate` times its `unit` (broadcast to it) a step. The first steps have the signs of the gradient, all at once:
    with a rate for the weights alone, what trains a narrow layer tears a wide one apart.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], units: Mapping[str, torch.Tensor]) -> None:
        import torch

        self.weights, self.units, self.count = weights, units, 0
        self.first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def step(self, rate: float) -> None:
        """Move each weight by its gradient, which is then dropped."""
        import torch

        self.count += 1
        keep, keep_square = (1 - beta**self.count for beta in BETAS)
        with torch.no_grad():
            for name, weight in self.weights.items():
                if weight.grad is None:  # no output depends on it
                    continue
                first = self.first[name].lerp_(weight.grad, 1 - BETAS[0])
                second = self.second[name].lerp_(weight.grad.square(), 1 - BETAS[1])
                weight.sub_(rate * self.units[name] * (first / keep) / ((second / keep_square).sqrt() + SMALL))
                weight.grad = None

    def state(self) -> dict[str, torch.Tensor]:
        """All that the next step follows from, besides the weights."""
        import torch

        moments = {f"{FIRST}:{name}": tensor for name, tensor in self.first.items()} | {f"{SECOND}:{name}": t for name, t in self.second.items()}
        return {**moments, COUNT: torch.tensor(self.count)}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave."""
        for name in self.weights:
            self.first[name].copy_(state[f"{FIRST}:{name}"])
            self.second[name].copy_(state[f"{SECOND}:{name}"])
        self.count = int(state[COUNT])
