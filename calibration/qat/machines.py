"""Where training runs: this process alone, or one of several that a launcher has started, each with a GPU of its own."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Alone:
    """One process on the processor."""

    main = True
    parts = 1
    device = "cpu"
    """Where modules and rows go."""

    def share(self, rows: np.ndarray) -> np.ndarray:
        """This process's part of a batch's rows (n,): all parts are of equal size, so that the mean over them is the batch's."""
        return rows

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean of `tensor` over all processes."""
        return tensor


class Accelerated(Alone):
    """One of `parts` processes of Hugging Face `accelerate`; the first one (`main`) writes.

    Gradients are averaged by hand: torch's DistributedDataParallel wants every weight to be used, and a network may have some that are not.
    """

    def __init__(self) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator()
        self.main, self.parts, self.device = self.accelerator.is_main_process, self.accelerator.num_processes, str(self.accelerator.device)

    def share(self, rows: np.ndarray) -> np.ndarray:
        return np.resize(rows, -(-len(rows) // self.parts) * self.parts)[self.accelerator.process_index :: self.parts]

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.accelerator.reduce(tensor, reduction="mean")
        return found


def machine() -> Alone:
    """`Accelerated` where `accelerate` is installed and there is a GPU, or a launcher has started this process as one of several; else `Alone`."""
    import torch

    if importlib.util.find_spec("accelerate") is not None and ("LOCAL_RANK" in os.environ or torch.cuda.is_available()):
        return Accelerated()
    return Alone()
