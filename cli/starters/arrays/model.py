"""Your model: a factory without arguments, and (optional) a function that trains it on the `train` role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

EPOCHS, BATCH_ROWS = 12, 40


class Net(nn.Module):
    """`signal` (N, 4, 64) and `context` (N, 3), float32, to `amount` (N, 1) and `embedding` (N, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 32, 5, padding=2), nn.Conv1d(32, 64, 5, stride=2, padding=2)
        self.context = nn.Linear(3, 32)
        self.mix, self.embed, self.amount = nn.Linear(96, 64), nn.Linear(64, 32), nn.Linear(32, 1)

    def forward(self, signal: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu(self.second(functional.relu(self.first(signal)))).mean(-1)
        x = functional.relu(self.mix(torch.cat([x, functional.relu(self.context(context))], dim=1)))
        embedding = functional.relu(self.embed(x))
        return self.amount(embedding), embedding


def build() -> nn.Module:
    """EDIT: return your network, untrained; model.checkpoint (safetensors of its state_dict) is loaded into it."""
    return Net()


def train(
    rows: Mapping[str, np.ndarray], labels: np.ndarray, *, seed: int, checkpoint: Path, progress: Callable[[int, int, str], None]
) -> dict[str, float]:
    """EDIT, or leave out with `model.train` in params.yaml. `rows` are the prepared train rows, `labels` (N,) the column `label`."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # EDIT: right for a tiny net only
    inputs, targets, model = {name: torch.from_numpy(array) for name, array in rows.items()}, torch.from_numpy(labels).float(), build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    total = 0.0
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(targets)).split(BATCH_ROWS):
            amount, _ = model(**{name: tensor[chosen] for name, tensor in inputs.items()})
            loss = functional.mse_loss(amount[:, 0], targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        progress(epoch + 1, EPOCHS, f"squared error {total / len(targets):.4f}")
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(model.state_dict(), checkpoint)
    return {"train_squared_error": total / len(targets)}
