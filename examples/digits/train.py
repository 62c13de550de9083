"""Train the example on its `train` rows: the same seed gives the same checkpoint on the same machine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch.nn import functional

from pipeline.files import write_bytes
from pipeline.loading import load_object
from pipeline.tensors import Batch

EPOCHS, BATCH_ROWS = 15, 50
PEAK_RATE, WEIGHT_DECAY = 0.1, 5e-4
THREADS = 2
"""Fixed, because the number of threads decides the order of float additions."""
ROTATION_DEGREES, SCALE, SHIFT, SHEAR = 10.0, 0.1, 0.12, 0.2
BACKGROUND = -1.0


@contextlib.contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(THREADS)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)


def distort(images: torch.Tensor) -> torch.Tensor:
    """A random affine copy of each (N, 1, H, W) picture: small rotation, scale, shear and shift; edges are background."""
    rows = len(images)
    angle = (torch.rand(rows) * 2 - 1) * math.radians(ROTATION_DEGREES)
    scale = 1 + (torch.rand(rows, 2) * 2 - 1) * SCALE
    shift = (torch.rand(rows, 2) * 2 - 1) * SHIFT
    shear = (torch.rand(rows) * 2 - 1) * SHEAR
    cosine, sine = torch.cos(angle), torch.sin(angle)
    first = torch.stack([cosine * scale[:, 0], shear - sine * scale[:, 1], shift[:, 0]], dim=1)
    second = torch.stack([sine * scale[:, 0], cosine * scale[:, 1], shift[:, 1]], dim=1)
    grid = functional.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images - BACKGROUND, grid, align_corners=False) + BACKGROUND


def train(rows: Batch, labels: np.ndarray, *, seed: int, checkpoint: Path, progress: Callable[[int, int, str], None]) -> dict[str, float]:
    """Fit `model.build()` to `rows["image"]` (N, 1, 32, 32) and `labels` (N,), write `checkpoint` (safetensors) whole or not at all.

    Stochastic gradient descent with Nesterov momentum under a one-cycle rate (L. Smith, "Super-Convergence", 2018).
    Returns the last epoch's mean loss and accuracy on the distorted training pictures.
    """
    images, targets = torch.from_numpy(rows["image"]), torch.from_numpy(labels.astype(np.int64))
    steps = len(images) // BATCH_ROWS
    if steps == 0:
        raise ValueError(f"training needs at least {BATCH_ROWS} rows: got {len(images)}")
    with _deterministic(seed):
        model = load_object("model.py:build", Path(__file__).parent)().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=WEIGHT_DECAY, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PEAK_RATE, total_steps=EPOCHS * steps, pct_start=0.25)
        loss_sum, right = 0.0, 0
        for epoch in range(EPOCHS):
            loss_sum, right = 0.0, 0
            for chosen in torch.randperm(len(images))[: steps * BATCH_ROWS].split(BATCH_ROWS):
                logits = model(distort(images[chosen]).contiguous(memory_format=torch.channels_last))
                loss = functional.cross_entropy(logits, targets[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.item()
                right += int((logits.argmax(1) == targets[chosen]).sum())
            progress(epoch + 1, EPOCHS, f"loss {loss_sum / steps:.4f}")
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    write_bytes(checkpoint, safetensors.torch.save(state))
    return {"train_loss": loss_sum / steps, "train_accuracy": right / (steps * BATCH_ROWS)}
