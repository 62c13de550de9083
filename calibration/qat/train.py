"""Float weights trained under fake quantization: the float model teaches, rows of `search` stop, the best epoch's weights are given."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.checkpoint import load_module
from calibration.qat.fake import insert
from calibration.qat.loop import Loop
from calibration.qat.machines import Alone
from calibration.qat.means import corrected
from calibration.qat.saved import Saved
from calibration.qat.teacher import Run, Teacher, decibels, outputs, take, worst_db
from calibration.tracing import bind, call
from pipeline.config import ModelConfig, TrainingConfig
from pipeline.records import Epoch
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclasses.dataclass(frozen=True)
class Data:
    """Prepared rows `{input: (n, ...)}`: those to train on, those that stop it, and `calibration()`, in batches, for the activations' ranges."""

    train: Batch
    search: Batch
    calibration: Callable[[], Iterable[Batch]]


@dataclasses.dataclass(frozen=True)
class Trained:
    """`state`: the float tensors of the best epoch, by their names in the factory's module, on the processor.

    `start_db`: SQNR on the search rows under fake quantization before anything was changed, `corrected_db` with means corrected. `quantized` and
    `in_float` are those of `fake.Student`; `resumed_after`: the epoch that a saved state was of, null where training began at the start.
    """

    state: dict[str, torch.Tensor]
    epochs: tuple[Epoch, ...]
    best_epoch: int
    start_db: float | None
    corrected_db: float | None
    quantized: tuple[str, ...]
    in_float: dict[str, str]
    resumed_after: int | None


def train(
    model: ModelConfig,
    root: Path,
    data: Data,
    settings: TrainingConfig,
    saved: Saved,
    *,
    affine: bool,
    method: str,
    machine: Alone,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Trained:
    """Train the float weights of `model` until, under fake quantization (`fake.insert`), they give the outputs that they gave without.

    First biases that give each channel its mean again (`means.corrected`), if that is nearer. Then distillation from the float model (Hinton et al.,
    "Distilling the Knowledge in a Neural Network", 2015; for quantization Mishra and Marr, "Apprentice", ICLR 2018) by squared error over each
    output's power, with Adam under a cosine rate. The student is in evaluation mode: no dropout, and BatchNorm keeps its statistics
    (`fake.insert` says why it is not folded). After each epoch it is judged by SQNR on the search rows;
    `settings.patience` epochs without a better one end the training. The loop's state follows from the epoch and the saved tensors alone, so a run
    that was killed goes on from `saved` and ends with the weights of one that was not, on the same machine. Raises ConfigError or ModelError.
    """
    axis = model.axis_ranges()[model.batch_axis]
    size = AxisRange(axis.min, axis.opt, max(axis.min, min(settings.batch_rows, axis.max)))
    import torch

    with _deterministic(settings.seed):
        taught_by, module = (load_module(model, root).to(machine.device) for _ in range(2))
        ask, run = _caller(taught_by, model, machine), _caller(module, model, machine)
        wanted = outputs(ask, data.search, size)
        teacher = Teacher(ask, data.train, size, {name: float(np.square(array, dtype=np.float64).mean()) for name, array in wanted.items()})
        student = insert(module, run, data.calibration(), affine=affine, method=method, factory=model.factory)

        def judge() -> float | None:
            return worst_db(wanted, outputs(run, data.search, size))

        start = judge()
        first = next(iter(data.calibration()))
        before = corrected(module, taught_by, student.quantized, ask, run, take(first, np.arange(min(axis.max, len(next(iter(first.values())))))))
        if decibels(after := judge()) < decibels(start):
            after = start
            with torch.no_grad():
                for name, bias in before.items():
                    module.get_submodule(name).bias.copy_(bias)
        loop = Loop(student, bind(taught_by, model.input_specs()), model.outputs, teacher, data.train, settings, size, machine)
        resumed = loop.resume(saved)
        epochs = loop.run(after, judge, saved, progress)
        return Trained(loop.best_state(), epochs, loop.best_epoch, start, after, student.quantized, student.in_float, resumed)


def _caller(module: nn.Module, model: ModelConfig, machine: Alone) -> Run:
    import torch

    bound = bind(module, model.input_specs())  # now: a converted module has another signature

    def run(batch: Batch) -> dict[str, torch.Tensor]:
        return call(module, bound, model.outputs, {name: torch.from_numpy(np.ascontiguousarray(a)).to(machine.device) for name, a in batch.items()})

    return run


@contextlib.contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Equal runs on one machine; and no fused attention, which would pass by the layers that are fake-quantized."""
    import torch

    strict, fast = torch.are_deterministic_algorithms_enabled(), torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.backends.mha.set_fastpath_enabled(fast)
