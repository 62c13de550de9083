"""Where training runs: this process alone, or one of several that `accelerate launch` has started, each with a GPU of its own."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


class Alone:
    """One process on the processor."""

    main = True
    parts = 1

    @property
    def device(self) -> str:
        """Where modules and rows go."""
        return "cpu"

    def prepare(self, module: torch.nn.Module) -> Any:
        """The module as the training loop calls it."""
        return module

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of `loss`, the mean over all processes."""
        loss.backward()

    def share(self, rows: np.ndarray) -> np.ndarray:
        """This process's part of a batch's rows (n,): all parts are of equal size, so that the mean of their losses is the batch's."""
        return rows

    def wait(self) -> None:
        """Until every process is here."""


class Accelerated(Alone):
    """One of `parts` processes of Hugging Face `accelerate`: gradients are averaged over them, the first one (`main`) writes."""

    def __init__(self) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator()
        self.main, self.parts = self.accelerator.is_main_process, self.accelerator.num_processes

    @property
    def device(self) -> str:
        return str(self.accelerator.device)

    def prepare(self, module: torch.nn.Module) -> Any:
        return self.accelerator.prepare(module)

    def backward(self, loss: torch.Tensor) -> None:
        self.accelerator.backward(loss)

    def share(self, rows: np.ndarray) -> np.ndarray:
        return np.resize(rows, -(-len(rows) // self.parts) * self.parts)[self.accelerator.process_index :: self.parts]

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()


def machine() -> Alone:
    """`Accelerated` where `accelerate` is installed and there is a GPU, or `accelerate launch` has started this process; else `Alone`."""
    import torch

    launched = "ACCELERATE_MIXED_PRECISION" in os.environ and "LOCAL_RANK" in os.environ
    if importlib.util.find_spec("accelerate") is not None and (launched or torch.cuda.is_available()):
        return Accelerated()
    return Alone()
